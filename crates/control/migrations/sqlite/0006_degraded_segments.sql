-- Segments with slots of which some unit has no copy: it was away when they
-- were put. Noted before the version that names them is committed; gone when
-- the segment is.
CREATE TABLE degraded_segments (
    segment INTEGER NOT NULL PRIMARY KEY,
    volume  TEXT    NOT NULL,
    slots   INTEGER NOT NULL CHECK (slots > 0)
) STRICT;
CREATE INDEX degraded_segments_volume ON degraded_segments (volume);
