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
    version_number INTEGER NOT NULL,
    -- The units, as JSON.
    units          TEXT NOT NULL,
    files          INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,
    state          TEXT NOT NULL,
    done_bytes     INTEGER NOT NULL DEFAULT 0,
    reason         TEXT,
    -- What was found, as JSON.
    found          TEXT,
    created_ms     INTEGER NOT NULL,
    ended_ms       INTEGER
) STRICT;
CREATE INDEX volume_audits_by_host ON volume_audits (host);
CREATE INDEX volume_audits_by_volume ON volume_audits (volume);
CREATE INDEX volume_audits_by_version ON volume_audits (version_volume, version_number);
