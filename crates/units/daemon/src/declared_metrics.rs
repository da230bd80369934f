//! The metrics of a unit daemon.

metrics::declare! {
    DAEMON_INFO: Gauge "scree_daemon_info" ["unit": "the unit's id", "url": "as hosts reach it"]
        "Always 1; the labels have the unit that the daemon serves, and its address";
    CONFIG_AGE: Gauge "scree_daemon_config_age_seconds" []
        "Time since the daemon applied a controller's configuration, which it requests every \
         30 s, or since it started";
    CLOCK_OFFSET: Gauge "scree_daemon_clock_offset_seconds" []
        "The controllers' clock less this machine's";
    CONNECTIONS: Gauge "scree_daemon_connections" []
        "Connections of hosts, with those that are relayed to other daemons";
    CONNECTIONS_MAX: Gauge "scree_daemon_connections_max" [] "Limit of connections";
    HELD_BYTES: Gauge "scree_daemon_held_bytes" []
        "Memory of requests and answers, at most 256 MiB; a high value for long means a slow disk";
    UNIT_STATE: Gauge "scree_daemon_unit_state"
        ["state": "each of the [states](unit-states.md)"]
        "Whether the unit is in this state";
    SEGMENTS: Gauge "scree_daemon_segments" [] "Segments on the unit";
    BYTES: Gauge "scree_daemon_bytes" []
        "Bytes of the unit's segments, with their freed slots, without deleted segments";
    UNDELETE_BYTES: Gauge "scree_daemon_undelete_bytes" []
        "Bytes that hosts have freed and that are kept for the undelete window";
    UNDELETE_SEGMENTS: Gauge "scree_daemon_undelete_segments" []
        "Segments that were deleted or replaced and are kept for the undelete window";
    UNDELETE_EVICTED_BYTES: Counter "scree_daemon_undelete_evicted_bytes" []
        "Freed bytes whose space was needed before the undelete window was over; many at once \
         mean a host that floods the unit";
    FREE_BYTES: Gauge "scree_daemon_free_bytes" []
        "Free bytes of the unit's file system, which others may share";
    REQUEST_DURATION: Histogram "scree_daemon_request_duration_seconds"
        ["verb": "of the [unit protocol](../internals/unit-protocol.md#frames)"]
        "Duration of requests, from when they were read until they were answered";
    REFUSALS: Counter "scree_daemon_refusals"
        ["status": "of the [unit protocol](../internals/unit-protocol.md#statuses); many \
         `not-allowed` or `expired` mean a host without a controller, or a compromised one"]
        "Requests that were not carried out, by status";
    TRANSFERRED_BYTES: Counter "scree_daemon_transferred_bytes"
        ["direction": "`read`, `written`"]
        "Bytes of blocks that hosts have read and written";
}
