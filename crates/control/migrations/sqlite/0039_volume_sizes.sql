-- How long a volume's journal is, and what it may have of the active area of each host's cache
-- at most, in bytes; NULL: as its host has it for all, and its fair share.
ALTER TABLE volumes ADD COLUMN journal_bytes INTEGER;
ALTER TABLE volumes ADD COLUMN cache_max_bytes INTEGER;
