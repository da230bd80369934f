-- Who owns what, who else may use it, and how much of it there may be
-- (docs/service.md, "Owners, grants and projects").

-- What quotas are for. A limit that is null is none.
CREATE TABLE projects (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    volumes_max   INTEGER,
    snapshots_max INTEGER,
    bytes_max     INTEGER,
    created_ms    INTEGER NOT NULL
) STRICT;

-- Who may make volumes on whose account.
CREATE TABLE project_members (
    project TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    party   TEXT NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    PRIMARY KEY (project, party)
) STRICT;
CREATE INDEX project_members_party ON project_members (party);

-- What an owner, or an administrator, has given to a user: a right on a volume,
-- on a snapshot, or on a host.
CREATE TABLE grants (
    id         TEXT    NOT NULL PRIMARY KEY,
    object     TEXT    NOT NULL,
    party      TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    right_name TEXT    NOT NULL
                   CHECK (right_name IN ('read', 'use', 'snapshot', 'administer')),
    -- On a host: only VMs whose address begins so; every one, if it is empty.
    vm         TEXT    NOT NULL DEFAULT '',
    created_ms INTEGER NOT NULL,
    UNIQUE (object, party, right_name, vm)
) STRICT;
CREATE INDEX grants_party ON grants (party, object);

CREATE TABLE tags (
    object TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (object, key)
) STRICT;
CREATE INDEX tags_key ON tags (key, value, object);

-- What was made under an idempotency key, for a day.
CREATE TABLE idempotency (
    party      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    -- Of method, path and body.
    request    TEXT    NOT NULL,
    object     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (party, key)
) STRICT;
CREATE INDEX idempotency_created ON idempotency (created_ms);

-- All that there is belongs to whoever runs it.
INSERT INTO parties (id, kind, name, administrator, created_ms)
    SELECT 'party-' || substr(lower(hex(randomblob(9))), 1, 17), 'user', 'local', 1, created_ms
    FROM cluster
    WHERE NOT EXISTS (SELECT 1 FROM parties WHERE kind = 'user' AND name = 'local');
INSERT INTO projects (id, name, created_ms)
    SELECT 'proj-' || substr(lower(hex(randomblob(9))), 1, 17), name, created_ms
    FROM parties WHERE kind = 'user';
INSERT INTO project_members (project, party)
    SELECT j.id, p.id FROM projects j JOIN parties p ON p.kind = 'user' AND p.name = j.name;

ALTER TABLE volumes ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE volumes ADD COLUMN project TEXT NOT NULL DEFAULT '';
UPDATE volumes SET
    owner = COALESCE((SELECT id FROM parties WHERE kind = 'user' AND name = 'local'), ''),
    project = COALESCE((SELECT id FROM projects WHERE name = 'local'), '');
-- Names are an owner's affair.
DROP INDEX volumes_name;
CREATE UNIQUE INDEX volumes_owner_name ON volumes (owner, name) WHERE deleting = 0;
CREATE INDEX volumes_name ON volumes (name);
CREATE INDEX volumes_project ON volumes (project, size_bytes) WHERE deleting = 0;

-- (SQLite cannot drop a constraint: the table is made anew.)
CREATE TABLE new_snapshots (
    id             TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL,
    -- Its volume's owner and project, as they were.
    owner          TEXT    NOT NULL,
    project        TEXT    NOT NULL,
    volume         TEXT    NOT NULL,
    volume_name    TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    block_bytes    INTEGER NOT NULL,
    encryption           TEXT    NOT NULL,
    version_volume TEXT,
    version_number INTEGER,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'completed', 'error')),
    reason         TEXT,
    created_ms     INTEGER NOT NULL,
    cut            INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (version_volume, version_number) REFERENCES versions (volume, number)
) STRICT;
INSERT INTO new_snapshots (id, name, owner, project, volume, volume_name, size_bytes,
        block_bytes, encryption, version_volume, version_number, state, reason, created_ms, cut)
    SELECT id, name,
        COALESCE((SELECT id FROM parties WHERE kind = 'user' AND name = 'local'), ''),
        COALESCE((SELECT id FROM projects WHERE name = 'local'), ''),
        volume, volume_name, size_bytes, block_bytes, encryption, version_volume, version_number,
        state, reason, created_ms, cut
    FROM snapshots;
DROP TABLE snapshots;
ALTER TABLE new_snapshots RENAME TO snapshots;
CREATE UNIQUE INDEX snapshots_owner_name ON snapshots (owner, name);
CREATE INDEX snapshots_name ON snapshots (name);
CREATE INDEX snapshots_volume ON snapshots (volume);
CREATE INDEX snapshots_version ON snapshots (version_volume, version_number);
CREATE INDEX snapshots_project ON snapshots (project);

-- Who asked for it; null if Scree did.
ALTER TABLE attachments ADD COLUMN asked_by TEXT;
