-- Journals in folders that several hosts have (docs/service.md, "Journals on
-- shared storage").

-- The last journal that was named: of which lease, and where it lies. None is,
-- if they are null.
ALTER TABLE volumes ADD COLUMN journal_epoch INTEGER;
ALTER TABLE volumes ADD COLUMN journal_folder TEXT;
-- How its lease was ended by force: whoever does not reach that journal goes on
-- without it, and says this.
ALTER TABLE volumes ADD COLUMN journal_taken TEXT;
