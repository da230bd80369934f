-- Who mended a copyset last, and until when it may have been able to change anything
-- there (see mender_until_ms); and who said last that a member may lack something.
ALTER TABLE copysets ADD COLUMN mender_last TEXT;
ALTER TABLE copysets ADD COLUMN doubted_by TEXT;
-- How often it could not be mended since it last was.
ALTER TABLE copysets ADD COLUMN mend_tries INTEGER NOT NULL DEFAULT 0;
UPDATE copysets SET mender_last = mender;
