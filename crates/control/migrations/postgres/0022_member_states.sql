-- How each unit stands in a copyset (docs/units.md, "Repair"). A unit that leaves
-- has its place together with the one that replaces it.
ALTER TABLE copyset_members DROP CONSTRAINT copyset_members_pkey;
ALTER TABLE copyset_members DROP CONSTRAINT copyset_members_copyset_unit_key;
ALTER TABLE copyset_members ADD PRIMARY KEY (copyset, unit);
ALTER TABLE copyset_members ADD COLUMN state TEXT NOT NULL DEFAULT 'whole'
    CHECK (state IN ('whole', 'filling', 'leaving'));
-- In the whole table: grows with each unit that becomes a member of a copyset that
-- is there already. 0: a member from the start.
ALTER TABLE copyset_members ADD COLUMN joined BIGINT NOT NULL DEFAULT 0;
-- Grows whenever it may have missed something.
ALTER TABLE copyset_members ADD COLUMN missed BIGINT NOT NULL DEFAULT 0;
-- When it last did, and since when it stands as it does; 0: from the start.
ALTER TABLE copyset_members ADD COLUMN missed_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copyset_members ADD COLUMN since_ms BIGINT NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX copyset_members_place ON copyset_members (copyset, place)
    WHERE state <> 'leaving';
CREATE INDEX copyset_members_unit ON copyset_members (unit);
-- Which of them lacks what was noted so far nobody knows.
UPDATE copyset_members SET state = 'filling', missed = 1
    WHERE copyset IN (SELECT segment / 68719476736 FROM degraded_segments);
ALTER TABLE cluster ADD COLUMN joined BIGINT NOT NULL DEFAULT 0;
-- No copyset is planned over it any more.
ALTER TABLE units ADD COLUMN draining BIGINT NOT NULL DEFAULT 0;
-- Since when every host that says anything says that it is missing.
ALTER TABLE units ADD COLUMN missing_ms BIGINT;
