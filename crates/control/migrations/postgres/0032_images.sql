-- How a volume is a base image: `marked` or `pinned`; NULL of one that is none.
ALTER TABLE volumes ADD COLUMN image TEXT;
-- How often an image was pinned no more: hosts that had heard of another number let go of
-- what stays in their caches.
ALTER TABLE cluster ADD COLUMN unpins BIGINT NOT NULL DEFAULT 0;
-- Images that hosts are to read into their caches, or have read.
CREATE TABLE preloads (
    volume         TEXT NOT NULL,
    host           TEXT NOT NULL,
    -- Which wish it is.
    generation     BIGINT NOT NULL,
    -- What is read.
    version_volume TEXT NOT NULL,
    version_number BIGINT NOT NULL,
    state          TEXT NOT NULL,
    done_bytes     BIGINT NOT NULL DEFAULT 0,
    all_bytes      BIGINT,
    reason         TEXT,
    created_ms     BIGINT NOT NULL,
    ended_ms       BIGINT,
    PRIMARY KEY (volume, host)
);
CREATE INDEX preloads_by_host ON preloads (host);
CREATE INDEX preloads_by_version ON preloads (version_volume, version_number);
