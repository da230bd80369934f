//! The calls of the host RPC. Each is idempotent.

#![expect(missing_docs, reason = "a field is what its call's sentence names")]

use base::{AttachmentId, AuditId, SnapshotId, VolumeId};
use catalog::CatalogError;
use serde_json::Value;

use super::rpc::calls;
use super::{
    Assignments, AttachmentReport, AuditReport, Capabilities, CapabilityRequest, CatalogCall,
    Cleaning, Cluster, HostUnit, JobResult, ListedKey, PreloadReport, Renewal, Renewed, Report,
};
use crate::types::Certificate;

/// The longest time that [`FollowAssignments`] waits for a change, in seconds.
pub const FOLLOW_SECONDS_MAX: u64 = 30;

/// The largest report, in bytes. A host with as many open volumes as it may have leases takes half
/// of this.
const REPORT_BYTES_MAX: usize = 16 << 20;

calls! {
    /// A call that the controller itself answers.
    enum ControllerCall;

    /// Reports that no volume is open on this host. Returns the cluster's configuration.
    Begin = "begin" {} -> Cluster;
    /// Returns the desired state of this host, as soon as its serial is not `after`, or after
    /// `wait_seconds`, at most [`FOLLOW_SECONDS_MAX`].
    FollowAssignments = "follow-assignments" {
        after: Option<u64>,
        wait_seconds: u64,
    } -> Assignments [IS_READ_ONLY: bool = true];
    /// Reports the state of this host.
    ReportHost = "report-host" { report: Report } -> ()
        [BODY_BYTES_MAX: usize = REPORT_BYTES_MAX];
    /// Reports that this host is alive, and renews the leases that it has.
    RenewLeases = "renew-leases" { renewal: Renewal } -> Renewed;
    /// Reports the state of an attachment. The answer is `false` if the report is for an older
    /// generation.
    ReportAttachment = "report-attachment" {
        attachment: AttachmentId,
        report: AttachmentReport,
    } -> bool;
    /// Reports that the consistency point of a snapshot was taken.
    ReportSnapshot = "report-snapshot" { snapshot: SnapshotId } -> ();
    /// Reports the result of a job.
    ReportJob = "report-job" { job: i64, answer: JobResult } -> ();
    /// Reports the progress or the end of a preload. The answer is `false` if it is not desired
    /// any more.
    ReportPreload = "report-preload" { volume: VolumeId, report: PreloadReport } -> bool;
    /// Reports the progress or the end of an audit. The answer is `false` if it is not desired any
    /// more.
    ReportAudit = "report-audit" { audit: AuditId, report: AuditReport } -> bool
        [BODY_BYTES_MAX: usize = REPORT_BYTES_MAX];
    /// Registers a wrapping key that this host has created.
    RegisterKey = "register-key" { name: String, parameters: Value } -> ListedKey;
    /// Registers folders that this host has made units.
    RegisterUnits = "register-units" { units: Vec<HostUnit> } -> ();
    /// Returns what may be removed. The `busy` volumes are being written, and can wait.
    PlanCleaning = "plan-cleaning" { busy: Vec<VolumeId> } -> Cleaning;
    /// Reports that a unit knows of this many leases, more than the database. The answer says
    /// whether the database was moved ahead of them.
    MoveAhead = "move-ahead" { leases: u64 } -> bool;
    /// Returns a certificate that unit daemons accept, for the key of a signing request in PEM.
    SignCertificate = "sign-certificate" { request_pem: String } -> Certificate;
    /// Returns capabilities on unit daemons, for the holder of the public key with this SHA-256. At
    /// most [`CAPABILITY_REQUESTS_MAX`](super::CAPABILITY_REQUESTS_MAX) requests.
    SignCapabilities = "sign-capabilities" {
        holder: [u8; 32],
        requests: Vec<CapabilityRequest>,
    } -> Capabilities;
}

/// A call of the host RPC.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum HostCall {
    /// A call that the controller itself answers.
    Controller(ControllerCall),
    /// A call of the engine's catalog.
    Catalog(CatalogCall),
}

impl HostCall {
    /// The known call with this name, if there is one.
    #[must_use]
    pub fn known_name(name: &str) -> Option<&'static str> {
        let mut names = ControllerCall::NAMES.iter().chain(CatalogCall::NAMES);
        names.find(|known| **known == name).copied()
    }

    /// The largest body of the call `name`, in bytes; `None` if there is no such call.
    #[must_use]
    pub fn body_bytes_max(name: &str) -> Option<usize> {
        ControllerCall::body_bytes_max(name).or_else(|| CatalogCall::body_bytes_max(name))
    }

    /// Reads the call `name` from its body; `None` if there is no such call.
    ///
    /// # Errors
    /// If `json` is not an object with the fields of the call.
    pub fn read(name: &str, json: &[u8]) -> Option<serde_json::Result<Self>> {
        if let Some(read) = ControllerCall::read(name, json) {
            return Some(read.map(Self::Controller));
        }
        CatalogCall::read(name, json).map(|read| read.map(Self::Catalog))
    }
}

/// The answer to a call of the catalog.
pub type CatalogAnswer<T> = Result<T, CatalogError>;
