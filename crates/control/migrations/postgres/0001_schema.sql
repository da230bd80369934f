-- The catalog in PostgreSQL. The SQLite schema has the same tables and columns; only the types and
-- the counters differ.
--
-- Conventions: ids are text as the API spells them; times are milliseconds since 1970 UTC (`_ms`);
-- sizes are bytes (`_bytes`); flags are 0 or 1; unsigned 64-bit numbers are stored as the signed
-- number with the same bits. Order: cluster, principals, units, versions, volumes, snapshots,
-- attachments, hosts.

------------------------------------------------------------------------------------------------
-- Cluster
------------------------------------------------------------------------------------------------

-- The one row that describes the whole cluster.
CREATE TABLE cluster (
    one                BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id                 TEXT    NOT NULL,
    created_ms         BIGINT NOT NULL,
    -- The key with which hosts authenticate what they write to units, wrapped. It decrypts no data.
    authentication_key BYTEA    NOT NULL,
    -- Fingerprint of the certificate of the authority that signs users, hosts and controllers; null
    -- until a controller has recorded it. The authority's key is in the controllers' folders only.
    authority          TEXT,
    -- How many times a unit became a member of a copyset that existed already.
    joins              BIGINT NOT NULL DEFAULT 0,
    -- How many times an image was unpinned. A host that knows another count evicts the images that
    -- are no longer pinned.
    unpins             BIGINT NOT NULL DEFAULT 0,
    -- Which copy of the database this is: units accept changes from one copy only. The location
    -- below tells a copy from the original, because it cannot be copied along.
    owner              TEXT,
    owner_generation   BIGINT NOT NULL DEFAULT 0 CHECK (owner_generation >= 0),
    -- The data directory's path as a URI spells it, its inode, and its birth time in nanoseconds
    -- since 1970 where the file system knows it; or the location of the PostgreSQL server.
    owner_folder       TEXT,
    owner_inode        BIGINT,
    owner_born_ns      BIGINT
);

-- The next segment serials that were never handed out, 64 at a time. 0 is never a serial, since a
-- map entry of zeros is a hole. As a sequence, so that no transaction waits for another's number.
CREATE SEQUENCE serials INCREMENT BY 64 START WITH 1;

-- How many leases were ever granted. Every unit remembers the count as well: a unit that knows of
-- more leases than the database proves that the database is an old copy.
CREATE SEQUENCE leases;

-- An empty table whose lock orders transactions that could not be serialized
-- (src/database/transaction.rs).
CREATE TABLE turns ();

------------------------------------------------------------------------------------------------
-- Principals, keys, rights (docs/internals/desired-state.md)
------------------------------------------------------------------------------------------------

-- Everything that can authenticate: users, hosts and unit daemons.
CREATE TABLE parties (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('user', 'host', 'unit')),
    name          TEXT    NOT NULL,
    -- An administrator may do everything except read volumes, for which it has no key.
    administrator BIGINT NOT NULL DEFAULT 0,
    -- Requests of a disabled party are refused, whatever certificate it shows.
    disabled      BIGINT NOT NULL DEFAULT 0,
    created_ms    BIGINT NOT NULL,
    UNIQUE (kind, name)
);

-- The public keys of each party, as SHA-256 of the key.
CREATE TABLE party_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    party       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    added_ms    BIGINT NOT NULL
);
CREATE INDEX party_keys_party ON party_keys (party);

