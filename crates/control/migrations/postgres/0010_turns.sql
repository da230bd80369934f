-- Nothing but its lock: every change shares it, and one that others came in
-- between too often takes it for itself (docs/service.md, "Database").
CREATE TABLE turns ();
