-- Returns the number of lanes. A writer compares it in its INSERT with the
-- number that the writer has cached. It is a function in addition to a setting
-- for two reasons. A statement inlines the function as a constant at no cost,
-- and is planned again when the function is replaced. A row would be read with
-- the snapshot of a REPEATABLE READ transaction, which can be older than the
-- change. SetLanes replaces the function under an exclusive lock on the tables.
DO $do$
BEGIN
  EXECUTE format('CREATE FUNCTION {lane_count}() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT %s $$',
    (SELECT value::integer FROM {setting} WHERE name = 'lanes'));
END
$do$
-- next
-- Sets the lane of a row that names none: the producer used plain SQL, or had
-- cached another number of lanes.
CREATE OR REPLACE FUNCTION {choose_lane}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lane := CASE
    WHEN coalesce(NEW.aggregate_id, '') = '' THEN {lane_of}('', '', NEW.id::text, {lane_count}())
    ELSE {lane_of}(NEW.tenant_id, NEW.aggregate_type, NEW.aggregate_id, {lane_count}())
  END;
  RETURN NEW;
END
$$