-- Tokens that are good for one certificate each, as SHA-256 of the token.
CREATE TABLE join_tokens (
    hash       BYTEA    NOT NULL PRIMARY KEY,
    party      TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX join_tokens_party ON join_tokens (party);

-- The audit log: who changed what. A row is written in the transaction that it describes.
CREATE TABLE audit (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms   BIGINT NOT NULL,
    -- The party's URI, such as `scree://user/alice`, its key's fingerprint and its address.
    who     TEXT    NOT NULL,
    key     TEXT,
    address TEXT,
    action  TEXT    NOT NULL,
    target  TEXT    NOT NULL
);

-- Projects, to which quotas apply. A null limit means no limit.
CREATE TABLE projects (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    volumes_max   BIGINT,
    snapshots_max BIGINT,
    bytes_max     BIGINT,
    created_ms    BIGINT NOT NULL
);

-- Which parties may charge volumes to which project.
CREATE TABLE project_members (
    project TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    party   TEXT NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    PRIMARY KEY (project, party)
);
CREATE INDEX project_members_party ON project_members (party);

-- Rights that an owner or an administrator granted to a user on a volume, a snapshot or a host.
CREATE TABLE grants (
    id         TEXT    NOT NULL PRIMARY KEY,
    object     TEXT    NOT NULL,
    party      TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    right_name TEXT    NOT NULL
                   CHECK (right_name IN ('read', 'use', 'snapshot', 'administer')),
    -- On a host: the grant covers VMs whose address starts with this; empty covers all.
    vm         TEXT    NOT NULL DEFAULT '',
    created_ms BIGINT NOT NULL,
    UNIQUE (object, party, right_name, vm)
);
CREATE INDEX grants_party ON grants (party, object);

-- Tags of volumes and snapshots.
CREATE TABLE tags (
    object TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (object, key)
);
CREATE INDEX tags_key ON tags (key, value, object);

-- What was created under each idempotency key. Rows are kept for a day.
CREATE TABLE idempotency (
    party      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    -- Digest of the request's method, path and body.
    request    TEXT    NOT NULL,
    object     TEXT    NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (party, key)
);
CREATE INDEX idempotency_created ON idempotency (created_ms);

-- Wrapping keys, which encrypt the data keys of volumes (docs/reference/key-providers.md).
CREATE TABLE wrapping_keys (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    -- JSON that only agents interpret: how the key is derived, and a random key wrapped with it
    -- as a check. Nothing in it is secret.
    parameters  TEXT    NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'active'
                    CHECK (state IN ('active', 'retiring', 'retired')),
    -- The key that takes over what a retiring key still wraps.
    replaced_by TEXT    REFERENCES wrapping_keys (id) ON DELETE SET NULL,
    created_ms  BIGINT NOT NULL
);

------------------------------------------------------------------------------------------------
-- Units, copysets, repair (docs/internals/redundancy.md)
------------------------------------------------------------------------------------------------

-- Storage units.
CREATE TABLE units (
    id              TEXT    NOT NULL PRIMARY KEY,
    url             TEXT    NOT NULL,
    added_ms        BIGINT NOT NULL,
    -- A draining unit becomes a member of no further copyset.
    draining        BIGINT NOT NULL DEFAULT 0,
    -- How many leases were recorded on the unit, as reported by the hosts that recorded them.
    leases          BIGINT NOT NULL DEFAULT 0,
    -- Since when every host that reports anything reports the unit missing, and when that was
    -- checked last. After a time in which no host reported, the first starts again.
    missing_ms      BIGINT,
    missing_seen_ms BIGINT,
    -- The folder that the unit's daemon serves, and when the daemon was last heard of.
    daemon_location TEXT,
    heard_ms        BIGINT,
    -- A second daemon that claimed the same unit, and when.
    duplicate_url   TEXT,
    duplicate_ms    BIGINT
);
CREATE INDEX units_url ON units (url);

-- The failure zone of a unit. A row may precede the unit's daemon. A unit without a row is a zone
-- of its own.
CREATE TABLE unit_zones (
    unit TEXT NOT NULL PRIMARY KEY,
    zone TEXT NOT NULL
);

-- Units that were removed. None of them is added again with what it held then.
CREATE TABLE removed_units (
    id         TEXT    NOT NULL PRIMARY KEY,
    url        TEXT    NOT NULL,
    removed_ms BIGINT NOT NULL
);

-- Copysets and the state of their repair.
CREATE TABLE copysets (
    number            BIGINT NOT NULL PRIMARY KEY CHECK (number BETWEEN 0 AND 4095),
    -- How many of the members hold data; the others hold parity. 1: every member holds a copy.
    data              BIGINT NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8),
    -- The host that repairs it now, the one that did last, and until when that one may have changed
    -- anything on the units.
    repairer          TEXT,
    repairer_last     TEXT,
    repairer_until_ms BIGINT NOT NULL DEFAULT 0,
    -- The host whose report made a member suspect last.
    suspected_by      TEXT,
    -- Earliest time of the next attempt, attempts that failed since the last success, and why.
    repair_after_ms   BIGINT NOT NULL DEFAULT 0,
    repair_tries      BIGINT NOT NULL DEFAULT 0,
    repair_problem    TEXT,
    -- Progress of the running repair.
    repair_done       BIGINT NOT NULL DEFAULT 0,
    repair_all        BIGINT NOT NULL DEFAULT 0,
    -- 1: every slot is to be read and compared; 2: the members' lists are to be compared.
    scrub_requested   BIGINT NOT NULL DEFAULT 0,
    scrubbed_ms       BIGINT NOT NULL DEFAULT 0,
    -- Slots that the last scrub found corrupt on every member.
    corrupt_slots     BIGINT NOT NULL DEFAULT 0
);

