-- Who repairs a copyset, and how far that is.
ALTER TABLE copysets ADD COLUMN repairer TEXT;
ALTER TABLE copysets ADD COLUMN repairer_until_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN repair_after_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN repair_done BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN repair_all BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN repair_problem TEXT;
-- 1: every slot is to be read and compared, and when that was done last; 2: all
-- members are to be compared.
ALTER TABLE copysets ADD COLUMN scrub_wanted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN scrubbed_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE copysets ADD COLUMN rotten BIGINT NOT NULL DEFAULT 0;
-- Units that are no more: none is taken in again with what it held then.
CREATE TABLE removed_units (
    id         TEXT   NOT NULL PRIMARY KEY,
    url        TEXT   NOT NULL,
    removed_ms BIGINT NOT NULL
);
