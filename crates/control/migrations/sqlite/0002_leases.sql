-- How many leases were ever given. Each unit remembers it too: one that knows
-- of more has seen writes of which this database knows nothing.
ALTER TABLE cluster ADD COLUMN leases INTEGER NOT NULL DEFAULT 0 CHECK (leases >= 0);
