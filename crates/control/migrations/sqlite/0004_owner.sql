-- Which copy of the database this is: units are changed by one copy only. The
-- place tells a copy from the original: it cannot be copied along.
ALTER TABLE cluster ADD COLUMN owner TEXT;
ALTER TABLE cluster ADD COLUMN owner_generation INTEGER NOT NULL DEFAULT 0 CHECK (owner_generation >= 0);
-- D's path as a URI spells it, and when it was made, in nanoseconds since 1970,
-- where the file system knows that.
ALTER TABLE cluster ADD COLUMN owner_folder TEXT;
ALTER TABLE cluster ADD COLUMN owner_born_ns INTEGER;
