-- What is wanted of hosts, and what they say of it (docs/service.md).

CREATE TABLE hosts (
    party       TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    -- Grows with every change of what is wanted of it.
    assignments BIGINT NOT NULL DEFAULT 0,
    -- A report that has seen at least this is waited for.
    look        BIGINT NOT NULL DEFAULT 0,
    -- Grows when there may be something to clean.
    clean       BIGINT NOT NULL DEFAULT 0
);

-- Written every two seconds, so apart from what is wanted.
CREATE TABLE host_reports (
    party    TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    heard_ms BIGINT NOT NULL,
    look     BIGINT NOT NULL,
    report   TEXT    NOT NULL
);

-- Something that a host is to do once; whoever asked for it waits.
CREATE TABLE tasks (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    what       TEXT    NOT NULL,
    answer     TEXT,
    created_ms BIGINT NOT NULL
);
CREATE INDEX tasks_host ON tasks (host);

-- Volumes on hosts: what is wanted, and how far the host has come.
CREATE TABLE attachments (
    id             TEXT    NOT NULL PRIMARY KEY,
    volume         TEXT    NOT NULL,
    host           TEXT    NOT NULL REFERENCES parties (id),
    access         TEXT    NOT NULL CHECK (access IN ('read-write', 'read-only')),
    wanted         BIGINT NOT NULL DEFAULT 1,
    -- Which wish this is. What is reported of an older one counts for nothing.
    generation     BIGINT NOT NULL DEFAULT 1,
    state          TEXT    NOT NULL DEFAULT 'attaching' CHECK (state IN ('attaching',
                       'attached', 'detaching', 'detached', 'busy', 'error')),
    -- The generation that the state is of.
    reported       BIGINT NOT NULL DEFAULT 0,
    reason         TEXT,
    -- The last lease that was taken for it: the host's journal may be newer
    -- than the head. None was, if it is null.
    epoch          BIGINT,
    -- Read-only: the version that is shown; null for that of an empty volume.
    version_volume TEXT,
    version_number BIGINT,
    size_bytes     BIGINT,
    uri            TEXT,
    tcp_uri        TEXT,
    created_ms     BIGINT NOT NULL,
    ended_ms       BIGINT
);
CREATE INDEX attachments_volume ON attachments (volume) WHERE state <> 'detached';
CREATE INDEX attachments_host ON attachments (host) WHERE state <> 'detached';
CREATE INDEX attachments_version ON attachments (version_volume, version_number)
    WHERE state <> 'detached';
-- One writes, and nobody else.
CREATE UNIQUE INDEX attachments_writer ON attachments (volume)
    WHERE access = 'read-write' AND state <> 'detached';

ALTER TABLE volumes DROP COLUMN exported;
ALTER TABLE volumes DROP COLUMN attached;
ALTER TABLE volumes DROP COLUMN failure;
-- The host that had it attached last.
ALTER TABLE volumes ADD COLUMN last_host TEXT;

-- Its moment was taken: it waits for a version now.
ALTER TABLE snapshots ADD COLUMN cut BIGINT NOT NULL DEFAULT 0;

-- With it, hosts vouch for what they leave on units. It opens nothing.
ALTER TABLE cluster ADD COLUMN vouch BYTEA NOT NULL;
-- A new cluster has no wrapping key until an agent brings one.
ALTER TABLE cluster ALTER COLUMN key_source DROP NOT NULL;
ALTER TABLE cluster ALTER COLUMN key_verifier DROP NOT NULL;
