-- Who repaired a copyset last, and until when it may have been able to change anything
-- there (see repairer_until_ms); and who said last that a member may lack something.
ALTER TABLE copysets ADD COLUMN repairer_last TEXT;
ALTER TABLE copysets ADD COLUMN suspected_by TEXT;
-- How often it could not be repaired since it last was.
ALTER TABLE copysets ADD COLUMN repair_tries INTEGER NOT NULL DEFAULT 0;
UPDATE copysets SET repairer_last = repairer;
