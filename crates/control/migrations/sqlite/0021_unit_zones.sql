-- In which zone a unit is, also one whose daemon has not begun yet (docs/units.md,
-- "Copysets"). What is not here is in a zone of its own.
CREATE TABLE unit_zones (
    unit TEXT PRIMARY KEY,
    zone TEXT NOT NULL
) STRICT;