-- The units of each copyset. A draining member shares its position with the unit that replaces it.
CREATE TABLE copyset_members (
    copyset       BIGINT NOT NULL REFERENCES copysets (number),
    position      BIGINT NOT NULL,
    unit          TEXT    NOT NULL REFERENCES units (id),
    state         TEXT    NOT NULL DEFAULT 'in_sync'
                      CHECK (state IN ('in_sync', 'rebuilding', 'draining')),
    -- The value of `cluster.joins` when it became a member; 0: a member since the copyset exists.
    join_number   BIGINT NOT NULL DEFAULT 0,
    -- The value of `cluster.joins` when its replacement joined; null: it is not being replaced.
    -- Segments written before that are on it, later ones are not.
    leave_number  BIGINT,
    -- How many times it may have missed a write, and when it last did.
    misses        BIGINT NOT NULL DEFAULT 0,
    missed_ms     BIGINT NOT NULL DEFAULT 0,
    -- Since when the state has been what it is; 0: since the copyset exists.
    since_ms      BIGINT NOT NULL DEFAULT 0,
    -- While rebuilding: only slots in this set may differ from what was written; null: any may.
    in_flight_set BIGINT,
    -- 1: an interrupted repair may have left partial data since it was last in sync.
    is_unknown    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (copyset, unit)
);
CREATE UNIQUE INDEX copyset_members_position ON copyset_members (copyset, position)
    WHERE state <> 'draining';
CREATE INDEX copyset_members_unit ON copyset_members (unit);

-- Segments with slots of which some unit has no copy because it was unavailable when they were
-- written. Recorded before the version that refers to them is committed; deleted with the segment.
CREATE TABLE degraded_segments (
    segment BIGINT NOT NULL PRIMARY KEY,
    volume  TEXT    NOT NULL,
    slots   BIGINT NOT NULL CHECK (slots > 0)
);
CREATE INDEX degraded_segments_volume ON degraded_segments (volume);

-- What hosts may have been writing at one moment.
CREATE TABLE in_flight_sets (
    id    BIGINT NOT NULL PRIMARY KEY,
    at_ms BIGINT NOT NULL
);

-- Serials of the segments of a set that were open, reserved, or not handed out yet. A null copyset
-- means any.
CREATE TABLE in_flight_serials (
    in_flight_set BIGINT NOT NULL,
    copyset       BIGINT,
    first         BIGINT NOT NULL,
    end_before    BIGINT NOT NULL
);
CREATE INDEX in_flight_serials_set ON in_flight_serials (in_flight_set);

-- Reports of hosts that a unit may be missing something. A row is kept until all copysets of the
-- unit are in sync.
CREATE TABLE unit_suspicions (
    unit     TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    -- 1: the unit's content is older than it once was.
    is_older BIGINT NOT NULL,
    PRIMARY KEY (unit, host)
);

------------------------------------------------------------------------------------------------
-- Lineages, versions, segments (docs/internals/formats.md)
------------------------------------------------------------------------------------------------

-- Lineages, each with its wrapped data key. A row is deleted when no volume, version or younger
-- lineage refers to it; what it sealed is then cryptographically erased.
CREATE TABLE lineages (
    lineage      TEXT    NOT NULL PRIMARY KEY,
    parent       TEXT REFERENCES lineages (lineage),
    epoch_first  BIGINT NOT NULL,
    -- The data key, and the key that wraps it; null until a host has created the data key.
    wrapped      BYTEA,
    wrapping_key TEXT REFERENCES wrapping_keys (id)
);
CREATE INDEX lineages_parent ON lineages (parent);
CREATE INDEX lineages_wrapping_key ON lineages (wrapping_key, lineage);

-- The salt of each lease. With the lineage's key it makes the key of that epoch. It is deleted with
-- the lineage.
CREATE TABLE lease_salts (
    lineage TEXT    NOT NULL REFERENCES lineages (lineage) ON DELETE CASCADE,
    epoch   BIGINT NOT NULL,
    salt    BYTEA    NOT NULL,
    PRIMARY KEY (lineage, epoch)
);

-- The versions of all volumes, which form one forest. A version outlives its volume where a
-- snapshot or a clone needs it.
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

-- Segment serials that were handed out to a lease and are not committed yet.
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

