-- The URLs of units held the path as it is; now it is percent-encoded, and a
-- percent sign in a path is no code.
UPDATE units SET url = replace(url, '%', '%25');
