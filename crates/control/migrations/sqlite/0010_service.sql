-- What is wanted of hosts, and what they say of it (docs/service.md).

CREATE TABLE hosts (
    party       TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    -- Grows with every change of what is wanted of it.
    assignments INTEGER NOT NULL DEFAULT 0,
    -- A report that has seen at least this is waited for.
    look        INTEGER NOT NULL DEFAULT 0,
    -- Grows when there may be something to clean.
    clean       INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Written every two seconds, so apart from what is wanted.
CREATE TABLE host_reports (
    party    TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    heard_ms INTEGER NOT NULL,
    look     INTEGER NOT NULL,
    report   TEXT    NOT NULL
) STRICT;

-- Something that a host is to do once; whoever asked for it waits.
CREATE TABLE tasks (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    host       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    what       TEXT    NOT NULL,
    answer     TEXT,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX tasks_host ON tasks (host);

-- Volumes on hosts: what is wanted, and how far the host has come.
CREATE TABLE attachments (
    id             TEXT    NOT NULL PRIMARY KEY,
    volume         TEXT    NOT NULL,
    host           TEXT    NOT NULL REFERENCES parties (id),
    access         TEXT    NOT NULL CHECK (access IN ('read-write', 'read-only')),
    wanted         INTEGER NOT NULL DEFAULT 1,
    -- Which wish this is. What is reported of an older one counts for nothing.
    generation     INTEGER NOT NULL DEFAULT 1,
    state          TEXT    NOT NULL DEFAULT 'attaching' CHECK (state IN ('attaching',
                       'attached', 'detaching', 'detached', 'busy', 'error')),
    -- The generation that the state is of.
    reported       INTEGER NOT NULL DEFAULT 0,
    reason         TEXT,
    -- The last lease that was taken for it: the host's journal may be newer
    -- than the head. None was, if it is null.
    epoch          INTEGER,
    -- Read-only: the version that is shown; null for that of an empty volume.
    version_volume TEXT,
    version_number INTEGER,
    size_bytes     INTEGER,
    uri            TEXT,
    tcp_uri        TEXT,
    created_ms     INTEGER NOT NULL,
    ended_ms       INTEGER
) STRICT;
CREATE INDEX attachments_volume ON attachments (volume) WHERE state <> 'detached';
CREATE INDEX attachments_host ON attachments (host) WHERE state <> 'detached';
CREATE INDEX attachments_version ON attachments (version_volume, version_number)
    WHERE state <> 'detached';
-- One writes, and nobody else.
CREATE UNIQUE INDEX attachments_writer ON attachments (volume)
    WHERE access = 'read-write' AND state <> 'detached';

-- What was exported, or had a journal, is so on the one host there was.
INSERT INTO parties (id, kind, name, created_ms)
    SELECT 'party-' || substr(lower(hex(randomblob(9))), 1, 17), 'host', 'local', created_ms
    FROM cluster
    WHERE NOT EXISTS (SELECT 1 FROM parties WHERE kind = 'host' AND name = 'local');
INSERT INTO hosts (party) SELECT id FROM parties WHERE kind = 'host';
INSERT INTO attachments (id, volume, host, access, wanted, state, epoch, created_ms)
    SELECT 'att-' || substr(lower(hex(randomblob(9))), 1, 17), volumes.id, parties.id,
        'read-write', exported IS NOT NULL,
        CASE WHEN exported IS NULL THEN 'detaching' ELSE 'attaching' END,
        epoch, volumes.created_ms
    FROM volumes JOIN parties ON parties.kind = 'host' AND parties.name = 'local'
    WHERE deleting = 0 AND (attached = 1 OR exported = 'read-write');

ALTER TABLE volumes DROP COLUMN exported;
ALTER TABLE volumes DROP COLUMN attached;
ALTER TABLE volumes DROP COLUMN failure;
-- The host that had it attached last.
ALTER TABLE volumes ADD COLUMN last_host TEXT;
UPDATE volumes SET last_host =
    (SELECT id FROM parties WHERE kind = 'host' AND name = 'local');

-- Its moment was taken: it waits for a version now.
ALTER TABLE snapshots ADD COLUMN cut INTEGER NOT NULL DEFAULT 0;
UPDATE snapshots SET cut = 1 WHERE state = 'pending';

-- A new cluster has no wrapping key until an agent brings one. (SQLite cannot
-- alter a column: the table is made anew.)
CREATE TABLE new_cluster (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id           TEXT    NOT NULL,
    created_ms   INTEGER NOT NULL,
    serial_next  INTEGER NOT NULL DEFAULT 1 CHECK (serial_next > 0),
    leases       INTEGER NOT NULL DEFAULT 0 CHECK (leases >= 0),
    -- With it, hosts vouch for what they leave on units. It opens nothing.
    vouch        BLOB    NOT NULL,
    -- Where the key that wraps all others comes from, and how it is derived;
    -- null until an agent has brought it.
    key_source   TEXT    CHECK (key_source IN ('file', 'passphrase')),
    key_salt     BLOB,
    key_memory_kib INTEGER,
    key_passes   INTEGER,
    key_lanes    INTEGER,
    -- A random key, wrapped: a wrong key file or passphrase does not open it.
    key_verifier BLOB,
    owner        TEXT,
    owner_generation INTEGER NOT NULL DEFAULT 0 CHECK (owner_generation >= 0),
    owner_folder TEXT,
    owner_inode  INTEGER,
    owner_born_ns INTEGER
) STRICT;
INSERT INTO new_cluster (one, id, created_ms, serial_next, leases, vouch, key_source, key_salt,
        key_memory_kib, key_passes, key_lanes, key_verifier, owner, owner_generation,
        owner_folder, owner_inode, owner_born_ns)
    SELECT one, id, created_ms, serial_next, leases, randomblob(32), key_source, key_salt,
        key_memory_kib, key_passes, key_lanes, key_verifier, owner, owner_generation,
        owner_folder, owner_inode, owner_born_ns
    FROM cluster;
DROP TABLE cluster;
ALTER TABLE new_cluster RENAME TO cluster;
