-- Who may ask: users and hosts (docs/service.md, "Identity").
CREATE TABLE parties (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('user', 'host')),
    name          TEXT    NOT NULL,
    -- May everything but read volumes: for that it has no key.
    administrator BIGINT  NOT NULL DEFAULT 0,
    -- Its requests are refused, whatever certificate it shows.
    disabled      BIGINT  NOT NULL DEFAULT 0,
    created_ms    BIGINT  NOT NULL,
    UNIQUE (kind, name)
);

-- The keys by which each is known: SHA-256 of the public key.
CREATE TABLE party_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    party       TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    added_ms    BIGINT  NOT NULL
);
CREATE INDEX party_keys_party ON party_keys (party);

-- Tokens that are good for one certificate each, by their SHA-256.
CREATE TABLE join_tokens (
    hash       BYTEA   NOT NULL PRIMARY KEY,
    party      TEXT    NOT NULL REFERENCES parties (id) ON DELETE CASCADE,
    expires_ms BIGINT  NOT NULL
);
CREATE INDEX joins_party ON join_tokens (party);

-- Who changed what. A row is written in the transaction that it tells of.
CREATE TABLE audit (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms   BIGINT  NOT NULL,
    -- Its name, `scree://user/alice`, or where it came from, and its key.
    who     TEXT    NOT NULL,
    key     TEXT,
    address TEXT,
    action  TEXT    NOT NULL,
    target  TEXT    NOT NULL
);
