-- A producer's search path need not have the tables' schema in it: INSERT INTO public.waybill_outbox … with an empty one has to find what the
-- trigger calls. With a path of their own the functions find it whatever the caller's is, and nothing that a caller has put in front
-- of it: temporary objects come last. The schema is that of the tables, which the path leads to while this runs.
DO $do$
DECLARE
  home text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = '{outbox}'::regclass);
BEGIN
  EXECUTE 'ALTER FUNCTION {choose_lane}() SET search_path = pg_catalog, ' || home || ', pg_temp';
  EXECUTE 'ALTER FUNCTION {inbox_of}(text[], uuid[]) SET search_path = pg_catalog, ' || home || ', pg_temp';
END
$do$
