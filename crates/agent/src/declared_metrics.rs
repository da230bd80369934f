//! The metrics of a host. Blocks are of 4 KiB in all of them.

metrics::declare! {
    CONTROLLER_ANSWER_AGE: Gauge "scree_controller_answer_age_seconds" []
        "Time since a controller last answered";
    LEASE_AGE: Gauge "scree_lease_age_seconds" []
        "Time since the leases of this host were renewed; missing with `scree up`, whose leases \
         do not end";
    LEASE_STALL: Gauge "scree_lease_stall_seconds" []
        "The age of a lease at which its volume stalls";
    LEASES: Gauge "scree_leases" [] "Leases that this host has";
    UNIT_INFO: Gauge "scree_unit_info" ["unit": "the unit's id", "url": "its location"]
        "Always 1; the labels have the location of a unit";
    UNIT_STATE: Gauge "scree_unit_state"
        ["unit": "the unit's id", "state": "each of the [states](unit-states.md)"]
        "Whether a unit is in this state, as this host sees it";
    UNIT_BYTES: Gauge "scree_unit_bytes" ["unit": "the unit's id"]
        "Bytes of segments on a unit";
    UNIT_FREE_BYTES: Gauge "scree_unit_free_bytes" ["unit": "the unit's id"]
        "Free bytes of a unit's file system, which other units may share";
    UNIT_SEGMENTS: Gauge "scree_unit_segments" ["unit": "the unit's id"] "Segments on a unit";
    UNIT_READ_BYTES: Counter "scree_unit_read_bytes" ["unit": "the unit's id"]
        "Bytes of blocks that this host has read from a unit";
    UNIT_WRITTEN_BYTES: Counter "scree_unit_written_bytes" ["unit": "the unit's id"]
        "Bytes of blocks that this host has written to a unit";
    UNIT_CALL_DURATION: Histogram "scree_unit_call_duration_seconds"
        ["unit": "the unit's id", "verb": "`read`; `write` for puts and syncs; `release` for \
         frees and deletes; `probe`"]
        "Duration of this host's calls of a unit, also of those that failed; reads from memory \
         are not counted";
    UNIT_ERRORS: Counter "scree_unit_errors"
        ["unit": "the unit's id", "kind": "of error, as `unavailable`, `full`, `no-slot`"]
        "This host's calls of a unit that failed, by kind of error";
    REPAIR_COPYSETS_WAITING: Gauge "scree_repair_copysets_waiting" []
        "Copysets with a member that is not in sync, as far as this host knows";
    REPAIR_PASSES: Counter "scree_repair_passes" []
        "Passes over a copyset that this host has completed";
    REPAIR_COPIED_BYTES: Counter "scree_repair_copied_bytes" []
        "Bytes that this host has copied to members which were missing them";
    REPAIR_ROTTEN_SLOTS: Counter "scree_repair_rotten_slots" []
        "Slots of which this host found no intact copy, each time that it looked";
    VOLUMES_OPEN: Gauge "scree_volumes_open" [] "Volumes that are open here";
    VOLUMES_STALLED: Gauge "scree_volumes_stalled" [] "Open volumes that wait for their leases";
    VOLUME_JOURNAL_BYTES: Gauge "scree_volume_journal_bytes" ["volume": "the volume's id"]
        "Size of an open volume's journal";
    VOLUME_JOURNAL_USED_BYTES: Gauge "scree_volume_journal_used_bytes"
        ["volume": "the volume's id"]
        "Bytes in an open volume's journal that wait to be destaged";
    VOLUME_CONNECTIONS: Gauge "scree_volume_connections" ["volume": "the volume's id"]
        "Connections of NBD clients to an open volume";
    VOLUME_STALLED: Gauge "scree_volume_stalled" ["volume": "the volume's id"]
        "Whether an open volume waits for its lease: it acknowledges reads only";
    VOLUME_STOPPED: Gauge "scree_volume_stopped" ["volume": "the volume's id"]
        "Whether an open volume has stopped: all its requests fail";
    VOLUME_DESTAGE_FAILING: Gauge "scree_volume_destage_failing" ["volume": "the volume's id"]
        "Whether destaging of an open volume fails";
    VOLUME_READS_WAITING: Gauge "scree_volume_reads_waiting" ["volume": "the volume's id"]
        "Requests of an open volume that wait to read from unavailable units";
    VOLUME_UNRESPONSIVE: Gauge "scree_volume_unresponsive" ["volume": "the volume's id"]
        "Whether an open volume does not answer: its other rows are from its last answer";
    VOLUME_BLOCKS_WRITTEN: Counter "scree_volume_blocks_written" ["volume": "the volume's id"]
        "Blocks written to a volume since it was opened here";
    VOLUME_BLOCKS_DESTAGED: Counter "scree_volume_blocks_destaged" ["volume": "the volume's id"]
        "Blocks of a volume that were put on units since it was opened here";
    CACHE_REQUESTED_BLOCKS: Counter "scree_cache_requested_blocks"
        ["area": "`metadata`, `image`, `active`", "from": "`memory`, `file`, `units`"]
        "Requested blocks by where they were found";
    CACHE_MEMORY_BYTES: Gauge "scree_cache_memory_bytes" ["kind": "`used`, `capacity`"]
        "Memory that the cache uses, and may use";
    CACHE_AREA_BYTES: Gauge "scree_cache_area_bytes" ["area": "`metadata`, `image`, `active`"]
        "Bytes in an area of the cache's file";
    CACHE_AREA_CAPACITY_BYTES: Gauge "scree_cache_area_capacity_bytes" ["area": "`metadata`, `image`, `active`"]
        "Bytes that an area of the cache's file may have";
    CACHE_INSERTED_BLOCKS: Counter "scree_cache_inserted_blocks" ["area": "`metadata`, `image`, `active`"]
        "Blocks that were put into an area";
    CACHE_EVICTED_BLOCKS: Counter "scree_cache_evicted_blocks" ["area": "`metadata`, `image`, `active`"]
        "Blocks that were evicted from an area";
    CACHE_PROTECTED_BYTES: Gauge "scree_cache_protected_bytes" []
        "Map pages of the newest versions of attached volumes in the cache's file";
    CACHE_PINNED_BYTES: Gauge "scree_cache_pinned_bytes" []
        "Blocks of pinned images in the cache's file";
    CACHE_DAMAGED_BLOCKS: Counter "scree_cache_damaged_blocks" []
        "Blocks of the cache's file that were damaged, and were read from units";
    CACHE_REFUSED_BLOCKS: Counter "scree_cache_refused_blocks" []
        "Blocks that were not stored because too many were being written";
    CACHE_FAILURES: Counter "scree_cache_failures" []
        "Failures and timeouts of the cache's file: after a failure it is not used for 10 s, \
         after no answer in 100 ms until it answers";
    VOLUME_CACHE_REQUESTED_BLOCKS: Counter "scree_volume_cache_requested_blocks"
        ["volume": "the volume's id", "area": "`metadata`, `image`, `active`", "from": "`memory`, `file`, `units`"]
        "Requested blocks of an open volume by where they were found";
    VOLUME_READ_AHEAD_BLOCKS: Counter "scree_volume_read_ahead_blocks"
        ["volume": "the volume's id", "kind": "`read`, and of these `used` or evicted `unread`"]
        "Blocks that were read ahead for an open volume";
    ROWS_LEFT_OUT: Gauge "scree_rows_left_out" ["of": "`units`, `volumes`"]
        "Units and volumes beyond 1,000, which have no rows here";
}
