-- How many leases were noted on a unit, as hosts say that have noted them.
ALTER TABLE units ADD COLUMN leases INTEGER NOT NULL DEFAULT 0;
-- What hosts may have been putting at a moment: serials of segments that were open, or
-- reserved and not used, or not handed out yet. Those without a copyset, of any.
CREATE TABLE in_flight_sets (
    id    INTEGER NOT NULL PRIMARY KEY,
    at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE in_flight_serials (
    in_flight_set       INTEGER NOT NULL,
    copyset    INTEGER,
    first      INTEGER NOT NULL,
    end_before INTEGER NOT NULL
) STRICT;
CREATE INDEX in_flight_serials_of ON in_flight_serials (in_flight_set);
-- Of a member that is filled: only what was on its way then may be otherwise than it was
-- put; anything, if that is not known.
ALTER TABLE copyset_members ADD COLUMN in_flight_set INTEGER;
-- Whether a task that was broken off, or did not make it whole, may have left something there
-- in part, since it became whole last.
ALTER TABLE copyset_members ADD COLUMN is_unknown INTEGER NOT NULL DEFAULT 0;
-- Whose word was taken that a unit may lack something, until all of its copysets are whole.
CREATE TABLE unit_suspicions (
    unit     TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    is_older INTEGER NOT NULL,
    PRIMARY KEY (unit, host)
) STRICT;
