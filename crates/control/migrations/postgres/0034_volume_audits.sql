-- What some units alone have of volumes, as hosts are asked for it and have found it.
CREATE TABLE volume_audits (
    id             TEXT PRIMARY KEY,
    volume         TEXT NOT NULL,
    -- The snapshot that was named, if one was.
    snapshot       TEXT,
    -- Who does it.
    host           TEXT NOT NULL,
    -- What is audited; it stays until the audit has ended.
    version_volume TEXT NOT NULL,
    version_number BIGINT NOT NULL,
    -- The units, as JSON.
    units          TEXT NOT NULL,
    files          BIGINT NOT NULL,
    size_bytes     BIGINT NOT NULL,
    state          TEXT NOT NULL,
    done_bytes     BIGINT NOT NULL DEFAULT 0,
    reason         TEXT,
    -- What was found, as JSON.
    found          TEXT,
    created_ms     BIGINT NOT NULL,
    ended_ms       BIGINT
);
CREATE INDEX volume_audits_by_host ON volume_audits (host);
CREATE INDEX volume_audits_by_volume ON volume_audits (volume);
CREATE INDEX volume_audits_by_version ON volume_audits (version_volume, version_number);
