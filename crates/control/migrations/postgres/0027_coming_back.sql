-- How many leases were noted on a unit, as hosts say that have noted them.
ALTER TABLE units ADD COLUMN leases BIGINT NOT NULL DEFAULT 0;
-- What hosts may have been putting at a moment: serials of segments that were open, or
-- reserved and not used, or not handed out yet. Those without a copyset, of any.
CREATE TABLE fluxes (
    id    BIGINT NOT NULL PRIMARY KEY,
    at_ms BIGINT NOT NULL
);
CREATE TABLE flux_serials (
    flux       BIGINT NOT NULL,
    copyset    BIGINT,
    first      BIGINT NOT NULL,
    end_before BIGINT NOT NULL
);
CREATE INDEX flux_serials_of ON flux_serials (flux);
-- Of a member that is filled: only what was on its way then may be otherwise than it was
-- put; anything, if that is not known.
ALTER TABLE copyset_members ADD COLUMN flux BIGINT;
-- Whose word was taken that a unit may lack something, until all of its copysets are whole.
CREATE TABLE unit_doubts (
    unit     TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    is_older BIGINT NOT NULL,
    PRIMARY KEY (unit, host)
);
