-- The volumes beside its own that a chain writes, as its policy names them.
CREATE TABLE chain_volumes (
    chain  TEXT NOT NULL,
    name   TEXT NOT NULL,
    volume TEXT NOT NULL,
    PRIMARY KEY (chain, name)
) STRICT;
CREATE INDEX chain_volumes_by_volume ON chain_volumes (volume);
