-- What stands between a volume and whoever uses it: a policy, for one VM or ('') for all
-- that have none of their own.
CREATE TABLE chains (
    id         TEXT    NOT NULL PRIMARY KEY,
    volume     TEXT    NOT NULL,
    vm         TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    revision   BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    UNIQUE (volume, vm)
);
-- Which one an attachment has, as its host says, and why it has not the one that is wanted.
ALTER TABLE attachments ADD COLUMN chain TEXT;
ALTER TABLE attachments ADD COLUMN chain_revision BIGINT;
ALTER TABLE attachments ADD COLUMN chain_problem TEXT;
