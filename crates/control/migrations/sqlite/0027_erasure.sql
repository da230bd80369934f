-- How segments are spread in the place of copies (docs/units.md, "Redundancy"): over
-- so many units with data, and so many with parity. Of a copyset's members the first
-- `data` have data; 1: each has a copy.
ALTER TABLE volumes ADD COLUMN data INTEGER NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8);
ALTER TABLE volumes ADD COLUMN parity INTEGER NOT NULL DEFAULT 0 CHECK (parity BETWEEN 0 AND 3);
ALTER TABLE copysets ADD COLUMN data INTEGER NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8);

-- Slots of such segments that no version names any more, and that are not worth new
-- parity yet: a free plan for each segment, and the lineages
-- that it was written as. `waits_for` has it open: nothing of it can be given back
-- before it is closed.
CREATE TABLE dead_slots (
    segment   INTEGER NOT NULL PRIMARY KEY,
    plan      BLOB NOT NULL,
    lineages  TEXT NOT NULL,
    waits_for TEXT
) STRICT;
CREATE INDEX dead_slots_waiting ON dead_slots (waits_for) WHERE waits_for IS NOT NULL;
