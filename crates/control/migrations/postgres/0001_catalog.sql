-- The catalog. Identifiers are kept as people spell them, times in
-- milliseconds since 1970 UTC, sizes in bytes, unsigned 64-bit numbers as the
-- signed number with the same bits. The same tables as on SQLite, but for the
-- names of the types and the counters.

-- One row: what is true of the whole cluster.
CREATE TABLE cluster (
    one          BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id           TEXT    NOT NULL,
    created_ms   BIGINT NOT NULL,
    -- Where the key-encryption key comes from, and how it is derived.
    key_source   TEXT    NOT NULL CHECK (key_source IN ('file', 'passphrase')),
    key_salt     BYTEA,
    key_memory_kib BIGINT,
    key_passes   BIGINT,
    key_lanes    BIGINT,
    -- A random key, wrapped: a wrong key file or passphrase does not open it.
    key_verifier BYTEA    NOT NULL,
    -- Which copy of the database this is: units are changed by one copy only.
    -- The place tells a copy from the original: it cannot be copied along.
    owner        TEXT,
    owner_generation BIGINT NOT NULL DEFAULT 0 CHECK (owner_generation >= 0),
    -- D's path as a URI spells it, its inode, and when it was made, in
    -- nanoseconds since 1970, where the file system knows that.
    owner_folder TEXT,
    owner_inode  BIGINT,
    owner_born_ns BIGINT
);

-- The next segment serials that nobody ever had, 64 at a time, and how many
-- leases were given. No change waits for another one's number. 0 is never a
-- serial: an all-zero map entry is a hole.
CREATE SEQUENCE serials INCREMENT BY 64 START WITH 1;
CREATE SEQUENCE leases;

CREATE TABLE units (
    id       TEXT    NOT NULL PRIMARY KEY,
    url      TEXT    NOT NULL UNIQUE,
    added_ms BIGINT NOT NULL
);

CREATE TABLE copysets (
    number BIGINT NOT NULL PRIMARY KEY CHECK (number BETWEEN 0 AND 4095)
);

CREATE TABLE copyset_members (
    copyset BIGINT NOT NULL REFERENCES copysets (number),
    place   BIGINT NOT NULL,
    unit    TEXT    NOT NULL REFERENCES units (id),
    PRIMARY KEY (copyset, place),
    UNIQUE (copyset, unit)
);

-- Who sealed what, and the key, wrapped. A row goes when neither a volume nor
-- a version nor a younger lineage refers to it: what it sealed is then erased.
CREATE TABLE lineages (
    lineage     TEXT    NOT NULL PRIMARY KEY,
    parent      TEXT REFERENCES lineages (lineage),
    epoch_first BIGINT NOT NULL,
    wrapped     BYTEA
);
CREATE INDEX lineages_parent ON lineages (parent);

-- The versions of all volumes form one forest. They outlive their volume
-- where a snapshot or a clone needs them.
CREATE TABLE versions (
    volume        TEXT    NOT NULL,
    number        BIGINT NOT NULL,
    parent_volume TEXT,
    parent_number BIGINT,
    lineage       TEXT    NOT NULL REFERENCES lineages (lineage),
    epoch         BIGINT NOT NULL,
    journal_next  BIGINT NOT NULL,
    created_ms    BIGINT NOT NULL,
    record        BYTEA    NOT NULL,
    PRIMARY KEY (volume, number),
    FOREIGN KEY (parent_volume, parent_number) REFERENCES versions (volume, number)
);
CREATE INDEX versions_parent ON versions (parent_volume, parent_number);
CREATE INDEX versions_lineage ON versions (lineage);

