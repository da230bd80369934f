-- The catalog in SQLite. The PostgreSQL schema has the same tables and columns.
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
    one                INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id                 TEXT    NOT NULL,
    created_ms         INTEGER NOT NULL,
    -- The key with which hosts authenticate what they write to units, wrapped. It decrypts no data.
    authentication_key BLOB    NOT NULL,
    -- Fingerprint of the certificate of the authority that signs users, hosts and controllers; null
    -- until a controller has recorded it. The authority's key is in the controllers' folders only.
    authority          TEXT,
    -- The next segment serial that was never handed out. 0 is never a serial, since a map entry of
    -- zeros is a hole.
    serial_next        INTEGER NOT NULL DEFAULT 1 CHECK (serial_next > 0),
    -- How many leases were ever granted. Every unit remembers the count as well: a unit that knows
    -- of more leases than the database proves that the database is an old copy.
    leases             INTEGER NOT NULL DEFAULT 0 CHECK (leases >= 0),
    -- How many times a unit became a member of a copyset that existed already.
    joins              INTEGER NOT NULL DEFAULT 0,
    -- How many times an image was unpinned. A host that knows another count evicts the images that
    -- are no longer pinned.
    unpins             INTEGER NOT NULL DEFAULT 0,
    -- Which copy of the database this is: units accept changes from one copy only. The location
    -- below tells a copy from the original, because it cannot be copied along.
    owner              TEXT,
    owner_generation   INTEGER NOT NULL DEFAULT 0 CHECK (owner_generation >= 0),
    -- The data directory's path as a URI spells it, its inode, and its birth time in nanoseconds
    -- since 1970 where the file system knows it; or the location of the PostgreSQL server.
    owner_folder       TEXT,
    owner_inode        INTEGER,
    owner_born_ns      INTEGER
) STRICT;

------------------------------------------------------------------------------------------------
-- Principals, keys, rights (docs/internals/desired-state.md)
------------------------------------------------------------------------------------------------

-- Everything that can authenticate: users, hosts and unit daemons.
CREATE TABLE parties (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('user', 'host', 'unit')),
    name          TEXT    NOT NULL,
    -- An administrator may do everything except read volumes, for which it has no key.
    administrator INTEGER NOT NULL DEFAULT 0,
    -- Requests of a disabled party are refused, whatever certificate it shows.
    disabled      INTEGER NOT NULL DEFAULT 0,
    created_ms    INTEGER NOT NULL,
    UNIQUE (kind, name)
) STRICT;

-- The public keys of each party, as SHA-256 of the key.
CREATE TABLE party_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    party       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    added_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX party_keys_party ON party_keys (party);

-- Tokens that are good for one certificate each, as SHA-256 of the token.
CREATE TABLE join_tokens (
    hash       BLOB    NOT NULL PRIMARY KEY,
    party      TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX join_tokens_party ON join_tokens (party);

-- The audit log: who changed what. A row is written in the transaction that it describes.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms   INTEGER NOT NULL,
    -- The party's URI, such as `scree://user/alice`, its key's fingerprint and its address.
    who     TEXT    NOT NULL,
    key     TEXT,
    address TEXT,
    action  TEXT    NOT NULL,
    target  TEXT    NOT NULL
) STRICT;

-- Projects, to which quotas apply. A null limit means no limit.
CREATE TABLE projects (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    volumes_max   INTEGER,
    snapshots_max INTEGER,
    bytes_max     INTEGER,
    created_ms    INTEGER NOT NULL
) STRICT;

-- Which parties may charge volumes to which project.
CREATE TABLE project_members (
    project TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    party   TEXT NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    PRIMARY KEY (project, party)
) STRICT;
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
    created_ms INTEGER NOT NULL,
    UNIQUE (object, party, right_name, vm)
) STRICT;
CREATE INDEX grants_party ON grants (party, object);

-- Tags of volumes and snapshots.
CREATE TABLE tags (
    object TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (object, key)
) STRICT;
CREATE INDEX tags_key ON tags (key, value, object);

-- What was created under each idempotency key. Rows are kept for a day.
CREATE TABLE idempotency (
    party      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    -- Digest of the request's method, path and body.
    request    TEXT    NOT NULL,
    object     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (party, key)
) STRICT;
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
    created_ms  INTEGER NOT NULL
) STRICT;