-- Slots of removed versions that are freed when their grace period has ended.
CREATE TABLE pending_frees (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The volume whose version was removed; empty: not known.
    volume        TEXT    NOT NULL DEFAULT '',
    not_before_ms BIGINT NOT NULL,
    plan          BYTEA    NOT NULL,
    -- The lineages under which the slots were written. Unit daemons free no others.
    lineages      TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX pending_frees_due ON pending_frees (not_before_ms);
CREATE INDEX pending_frees_volume ON pending_frees (volume);

-- Slots of erasure-coded segments that no version refers to and that are not worth new parity yet:
-- a free plan for each segment, and the lineages under which it was written.
CREATE TABLE dead_slots (
    segment   BIGINT NOT NULL PRIMARY KEY,
    plan      BYTEA NOT NULL,
    lineages  TEXT NOT NULL,
    -- The volume that still fills the segment. Nothing is freed before that is done.
    waits_for TEXT
);
CREATE INDEX dead_slots_waiting ON dead_slots (waits_for) WHERE waits_for IS NOT NULL;

------------------------------------------------------------------------------------------------
-- Volumes and snapshots
------------------------------------------------------------------------------------------------

-- Volumes, including those that are being deleted.
CREATE TABLE volumes (
    id              TEXT    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    -- The party that owns it, and the project that it is charged to. Empty: none.
    owner           TEXT    NOT NULL DEFAULT '',
    project         TEXT    NOT NULL DEFAULT '',
    size_bytes      BIGINT NOT NULL CHECK (size_bytes > 0),
    block_bytes     BIGINT NOT NULL,
    encryption      TEXT    NOT NULL CHECK (encryption IN ('aes-256-gcm', 'none')),
    -- Redundancy: copies of each segment, or units with data and with parity.
    replicas        BIGINT NOT NULL CHECK (replicas BETWEEN 1 AND 4),
    data            BIGINT NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8),
    parity          BIGINT NOT NULL DEFAULT 0 CHECK (parity BETWEEN 0 AND 3),
    -- The lineage under which it writes.
    lineage         TEXT    NOT NULL REFERENCES lineages (lineage),
    -- The epoch of the last lease. It only grows.
    epoch           BIGINT NOT NULL,
    -- The largest version number that was ever used.
    number_last     BIGINT NOT NULL,
    -- The state of the volume when it is detached.
    head_volume     TEXT,
    head_number     BIGINT,
    -- The snapshot that it was cloned from, and the version of it. Either may have been deleted.
    -- Nothing before that version was ever a state of this volume.
    origin          TEXT,
    origin_volume   TEXT,
    origin_number   BIGINT,
    -- How many times the volume was restored to an earlier version. What is kept beside the volume
    -- and was acknowledged before that is of no use any more.
    restores        BIGINT NOT NULL DEFAULT 0,
    -- The position in the journal after which it is newer than the last commit.
    journal_next    BIGINT NOT NULL DEFAULT 0,
    -- The last named journal in a shared folder: its lease's epoch and its folder. Null: none.
    journal_epoch   BIGINT,
    journal_folder  TEXT,
    -- How that lease was ended by force: a host that cannot reach the journal opens the volume
    -- without it and reports this.
    journal_taken   TEXT,
    -- Length of its journal, and its share of each host's cache at most. Null: the host's default.
    journal_bytes   BIGINT,
    cache_max_bytes BIGINT,
    -- Whether it is a base image: `marked` or `pinned`; null: it is not.
    image           TEXT,
    -- The host that had a lease on it last.
    last_host       TEXT,
    deleting        BIGINT NOT NULL DEFAULT 0,
    created_ms      BIGINT NOT NULL,
    FOREIGN KEY (head_volume, head_number) REFERENCES versions (volume, number)
);
CREATE UNIQUE INDEX volumes_owner_name ON volumes (owner, name) WHERE deleting = 0;
CREATE INDEX volumes_name ON volumes (name);
CREATE INDEX volumes_project ON volumes (project, size_bytes) WHERE deleting = 0;
CREATE INDEX volumes_head ON volumes (head_volume, head_number);
CREATE INDEX volumes_lineage ON volumes (lineage);

-- Deleted volumes of which something remains: versions that snapshots hold, pending frees, degraded
-- segments. The host that had the volume last cleans them.
CREATE TABLE deleted_volumes (
    volume    TEXT NOT NULL PRIMARY KEY,
    last_host TEXT NOT NULL
);

