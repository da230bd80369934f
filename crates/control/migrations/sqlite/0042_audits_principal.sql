-- Who has asked for an audit, and may cancel it.
ALTER TABLE volume_audits ADD COLUMN principal TEXT;
-- How the volume's blocks came to lie on units when it was asked for, as JSON.
ALTER TABLE volume_audits ADD COLUMN placement TEXT;
-- How much was in the journal of the volume's host then, if that was said and matters.
ALTER TABLE volume_audits ADD COLUMN journal_bytes INTEGER;