------------------------------------------------------------------------------------------------
-- Units, copysets, repair (docs/internals/redundancy.md)
------------------------------------------------------------------------------------------------

-- Storage units.
CREATE TABLE units (
    id              TEXT    NOT NULL PRIMARY KEY,
    url             TEXT    NOT NULL,
    added_ms        INTEGER NOT NULL,
    -- A draining unit becomes a member of no further copyset.
    draining        INTEGER NOT NULL DEFAULT 0,
    -- How many leases were recorded on the unit, as reported by the hosts that recorded them.
    leases          INTEGER NOT NULL DEFAULT 0,
    -- Since when every host that reports anything reports the unit missing, and when that was
    -- checked last. After a time in which no host reported, the first starts again.
    missing_ms      INTEGER,
    missing_seen_ms INTEGER,
    -- The folder that the unit's daemon serves, and when the daemon was last heard of.
    daemon_location TEXT,
    heard_ms        INTEGER,
    -- A second daemon that claimed the same unit, and when.
    duplicate_url   TEXT,
    duplicate_ms    INTEGER
) STRICT;
CREATE INDEX units_url ON units (url);

-- The failure zone of a unit. A row may precede the unit's daemon. A unit without a row is a zone
-- of its own.
CREATE TABLE unit_zones (
    unit TEXT NOT NULL PRIMARY KEY,
    zone TEXT NOT NULL
) STRICT;

-- Units that were removed. None of them is added again with what it held then.
CREATE TABLE removed_units (
    id         TEXT    NOT NULL PRIMARY KEY,
    url        TEXT    NOT NULL,
    removed_ms INTEGER NOT NULL
) STRICT;

-- Copysets and the state of their repair.
CREATE TABLE copysets (
    number            INTEGER NOT NULL PRIMARY KEY CHECK (number BETWEEN 0 AND 4095),
    -- How many of the members hold data; the others hold parity. 1: every member holds a copy.
    data              INTEGER NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8),
    -- The host that repairs it now, the one that did last, and until when that one may have changed
    -- anything on the units.
    repairer          TEXT,
    repairer_last     TEXT,
    repairer_until_ms INTEGER NOT NULL DEFAULT 0,
    -- The host whose report made a member suspect last.
    suspected_by      TEXT,
    -- Earliest time of the next attempt, attempts that failed since the last success, and why.
    repair_after_ms   INTEGER NOT NULL DEFAULT 0,
    repair_tries      INTEGER NOT NULL DEFAULT 0,
    repair_problem    TEXT,
    -- Progress of the running repair.
    repair_done       INTEGER NOT NULL DEFAULT 0,
    repair_all        INTEGER NOT NULL DEFAULT 0,
    -- 1: every slot is to be read and compared; 2: the members' lists are to be compared.
    scrub_requested   INTEGER NOT NULL DEFAULT 0,
    scrubbed_ms       INTEGER NOT NULL DEFAULT 0,
    -- Slots that the last scrub found corrupt on every member.
    corrupt_slots     INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The units of each copyset. A draining member shares its position with the unit that replaces it.
CREATE TABLE copyset_members (
    copyset       INTEGER NOT NULL REFERENCES copysets (number),
    position      INTEGER NOT NULL,
    unit          TEXT    NOT NULL REFERENCES units (id),
    state         TEXT    NOT NULL DEFAULT 'in_sync'
                      CHECK (state IN ('in_sync', 'rebuilding', 'draining')),
    -- The value of `cluster.joins` when it became a member; 0: a member since the copyset exists.
    join_number   INTEGER NOT NULL DEFAULT 0,
    -- The value of `cluster.joins` when its replacement joined; null: it is not being replaced.
    -- Segments written before that are on it, later ones are not.
    leave_number  INTEGER,
    -- How many times it may have missed a write, and when it last did.
    misses        INTEGER NOT NULL DEFAULT 0,
    missed_ms     INTEGER NOT NULL DEFAULT 0,
    -- Since when the state has been what it is; 0: since the copyset exists.
    since_ms      INTEGER NOT NULL DEFAULT 0,
    -- While rebuilding: only slots in this set may differ from what was written; null: any may.
    in_flight_set INTEGER,
    -- 1: an interrupted repair may have left partial data since it was last in sync.
    is_unknown    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (copyset, unit)
) STRICT;
CREATE UNIQUE INDEX copyset_members_position ON copyset_members (copyset, position)
    WHERE state <> 'draining';
