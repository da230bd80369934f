-- As which lineages was written what a plan frees: unit daemons free nothing else
-- (docs/units.md, "Who may do what"). A plan that is there already is from before
-- there were daemons.
ALTER TABLE pending_frees ADD COLUMN lineages TEXT NOT NULL DEFAULT '';
