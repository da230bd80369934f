-- Unit daemons are parties, too (docs/units.md, "Daemons"). A CHECK cannot be
-- altered, and the table cannot be made anew: rows that refer to it would go with
-- it. So its text is replaced, which SQLite's documentation of ALTER TABLE has for
-- this: what was allowed before is allowed still.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
    SET sql = replace(sql, 'IN (''user'', ''host'')', 'IN (''user'', ''host'', ''unit'')')
    WHERE type = 'table' AND name = 'parties';
PRAGMA writable_schema = RESET;