CREATE INDEX copyset_members_unit ON copyset_members (unit);

-- Segments with slots of which some unit has no copy because it was unavailable when they were
-- written. Recorded before the version that refers to them is committed; deleted with the segment.
CREATE TABLE degraded_segments (
    segment INTEGER NOT NULL PRIMARY KEY,
    volume  TEXT    NOT NULL,
    slots   INTEGER NOT NULL CHECK (slots > 0)
) STRICT;
CREATE INDEX degraded_segments_volume ON degraded_segments (volume);

-- What hosts may have been writing at one moment.
CREATE TABLE in_flight_sets (
    id    INTEGER NOT NULL PRIMARY KEY,
    at_ms INTEGER NOT NULL
) STRICT;

-- Serials of the segments of a set that were open, reserved, or not handed out yet. A null copyset
-- means any.
CREATE TABLE in_flight_serials (
    in_flight_set INTEGER NOT NULL,
    copyset       INTEGER,
    first         INTEGER NOT NULL,
    end_before    INTEGER NOT NULL
) STRICT;
CREATE INDEX in_flight_serials_set ON in_flight_serials (in_flight_set);

-- Reports of hosts that a unit may be missing something. A row is kept until all copysets of the
-- unit are in sync.
CREATE TABLE unit_suspicions (
    unit     TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    -- 1: the unit's content is older than it once was.
    is_older INTEGER NOT NULL,
    PRIMARY KEY (unit, host)
) STRICT;

------------------------------------------------------------------------------------------------
-- Lineages, versions, segments (docs/internals/formats.md)
------------------------------------------------------------------------------------------------

-- Lineages, each with its wrapped data key. A row is deleted when no volume, version or younger
-- lineage refers to it; what it sealed is then cryptographically erased.
CREATE TABLE lineages (
    lineage      TEXT    NOT NULL PRIMARY KEY,
    parent       TEXT REFERENCES lineages (lineage),
    epoch_first  INTEGER NOT NULL,
    -- The data key, and the key that wraps it; null until a host has created the data key.
    wrapped      BLOB,
    wrapping_key TEXT REFERENCES wrapping_keys (id)
) STRICT;
CREATE INDEX lineages_parent ON lineages (parent);
CREATE INDEX lineages_wrapping_key ON lineages (wrapping_key, lineage);

-- The salt of each lease. With the lineage's key it makes the key of that epoch. It is deleted with
-- the lineage.
CREATE TABLE lease_salts (
    lineage TEXT    NOT NULL REFERENCES lineages (lineage) ON DELETE CASCADE,
    epoch   INTEGER NOT NULL,
    salt    BLOB    NOT NULL,
    PRIMARY KEY (lineage, epoch)
) STRICT;

-- The versions of all volumes, which form one forest. A version outlives its volume where a
-- snapshot or a clone needs it.
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

-- Segment serials that were handed out to a lease and are not committed yet.
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

