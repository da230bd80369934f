-- How each unit stands in a copyset (docs/units.md, "Repair"). A unit that leaves
-- has its place together with the one that replaces it.
CREATE TABLE copyset_members_new (
    copyset   INTEGER NOT NULL REFERENCES copysets (number),
    place     INTEGER NOT NULL,
    unit      TEXT    NOT NULL REFERENCES units (id),
    state     TEXT    NOT NULL DEFAULT 'whole' CHECK (state IN ('whole', 'filling', 'leaving')),
    -- In the whole table: grows with each unit that becomes a member of a copyset
    -- that is there already. 0: a member from the start.
    joined    INTEGER NOT NULL DEFAULT 0,
    -- Grows whenever it may have missed something.
    missed    INTEGER NOT NULL DEFAULT 0,
    -- When it last did, and since when it stands as it does; 0: from the start.
    missed_ms INTEGER NOT NULL DEFAULT 0,
    since_ms  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (copyset, unit)
) STRICT;
INSERT INTO copyset_members_new (copyset, place, unit)
    SELECT copyset, place, unit FROM copyset_members;
DROP TABLE copyset_members;
ALTER TABLE copyset_members_new RENAME TO copyset_members;
CREATE UNIQUE INDEX copyset_members_place ON copyset_members (copyset, place)
    WHERE state <> 'leaving';
CREATE INDEX copyset_members_unit ON copyset_members (unit);
-- Which of them lacks what was noted so far nobody knows.
UPDATE copyset_members SET state = 'filling', missed = 1
    WHERE copyset IN (SELECT segment / 68719476736 FROM degraded_segments);
ALTER TABLE cluster ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
-- No copyset is planned over it any more.
ALTER TABLE units ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
-- Since when every host that says anything says that it is missing.
ALTER TABLE units ADD COLUMN missing_ms INTEGER;
