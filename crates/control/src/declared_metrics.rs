//! The metrics of a controller.
//!
//! Whatever is counted in the database is the same at every controller of it.

metrics::declare! {
    CONTROLLER_OPEN: Gauge "scree_controller_open" []
        "Whether the controller serves users: not while it starts or ends";
    DATABASE_UP: Gauge "scree_database_up" []
        "Whether the database answers; if not, metrics that it counts are missing";
    DATABASE_LATENCY: Gauge "scree_database_latency_seconds" []
        "Duration of the smallest query of the database";
    VOLUMES: Gauge "scree_volumes" ["state": "`available`, `in-use`, `deleting`, `error`"]
        "Volumes by state";
    SNAPSHOTS: Gauge "scree_snapshots" ["state": "`pending`, `completed`, `error`"]
        "Snapshots by state";
    ATTACHMENTS: Gauge "scree_attachments"
        ["state": "`attaching`, `attached`, `detaching`, `busy`, `error`"]
        "Attachments that have not ended, by state";
    HOSTS: Gauge "scree_hosts" ["state": "`heard` within the term of a lease, `unresponsive`, \
        `never-heard` (also a controller's own machine without an agent), `disabled`"]
        "Hosts by whether they reported within the term of a lease";
    PENDING_FREES: Gauge "scree_pending_frees" []
        "Removed versions whose space has not been reclaimed yet";
    DEGRADED_SEGMENTS: Gauge "scree_degraded_segments" []
        "Segments with fewer copies than they should have";
    HTTP_REQUESTS: Counter "scree_http_requests"
        ["method": "of HTTP", "route": "as `/v1/volumes/{volume}`; `other` for unknown paths",
         "status": "the class, as `2xx`"]
        "Answered API requests by route and class of the status";
    HTTP_REQUEST_DURATION: Histogram "scree_http_request_duration_seconds"
        ["method": "of HTTP", "route": "as `/v1/volumes/{volume}`; `other` for unknown paths"]
        "Duration of API requests, with the time that they wait by design (?wait=, assignments)";
}