-- Slots of removed versions that are freed when their grace period has ended.
CREATE TABLE pending_frees (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The volume whose version was removed; empty: not known.
    volume        TEXT    NOT NULL DEFAULT '',
    not_before_ms INTEGER NOT NULL,
    plan          BLOB    NOT NULL,
    -- The lineages under which the slots were written. Unit daemons free no others.
    lineages      TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX pending_frees_due ON pending_frees (not_before_ms);
CREATE INDEX pending_frees_volume ON pending_frees (volume);

-- Slots of erasure-coded segments that no version refers to and that are not worth new parity yet:
-- a free plan for each segment, and the lineages under which it was written.
CREATE TABLE dead_slots (
    segment   INTEGER NOT NULL PRIMARY KEY,
    plan      BLOB NOT NULL,
    lineages  TEXT NOT NULL,
    -- The volume that still fills the segment. Nothing is freed before that is done.
    waits_for TEXT
) STRICT;
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
    size_bytes      INTEGER NOT NULL CHECK (size_bytes > 0),
    block_bytes     INTEGER NOT NULL,
    encryption      TEXT    NOT NULL CHECK (encryption IN ('aes-256-gcm', 'none')),
    -- Redundancy: copies of each segment, or units with data and with parity.
    replicas        INTEGER NOT NULL CHECK (replicas BETWEEN 1 AND 4),
    data            INTEGER NOT NULL DEFAULT 1 CHECK (data BETWEEN 1 AND 8),
    parity          INTEGER NOT NULL DEFAULT 0 CHECK (parity BETWEEN 0 AND 3),
    -- The lineage under which it writes.
    lineage         TEXT    NOT NULL REFERENCES lineages (lineage),
    -- The epoch of the last lease. It only grows.
    epoch           INTEGER NOT NULL,
    -- The largest version number that was ever used.
    number_last     INTEGER NOT NULL,
    -- The state of the volume when it is detached.
    head_volume     TEXT,
    head_number     INTEGER,
    -- The snapshot that it was cloned from, and the version of it. Either may have been deleted.
    -- Nothing before that version was ever a state of this volume.
    origin          TEXT,
    origin_volume   TEXT,
    origin_number   INTEGER,
    -- How many times the volume was restored to an earlier version. What is kept beside the volume
    -- and was acknowledged before that is of no use any more.
    restores        INTEGER NOT NULL DEFAULT 0,
    -- The position in the journal after which it is newer than the last commit.
    journal_next    INTEGER NOT NULL DEFAULT 0,
    -- The last named journal in a shared folder: its lease's epoch and its folder. Null: none.
    journal_epoch   INTEGER,
    journal_folder  TEXT,
    -- How that lease was ended by force: a host that cannot reach the journal opens the volume
    -- without it and reports this.
    journal_taken   TEXT,
    -- Length of its journal, and its share of each host's cache at most. Null: the host's default.
    journal_bytes   INTEGER,
    cache_max_bytes INTEGER,
    -- Whether it is a base image: `marked` or `pinned`; null: it is not.
    image           TEXT,
    -- The host that had a lease on it last.
    last_host       TEXT,
    deleting        INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    FOREIGN KEY (head_volume, head_number) REFERENCES versions (volume, number)
) STRICT;
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
) STRICT;

-- Snapshots. They keep the owner and the project of their volume, and may outlive it.
CREATE TABLE snapshots (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL,
    owner          TEXT    NOT NULL,
    project        TEXT    NOT NULL,
    -- The volume, which may have been deleted, and its name when the snapshot was taken.
    volume         TEXT    NOT NULL,
    volume_name    TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    block_bytes    INTEGER NOT NULL,
    encryption     TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'completed', 'error')),
    -- While pending, 1: the consistency point is in the journal and waits for a version.
    has_consistency_point INTEGER NOT NULL DEFAULT 0,
    -- When completed: the version that it holds; null: the volume was empty.
    version_volume TEXT,
    version_number INTEGER,
    -- In state `error`: what went wrong.
    message        TEXT,
    created_ms     INTEGER NOT NULL,
    FOREIGN KEY (version_volume, version_number) REFERENCES versions (volume, number)
) STRICT;
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
    desired                INTEGER NOT NULL DEFAULT 1,
    forced                 INTEGER NOT NULL DEFAULT 0,
    -- Grows with each change of the desired state. Reports on an older generation are ignored.
    generation             INTEGER NOT NULL DEFAULT 1,
    -- Observed state, and the generation that it belongs to.
    state                  TEXT    NOT NULL DEFAULT 'attaching' CHECK (state IN ('attaching',
                               'attached', 'detaching', 'detached', 'busy', 'error')),
    reported_generation    INTEGER NOT NULL DEFAULT 0,
    -- What keeps it from the desired state, or what was lost; and what the user should know
    -- although nothing is wrong. Each text has the code of an API message.
    problem                TEXT,
    problem_code           TEXT,
    notice                 TEXT,
    notice_code            TEXT,
    -- The last lease that was granted for it: the host's journal may be newer than the head. Null:
    -- none was.
    epoch                  INTEGER,
    -- Read-only: the version that is shown; null: the volume was empty.
    version_volume         TEXT,
    version_number         INTEGER,
    size_bytes             INTEGER,
    -- Where it is served, and the serial number by which the VM knows the device.
    uri                    TEXT,
    tcp_uri                TEXT,
    device                 TEXT,
    -- The chain that is active, as the host reports it, and why the desired one is not.
    chain                  TEXT,
    chain_revision         INTEGER,
    chain_problem          TEXT,
    -- The attachment that replaces this one when it is detached. Null: none does.
    successor_id           TEXT,
    successor_host         TEXT,
    successor_vm           TEXT,
    successor_requested_by TEXT,
    created_ms             INTEGER NOT NULL,
    ended_ms               INTEGER
) STRICT;
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
    revision   INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    UNIQUE (volume, vm)
) STRICT;

