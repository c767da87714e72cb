-- A server that was promoted is on a new timeline. A standby that lagged behind
-- has lost epochs of lanes, which would be issued again; see timeline.go. A
-- service with another storage refuses to tell its place in the log: there the
-- timeline is 0, and never changes.
CREATE FUNCTION {timeline}() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN 0;
  END IF;
  RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function OR object_not_in_prerequisite_state OR internal_error THEN
  RETURN 0;
END
$$
