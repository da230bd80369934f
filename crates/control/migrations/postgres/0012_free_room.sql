-- The free room that a host's report names, in bytes: what tenants ask for is
-- compared with it, and the whole report need not be read. Of a report that is
-- there already it is not known; the next one comes within seconds.
ALTER TABLE host_reports ADD COLUMN free_bytes BIGINT;
