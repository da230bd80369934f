-- The catalog. Identifiers are kept as people spell them, times in
-- milliseconds since 1970 UTC, sizes in bytes, unsigned 64-bit numbers as the
-- signed number with the same bits. Nothing here is specific to SQLite but
-- STRICT and the names of the types.

-- One row: what is true of the whole cluster.
CREATE TABLE cluster (
    one          INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id           TEXT    NOT NULL,
    created_ms   INTEGER NOT NULL,
    -- The next segment serial that nobody ever had. 0 is never one: an
    -- all-zero map entry is a hole.
    serial_next  INTEGER NOT NULL DEFAULT 1 CHECK (serial_next > 0),
    -- Where the key-encryption key comes from, and how it is derived.
    key_source   TEXT    NOT NULL CHECK (key_source IN ('file', 'passphrase')),
    key_salt     BLOB,
    key_memory_kib INTEGER,
    key_passes   INTEGER,
    key_lanes    INTEGER,
    -- A random key, wrapped: a wrong key file or passphrase does not open it.
    key_verifier BLOB    NOT NULL
) STRICT;

CREATE TABLE units (
    id       TEXT    NOT NULL PRIMARY KEY,
    url      TEXT    NOT NULL UNIQUE,
    added_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE copysets (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number BETWEEN 0 AND 4095)
) STRICT;

CREATE TABLE copyset_members (
    copyset INTEGER NOT NULL REFERENCES copysets (number),
    place   INTEGER NOT NULL,
    unit    TEXT    NOT NULL REFERENCES units (id),
    PRIMARY KEY (copyset, place),
    UNIQUE (copyset, unit)
) STRICT;

-- Who sealed what, and the key, wrapped. A row goes when neither a volume nor
-- a version nor a younger lineage refers to it: what it sealed is then erased.
CREATE TABLE lineages (
    lineage     TEXT    NOT NULL PRIMARY KEY,
    parent      TEXT REFERENCES lineages (lineage),
    epoch_first INTEGER NOT NULL,
    wrapped     BLOB
) STRICT;
CREATE INDEX lineages_parent ON lineages (parent);

-- The versions of all volumes form one forest. They outlive their volume
-- where a snapshot or a clone needs them.
CREATE TABLE versions (
    volume        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    parent_volume TEXT,
    parent_number INTEGER,
    lineage       TEXT    NOT NULL REFERENCES lineages (lineage),
    epoch         INTEGER NOT NULL,
    journal_next  INTEGER NOT NULL,
    created_ms    INTEGER NOT NULL,
    record        BLOB    NOT NULL,
    PRIMARY KEY (volume, number),
    FOREIGN KEY (parent_volume, parent_number) REFERENCES versions (volume, number)
) STRICT;
CREATE INDEX versions_parent ON versions (parent_volume, parent_number);
CREATE INDEX versions_lineage ON versions (lineage);

CREATE TABLE volumes (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    size_bytes  INTEGER NOT NULL CHECK (size_bytes > 0),
    block_bytes INTEGER NOT NULL,
    encryption        TEXT    NOT NULL CHECK (encryption IN ('aes-256-gcm', 'none')),
    replicas    INTEGER NOT NULL CHECK (replicas BETWEEN 1 AND 4),
    lineage     TEXT    NOT NULL REFERENCES lineages (lineage),
    -- The last lease's epoch; it only grows.
    epoch       INTEGER NOT NULL,
    -- The largest version number ever used.
    number_last INTEGER NOT NULL,
    -- From where on the journal is newer than the last commit.
    journal_next INTEGER NOT NULL DEFAULT 0,
    head_volume TEXT,
    head_number INTEGER,
    -- The snapshot it was cloned from, which may be gone.
    origin      TEXT,
    -- What its owner asked for: it is served again after a restart.
    exported    TEXT CHECK (exported IN ('read-write', 'read-only')),
    -- A journal may hold writes that the head has not.
    attached    INTEGER NOT NULL DEFAULT 0,
    deleting    INTEGER NOT NULL DEFAULT 0,
    -- Why it could not be opened last time.
    failure     TEXT,
    created_ms  INTEGER NOT NULL,
    FOREIGN KEY (head_volume, head_number) REFERENCES versions (volume, number)
) STRICT;
CREATE UNIQUE INDEX volumes_name ON volumes (name) WHERE deleting = 0;
CREATE INDEX volumes_head ON volumes (head_volume, head_number);
CREATE INDEX volumes_lineage ON volumes (lineage);

CREATE TABLE snapshots (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL UNIQUE,
    -- Its volume, which may be gone, and the name it had.
    volume         TEXT    NOT NULL,
    volume_name    TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    block_bytes    INTEGER NOT NULL,
    encryption           TEXT    NOT NULL,
    -- The version it holds; none if the volume was empty, or until completed.
    version_volume TEXT,
    version_number INTEGER,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'completed', 'error')),
    reason         TEXT,
    created_ms     INTEGER NOT NULL,
    FOREIGN KEY (version_volume, version_number) REFERENCES versions (volume, number)
) STRICT;
CREATE INDEX snapshots_volume ON snapshots (volume);
CREATE INDEX snapshots_version ON snapshots (version_volume, version_number);

-- Segment serials handed out to a lease whose use was not committed yet.
CREATE TABLE serial_ranges (
    first      INTEGER NOT NULL PRIMARY KEY,
    end_before INTEGER NOT NULL,
    volume     TEXT    NOT NULL,
    epoch      INTEGER NOT NULL
) STRICT;
CREATE INDEX serial_ranges_volume ON serial_ranges (volume, epoch);

-- Segments that were still being filled at a lease's last commit.
CREATE TABLE open_segments (
    volume  TEXT    NOT NULL,
    epoch   INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    slots   INTEGER NOT NULL,
    PRIMARY KEY (volume, epoch, segment)
) STRICT;

-- Slots of removed versions that wait for their grace period to end.
CREATE TABLE pending_frees (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    not_before_ms INTEGER NOT NULL,
    plan          BLOB    NOT NULL
) STRICT;
CREATE INDEX pending_frees_due ON pending_frees (not_before_ms);
