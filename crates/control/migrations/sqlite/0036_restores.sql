-- How often a volume went back to a version: what was acknowledged before that, and is kept
-- beside the volume, is of no use any more.
ALTER TABLE volumes ADD COLUMN restores INTEGER NOT NULL DEFAULT 0;
