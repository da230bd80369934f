-- D's inode: with its path, it tells a copy from the original where the file
-- system does not know when D was made.
ALTER TABLE cluster ADD COLUMN owner_inode INTEGER;
