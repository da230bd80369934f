-- When a host last said how far it is: one that says nothing does it no more.
ALTER TABLE volume_audits ADD COLUMN told_ms BIGINT NOT NULL DEFAULT 0;
CREATE INDEX volume_audits_by_end ON volume_audits (ended_ms);
