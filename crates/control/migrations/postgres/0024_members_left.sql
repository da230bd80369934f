-- What was put before a unit left a place is on it, and nothing of what was put since:
-- the number with which another one took its place (see joined); none as long as it is
-- put on.
ALTER TABLE copyset_members ADD COLUMN left_at BIGINT;
-- When those left that are on their way nobody knows: no version that is not committed
-- yet counts on them.
UPDATE copyset_members SET left_at = joined WHERE state = 'leaving';