-- The volumes beside its own that a chain writes, by the names that its policy has for them.
CREATE TABLE chain_volumes (
    chain  TEXT NOT NULL,
    name   TEXT NOT NULL,
    volume TEXT NOT NULL,
    PRIMARY KEY (chain, name)
) STRICT;
CREATE INDEX chain_volumes_volume ON chain_volumes (volume);

-- Remote replicas that a chain writes, as ADDRESS:PORT/EXPORT.
CREATE TABLE chain_addresses (
    chain   TEXT NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (chain, address)
) STRICT;
CREATE INDEX chain_addresses_address ON chain_addresses (address);

------------------------------------------------------------------------------------------------
-- Hosts and their jobs
------------------------------------------------------------------------------------------------

-- Counters that tell a host that something changed for it.
CREATE TABLE hosts (
    party       TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    -- Grows with every change of the host's desired state.
    assignments INTEGER NOT NULL DEFAULT 0,
    -- Grows when a fresh report is requested. A report whose `report_number` is this value answers it.
    reports_requested INTEGER NOT NULL DEFAULT 0,
    -- Grows when there may be something to clean.
    cleaning_serial INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The last report of each host. Written every two seconds, and therefore apart from `hosts`.
CREATE TABLE host_reports (
    party      TEXT    NOT NULL PRIMARY KEY REFERENCES parties (id) ON DELETE CASCADE,
    heard_ms   INTEGER NOT NULL,
    report_number INTEGER NOT NULL,
    -- Free space that the report names, so that quota checks need not parse it.
    free_bytes INTEGER,
    report     TEXT    NOT NULL
) STRICT;

-- One-time jobs for a host. The request that created one waits for the answer.
CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    host       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    request    TEXT    NOT NULL,
    answer     TEXT,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_host ON jobs (host);

-- Images that hosts read into their caches in advance.
CREATE TABLE preloads (
    volume         TEXT NOT NULL,
    host           TEXT NOT NULL,
    -- Grows with each request for the same volume and host.
    generation     INTEGER NOT NULL,
    -- The version that is read.
    version_volume TEXT NOT NULL,
    version_number INTEGER NOT NULL,
    state          TEXT NOT NULL,
    done_bytes     INTEGER NOT NULL DEFAULT 0,
    total_bytes      INTEGER,
    message        TEXT,
    created_ms     INTEGER NOT NULL,
    ended_ms       INTEGER,
    PRIMARY KEY (volume, host)
) STRICT;
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
    version_number INTEGER NOT NULL,
    -- The units, as JSON.
    units          TEXT NOT NULL,
    files          INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,
    -- How the volume's blocks were placed on units when the audit was requested, as JSON.
    placement      TEXT,
    -- How much the journal of the volume's host held then, where that is known and matters.
    journal_bytes  INTEGER,
    state          TEXT NOT NULL,
    done_bytes     INTEGER NOT NULL DEFAULT 0,
    message        TEXT,
    -- The result, as JSON.
    result         TEXT,
    -- When the host last reported progress. A host that reports none has stopped.
    reported_ms    INTEGER NOT NULL DEFAULT 0,
    created_ms     INTEGER NOT NULL,
    ended_ms       INTEGER
) STRICT;
CREATE INDEX volume_audits_host ON volume_audits (host);
CREATE INDEX volume_audits_volume ON volume_audits (volume);
CREATE INDEX volume_audits_version ON volume_audits (version_volume, version_number);
CREATE INDEX volume_audits_ended ON volume_audits (ended_ms);
