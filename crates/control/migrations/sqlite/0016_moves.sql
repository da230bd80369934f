-- Moving attachments (docs/service.md, "Moving an attachment").

-- What follows when this one has let go: the new attachment's id, where it is,
-- and who asked for it. Nothing does, if they are null.
ALTER TABLE attachments ADD COLUMN next_id TEXT;
ALTER TABLE attachments ADD COLUMN next_host TEXT;
ALTER TABLE attachments ADD COLUMN next_vm TEXT;
ALTER TABLE attachments ADD COLUMN next_asked_by TEXT;