CREATE TABLE volumes (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    size_bytes  BIGINT NOT NULL CHECK (size_bytes > 0),
    block_bytes BIGINT NOT NULL,
    encryption        TEXT    NOT NULL CHECK (encryption IN ('aes-256-gcm', 'none')),
    replicas    BIGINT NOT NULL CHECK (replicas BETWEEN 1 AND 4),
    lineage     TEXT    NOT NULL REFERENCES lineages (lineage),
    -- The last lease's epoch; it only grows.
    epoch       BIGINT NOT NULL,
    -- The largest version number ever used.
    number_last BIGINT NOT NULL,
    -- From where on the journal is newer than the last commit.
    journal_next BIGINT NOT NULL DEFAULT 0,
    head_volume TEXT,
    head_number BIGINT,
    -- The snapshot it was cloned from, which may be gone.
    origin      TEXT,
    -- The version that it began as, which may be gone: of what came before it,
    -- nothing was ever the clone's state.
    origin_volume TEXT,
    origin_number BIGINT,
    -- What its owner asked for: it is served again after a restart.
    exported    TEXT CHECK (exported IN ('read-write', 'read-only')),
    -- A journal may hold writes that the head has not.
    attached    BIGINT NOT NULL DEFAULT 0,
    deleting    BIGINT NOT NULL DEFAULT 0,
    -- Why it could not be opened last time.
    failure     TEXT,
    created_ms  BIGINT NOT NULL,
    FOREIGN KEY (head_volume, head_number) REFERENCES versions (volume, number)
);
CREATE UNIQUE INDEX volumes_name ON volumes (name) WHERE deleting = 0;
CREATE INDEX volumes_head ON volumes (head_volume, head_number);
CREATE INDEX volumes_lineage ON volumes (lineage);

CREATE TABLE snapshots (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL UNIQUE,
    -- Its volume, which may be gone, and the name it had.
    volume         TEXT    NOT NULL,
    volume_name    TEXT    NOT NULL,
    size_bytes     BIGINT NOT NULL,
    block_bytes    BIGINT NOT NULL,
    encryption           TEXT    NOT NULL,
    -- The version it holds; none if the volume was empty, or until completed.
    version_volume TEXT,
    version_number BIGINT,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'completed', 'error')),
    reason         TEXT,
    created_ms     BIGINT NOT NULL,
    FOREIGN KEY (version_volume, version_number) REFERENCES versions (volume, number)
);
CREATE INDEX snapshots_volume ON snapshots (volume);
CREATE INDEX snapshots_version ON snapshots (version_volume, version_number);

-- Segment serials handed out to a lease whose use was not committed yet.
CREATE TABLE serial_ranges (
    first      BIGINT NOT NULL PRIMARY KEY,
    end_before BIGINT NOT NULL,
    volume     TEXT    NOT NULL,
    epoch      BIGINT NOT NULL
);
CREATE INDEX serial_ranges_volume ON serial_ranges (volume, epoch);

-- Segments that were still being filled at a lease's last commit.
CREATE TABLE open_segments (
    volume  TEXT    NOT NULL,
    epoch   BIGINT NOT NULL,
    segment BIGINT NOT NULL,
    slots   BIGINT NOT NULL,
    PRIMARY KEY (volume, epoch, segment)
);

-- Slots of removed versions that wait for their grace period to end.
CREATE TABLE pending_frees (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    not_before_ms BIGINT NOT NULL,
    plan          BYTEA    NOT NULL
);
CREATE INDEX pending_frees_due ON pending_frees (not_before_ms);

-- The salt of each lease: with the lineage's key it makes the key of what was
-- written under that epoch. It goes when the lineage is forgotten.
CREATE TABLE lease_salts (
    lineage TEXT    NOT NULL REFERENCES lineages (lineage) ON DELETE CASCADE,
    epoch   BIGINT NOT NULL,
    salt    BYTEA  NOT NULL,
    PRIMARY KEY (lineage, epoch)
);

-- Segments with slots of which some unit has no copy: it was away when they
-- were put. Noted before the version that names them is committed; gone when
-- the segment is.
CREATE TABLE degraded_segments (
    segment BIGINT NOT NULL PRIMARY KEY,
    volume  TEXT   NOT NULL,
    slots   BIGINT NOT NULL CHECK (slots > 0)
);
CREATE INDEX degraded_segments_volume ON degraded_segments (volume);
