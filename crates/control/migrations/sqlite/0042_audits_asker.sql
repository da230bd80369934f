-- Who has asked for an audit, and may call it off.
ALTER TABLE volume_audits ADD COLUMN asker TEXT;
