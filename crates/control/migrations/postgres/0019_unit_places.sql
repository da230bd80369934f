-- Where the daemon of a unit was heard of last, and a second one that has claimed it
-- (docs/units.md, "Daemons").
ALTER TABLE units ADD COLUMN place TEXT;
ALTER TABLE units ADD COLUMN heard_ms BIGINT;
ALTER TABLE units ADD COLUMN second_url TEXT;
ALTER TABLE units ADD COLUMN second_ms BIGINT;

-- The address of a disabled daemon is free for others, so URLs come twice. Named as
-- in SQLite, where a UNIQUE cannot be dropped.
ALTER TABLE units RENAME COLUMN url TO unique_text;
ALTER TABLE units ADD COLUMN url TEXT NOT NULL DEFAULT '';
UPDATE units SET url = unique_text;
UPDATE units SET unique_text = id;
CREATE INDEX units_url ON units (url);
