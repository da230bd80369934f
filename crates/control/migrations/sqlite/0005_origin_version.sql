-- The version that a clone began as, which may be gone: of what came before it,
-- nothing was ever the clone's state.
ALTER TABLE volumes ADD COLUMN origin_volume TEXT;
ALTER TABLE volumes ADD COLUMN origin_number INTEGER;
UPDATE volumes SET (origin_volume, origin_number) =
    (SELECT s.version_volume, s.version_number FROM snapshots s WHERE s.id = volumes.origin);
