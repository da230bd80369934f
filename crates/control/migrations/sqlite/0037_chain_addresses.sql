-- Where chains have replicas that are no volumes: ADDRESS:PORT/EXPORT.
CREATE TABLE chain_addresses (
    chain   TEXT NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (chain, address)
);
CREATE INDEX chain_addresses_by_address ON chain_addresses (address);
