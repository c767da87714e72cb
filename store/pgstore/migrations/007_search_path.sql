-- The search path of a producer need not contain the schema of the tables:
-- INSERT INTO public.waybill_outbox with an empty path must find the functions
-- that the trigger calls. With a search path of their own the functions find
-- them under every path of the caller. pg_temp comes last, so temporary objects
-- cannot replace them. The schema is that of the tables, which the search path
-- of this migration finds.
DO $do$
DECLARE
  home text := (SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = '{outbox}'::regclass);
BEGIN
  EXECUTE 'ALTER FUNCTION {choose_lane}() SET search_path = pg_catalog, ' || home || ', pg_temp';
  EXECUTE 'ALTER FUNCTION {inbox_of}(text[], uuid[]) SET search_path = pg_catalog, ' || home || ', pg_temp';
END
$do$
