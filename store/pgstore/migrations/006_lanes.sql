-- How many lanes there are. A writer compares it, inside its INSERT, with the number that it has remembered. A function and not only a
-- setting: a statement plans it in as a constant, so that it costs nothing, and plans again when it is replaced; a row would be
-- read with the snapshot of a REPEATABLE READ transaction, which may be older than the change. Who changes the number replaces the
-- function behind an exclusive lock on the tables.
DO $do$
BEGIN
  EXECUTE format('CREATE FUNCTION {lane_count}() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT %s $$',
    (SELECT value::integer FROM {setting} WHERE name = 'lanes'));
END
$do$
-- next
-- The lane of a row that names none: the producer used plain SQL, or remembered another number of lanes.
CREATE OR REPLACE FUNCTION {choose_lane}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lane := CASE
    WHEN coalesce(NEW.aggregate_id, '') = '' THEN {lane_of}('', '', NEW.id::text, {lane_count}())
    ELSE {lane_of}(NEW.tenant_id, NEW.aggregate_type, NEW.aggregate_id, {lane_count}())
  END;
  RETURN NEW;
END
$$
