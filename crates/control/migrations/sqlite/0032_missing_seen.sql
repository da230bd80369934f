-- When it was last looked whether a missing unit still is: who is missing after a time
-- in which no host said so is missing anew.
ALTER TABLE units ADD COLUMN missing_seen_ms INTEGER;
