-- Attachments to VMs (docs/service.md).

-- The VM that it is plugged into; none for a plain export.
ALTER TABLE attachments ADD COLUMN vm TEXT;
-- The serial by which the VM knows it.
ALTER TABLE attachments ADD COLUMN device TEXT;
-- What is worth knowing and no error.
ALTER TABLE attachments ADD COLUMN note TEXT;
-- It ends without the guest's consent, and without its host if that is dead.
ALTER TABLE attachments ADD COLUMN forced BIGINT NOT NULL DEFAULT 0;
-- A VM has a volume once.
CREATE UNIQUE INDEX attachments_place ON attachments (volume, host, (COALESCE(vm, '')))
    WHERE state <> 'detached';
