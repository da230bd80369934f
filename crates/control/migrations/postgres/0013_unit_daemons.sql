-- Unit daemons are parties, too (docs/units.md, "Daemons").
ALTER TABLE parties DROP CONSTRAINT parties_kind_check;
ALTER TABLE parties ADD CONSTRAINT parties_kind_check CHECK (kind IN ('user', 'host', 'unit'));