-- Snapshots. They keep the owner and the project of their volume, and may outlive it.
CREATE TABLE snapshots (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL,
    owner          TEXT    NOT NULL,
    project        TEXT    NOT NULL,
    -- The volume, which may have been deleted, and its name when the snapshot was taken.
    volume         TEXT    NOT NULL,
    volume_name    TEXT    NOT NULL,
    size_bytes     BIGINT NOT NULL,
    block_bytes    BIGINT NOT NULL,
    encryption     TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'completed', 'error')),
    -- While pending, 1: the consistency point is in the journal and waits for a version.
    has_consistency_point BIGINT NOT NULL DEFAULT 0,
    -- When completed: the version that it holds; null: the volume was empty.
    version_volume TEXT,
    version_number BIGINT,
    -- In state `error`: what went wrong.
    message        TEXT,
    created_ms     BIGINT NOT NULL,
    FOREIGN KEY (version_volume, version_number) REFERENCES versions (volume, number)
);
CREATE UNIQUE INDEX snapshots_owner_name ON snapshots (owner, name);
CREATE INDEX snapshots_name ON snapshots (name);
CREATE INDEX snapshots_project ON snapshots (project);
CREATE INDEX snapshots_volume ON snapshots (volume);
CREATE INDEX snapshots_version ON snapshots (version_volume, version_number);

------------------------------------------------------------------------------------------------
-- Attachments and chains of filters
------------------------------------------------------------------------------------------------

-- Attachments of volumes to hosts: the desired state, and the state that the host has reported.
CREATE TABLE attachments (
    id                     TEXT    NOT NULL PRIMARY KEY,
    volume                 TEXT    NOT NULL,
    host                   TEXT    NOT NULL REFERENCES parties (id),
    -- The VM that it is plugged into; null: an export without a VM.
    vm                     TEXT,
    access                 TEXT    NOT NULL CHECK (access IN ('read-write', 'read-only')),
    -- The user who requested it; null: Scree did.
    requested_by           TEXT,
    -- Desired state: 1: attached, 0: detached; and whether to detach without the guest's consent,
    -- and without the host if that is unresponsive.
    desired                BIGINT NOT NULL DEFAULT 1,
    forced                 BIGINT NOT NULL DEFAULT 0,
    -- Grows with each change of the desired state. Reports on an older generation are ignored.
    generation             BIGINT NOT NULL DEFAULT 1,
    -- Observed state, and the generation that it belongs to.
    state                  TEXT    NOT NULL DEFAULT 'attaching' CHECK (state IN ('attaching',
                               'attached', 'detaching', 'detached', 'busy', 'error')),
    reported_generation    BIGINT NOT NULL DEFAULT 0,
    -- What keeps it from the desired state, or what was lost; and what the user should know
    -- although nothing is wrong. Each text has the code of an API message.
    problem                TEXT,
    problem_code           TEXT,
    notice                 TEXT,
    notice_code            TEXT,
    -- The last lease that was granted for it: the host's journal may be newer than the head. Null:
    -- none was.
    epoch                  BIGINT,
    -- Read-only: the version that is shown; null: the volume was empty.
    version_volume         TEXT,
    version_number         BIGINT,
    size_bytes             BIGINT,
    -- Where it is served, and the serial number by which the VM knows the device.
    uri                    TEXT,
    tcp_uri                TEXT,
    device                 TEXT,
    -- The chain that is active, as the host reports it, and why the desired one is not.
    chain                  TEXT,
    chain_revision         BIGINT,
    chain_problem          TEXT,
    -- The attachment that replaces this one when it is detached. Null: none does.
    successor_id           TEXT,
    successor_host         TEXT,
    successor_vm           TEXT,
    successor_requested_by TEXT,
    created_ms             BIGINT NOT NULL,
    ended_ms               BIGINT
);
CREATE INDEX attachments_volume ON attachments (volume) WHERE state <> 'detached';
CREATE INDEX attachments_host ON attachments (host) WHERE state <> 'detached';
CREATE INDEX attachments_version ON attachments (version_volume, version_number)
    WHERE state <> 'detached';
-- A volume has one writer.
CREATE UNIQUE INDEX attachments_writer ON attachments (volume)
    WHERE access = 'read-write' AND state <> 'detached';
-- A volume is attached to a VM once.
CREATE UNIQUE INDEX attachments_once ON attachments (volume, host, (COALESCE(vm, '')))
    WHERE state <> 'detached';

