-- Where the daemon of a unit was heard of last, and a second one that has claimed it
-- (docs/units.md, "Daemons").
ALTER TABLE units ADD COLUMN place TEXT;
ALTER TABLE units ADD COLUMN heard_ms INTEGER;
ALTER TABLE units ADD COLUMN second_url TEXT;
ALTER TABLE units ADD COLUMN second_ms INTEGER;

-- The address of a disabled daemon is free for others, so URLs come twice. A UNIQUE
-- cannot be dropped, and the table cannot be made anew: rows that refer to it would go
-- with it. So the column stays behind under another name, with a text that is the
-- unit's own.
ALTER TABLE units RENAME COLUMN url TO unique_text;
ALTER TABLE units ADD COLUMN url TEXT NOT NULL DEFAULT '';
UPDATE units SET url = unique_text;
UPDATE units SET unique_text = id;
CREATE INDEX units_url ON units (url);
