-- What a host reaches (docs/service.md, "What a host reaches").

-- The host that had a volume last, for what is left of one that is gone: its
-- versions that snapshots hold, its frees, its degraded segments.
CREATE TABLE departed (
    volume    TEXT NOT NULL PRIMARY KEY,
    last_host TEXT NOT NULL
);

-- Whose version it was that was removed; of earlier ones nobody knows.
ALTER TABLE pending_frees ADD COLUMN volume TEXT NOT NULL DEFAULT '';
CREATE INDEX pending_frees_volume ON pending_frees (volume);
