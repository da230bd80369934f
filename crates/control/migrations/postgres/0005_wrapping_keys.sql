-- Wrapping keys: any number of them, and which one wraps which data key
-- (docs/keys.md).

CREATE TABLE wrapping_keys (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    -- JSON, the agents' own: what a key is made of, and a random key that was
    -- wrapped with it. Nothing in it is secret.
    parameters  TEXT    NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'active'
                    CHECK (state IN ('active', 'retiring', 'retired')),
    -- Which key takes over what one that is retiring still wraps.
    replaced_by TEXT    REFERENCES wrapping_keys (id) ON DELETE SET NULL,
    created_ms  BIGINT NOT NULL
);

-- Null as long as there is no data key.
ALTER TABLE lineages ADD COLUMN wrapping_key TEXT REFERENCES wrapping_keys (id);
CREATE INDEX lineages_wrapping_key ON lineages (wrapping_key, lineage);

-- The one key that there was is called `main` from now on. Its parameters are
-- spelt as JSON when this step is done, and taken out of here.
CREATE TABLE former_key (
    source     TEXT NOT NULL,
    salt       BYTEA,
    memory_kib BIGINT,
    passes     BIGINT,
    lanes      BIGINT,
    verifier   BYTEA NOT NULL
);
INSERT INTO former_key (source, salt, memory_kib, passes, lanes, verifier)
    SELECT key_source, key_salt, key_memory_kib, key_passes, key_lanes, key_verifier
    FROM cluster WHERE key_source IS NOT NULL;
INSERT INTO wrapping_keys (id, name, parameters, created_ms)
    SELECT 'key-' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 17), 'main', '{}', created_ms
    FROM cluster WHERE key_source IS NOT NULL;
UPDATE lineages SET wrapping_key = (SELECT id FROM wrapping_keys) WHERE wrapped IS NOT NULL;

ALTER TABLE cluster DROP COLUMN key_source;
ALTER TABLE cluster DROP COLUMN key_salt;
ALTER TABLE cluster DROP COLUMN key_memory_kib;
ALTER TABLE cluster DROP COLUMN key_passes;
ALTER TABLE cluster DROP COLUMN key_lanes;
ALTER TABLE cluster DROP COLUMN key_verifier;
