//! The metrics of every process.

crate::declare! {
    READY: Gauge "scree_ready" ["part": "`controller`, `agent` or `unit`"]
        "Whether a part can do its work (1) or not (0): see /readyz";
    PART_UNRESPONSIVE: Gauge "scree_part_unresponsive" ["part": "`controller`, `agent` or `unit`"]
        "Whether a part did not answer within 5 s, so that its metrics are missing here";
    BUILD_INFO: Gauge "scree_build_info" ["version": "of the program"]
        "Always 1; the label has the version";
    START_TIME: Gauge "process_start_time_seconds" [] "When the process started, since 1970";
    CERTIFICATE_EXPIRY: Gauge "scree_certificate_expiry_timestamp_seconds"
        ["use": "`server` of the API, `client` of an agent or a unit daemon"]
        "When the certificate that this process uses expires, since 1970";
}
