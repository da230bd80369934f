-- The salt of each lease: with the lineage's key it makes the key of what was
-- written under that epoch. It goes when the lineage is forgotten.
CREATE TABLE lease_salts (
    lineage TEXT    NOT NULL REFERENCES lineages (lineage) ON DELETE CASCADE,
    epoch   INTEGER NOT NULL,
    salt    BLOB    NOT NULL,
    PRIMARY KEY (lineage, epoch)
) STRICT;