-- Chains of filters: the policy of a volume, for one VM or (`vm` empty) for all others.
CREATE TABLE chains (
    id         TEXT    NOT NULL PRIMARY KEY,
    volume     TEXT    NOT NULL,
    vm         TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    revision   BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    UNIQUE (volume, vm)
);

-- The volumes beside its own that a chain writes, by the names that its policy has for them.
CREATE TABLE chain_volumes (
    chain  TEXT NOT NULL,
    name   TEXT NOT NULL,
    volume TEXT NOT NULL,
    PRIMARY KEY (chain, name)
);
CREATE INDEX chain_volumes_volume ON chain_volumes (volume);

-- Remote replicas that a chain writes, as ADDRESS:PORT/EXPORT.
CREATE TABLE chain_addresses (
    chain   TEXT NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (chain, address)
);
CREATE INDEX chain_addresses_address ON chain_addresses (address);

------------------------------------------------------------------------------------------------
-- Hosts and their jobs
------------------------------------------------------------------------------------------------

-- Counters that tell a host that something changed for it.
CREATE TABLE hosts (
    party       TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    -- Grows with every change of the host's desired state.
    assignments BIGINT NOT NULL DEFAULT 0,
    -- Grows when a fresh report is requested. A report whose `report_number` is this value answers it.
    reports_requested BIGINT NOT NULL DEFAULT 0,
    -- Grows when there may be something to clean.
    cleaning_serial BIGINT NOT NULL DEFAULT 0
);

-- The last report of each host. Written every two seconds, and therefore apart from `hosts`.
CREATE TABLE host_reports (
    party      TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    heard_ms   BIGINT NOT NULL,
    report_number BIGINT NOT NULL,
    -- Free space that the report names, so that quota checks need not parse it.
    free_bytes BIGINT,
    report     TEXT    NOT NULL
);

-- One-time jobs for a host. The request that created one waits for the answer.
CREATE TABLE jobs (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    request    TEXT    NOT NULL,
    answer     TEXT,
    created_ms BIGINT NOT NULL
);
CREATE INDEX jobs_host ON jobs (host);

-- Images that hosts read into their caches in advance.
CREATE TABLE preloads (
    volume         TEXT NOT NULL,
    host           TEXT NOT NULL,
    -- Grows with each request for the same volume and host.
    generation     BIGINT NOT NULL,
    -- The version that is read.
    version_volume TEXT NOT NULL,
    version_number BIGINT NOT NULL,
    state          TEXT NOT NULL,
    done_bytes     BIGINT NOT NULL DEFAULT 0,
    total_bytes      BIGINT,
    message        TEXT,
    created_ms     BIGINT NOT NULL,
    ended_ms       BIGINT,
    PRIMARY KEY (volume, host)
);
CREATE INDEX preloads_host ON preloads (host);
CREATE INDEX preloads_version ON preloads (version_volume, version_number);

-- Audits: what some units alone can learn of a volume, as requested and as found by a host.
CREATE TABLE volume_audits (
    id             TEXT NOT NULL PRIMARY KEY,
    volume         TEXT NOT NULL,
    -- The snapshot that was named; null: none was.
    snapshot       TEXT,
    host           TEXT NOT NULL,
    -- The user who requested it and may cancel it.
    principal      TEXT,
    -- The version that is audited, which is kept until the audit has ended.
    version_volume TEXT NOT NULL,
    version_number BIGINT NOT NULL,
    -- The units, as JSON.
    units          TEXT NOT NULL,
    files          BIGINT NOT NULL,
    size_bytes     BIGINT NOT NULL,
    -- How the volume's blocks were placed on units when the audit was requested, as JSON.
    placement      TEXT,
    -- How much the journal of the volume's host held then, where that is known and matters.
    journal_bytes  BIGINT,
    state          TEXT NOT NULL,
    done_bytes     BIGINT NOT NULL DEFAULT 0,
    message        TEXT,
    -- The result, as JSON.
    result         TEXT,
    -- When the host last reported progress. A host that reports none has stopped.
    reported_ms    BIGINT NOT NULL DEFAULT 0,
    created_ms     BIGINT NOT NULL,
    ended_ms       BIGINT
);
CREATE INDEX volume_audits_host ON volume_audits (host);
CREATE INDEX volume_audits_volume ON volume_audits (volume);
CREATE INDEX volume_audits_version ON volume_audits (version_volume, version_number);
CREATE INDEX volume_audits_ended ON volume_audits (ended_ms);
