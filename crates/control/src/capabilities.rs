//! Signing capabilities: what hosts may do on unit daemons (docs/internals/capabilities.md).

use std::collections::HashSet;

use api::host::calls::SignCapabilities;
use api::host::{CAPABILITY_REQUESTS_MAX, Capabilities, CapabilityRequest, SignedBytes};
use auth::{Capability, Fence, ITEMS_MAX, Scope, SigningKey, lineage_tag_of};
use base::{ClusterId, Lineage, LineageTag, VolumeId};
use world::Millis;

use crate::database::{DatabaseError, LeaseRights, REPAIR_RIGHTS_MS, Reach};
use crate::error::ControlError;
use crate::host_request::HostRequest;

/// How long a host may change what its capability names, in milliseconds.
const CHANGE_MS: u64 = 60_000;

/// How long a host may read, in milliseconds: as long as its certificate is valid. It has the keys
/// anyway, and continues while no controller answers.
const READ_MS: u64 = 24 * 60 * 60 * 1000;

/// The largest number of lineage tags, ranges and segments in one answer, of 8 or 16 bytes each. The
/// request that exceeds it is still answered.
const ANSWER_ITEMS_MAX: usize = 1 << 16;

/// Signs the capabilities of one host at one moment.
struct Signer<'a> {
    key: &'a SigningKey,
    cluster: ClusterId,
    holder: [u8; 32],
    generation: u32,
    now: Millis,
}

impl HostRequest<'_> {
    /// Capabilities for what `host` requests to do on unit daemons, or why it may not.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn capabilities(self, call: &SignCapabilities) -> Result<Capabilities, ControlError> {
        if call.requests.len() > CAPABILITY_REQUESTS_MAX {
            let reason =
                format!("a host may request {CAPABILITY_REQUESTS_MAX} capabilities at a time");
            return Err(ControlError::invalid("requests", reason));
        }
        let different: HashSet<&CapabilityRequest> = call.requests.iter().collect();
        if different.len() < call.requests.len() {
            let reason = "a capability may be requested only once in a call".to_owned();
            return Err(ControlError::invalid("requests", reason));
        }
        let now = self.now().await?;
        let signer = Signer {
            key: &self.inner.signing,
            cluster: self.inner.cluster,
            holder: call.holder,
            generation: self.owner().await?.generation,
            now,
        };
        let reach = Reach::new(self.host, now);
        let mut answers = Vec::new();
        let mut items = 0;
        for request in &call.requests {
            if items >= ANSWER_ITEMS_MAX {
                let reason = "the answer is full; request this capability in another call";
                answers.push(Err(reason.to_owned()));
                continue;
            }
            answers.push(match self.scopes(&reach, now, *request).await {
                Ok((scopes, lasts_ms)) => {
                    items += scopes.iter().map(items_of).sum::<usize>();
                    let signed = scopes.into_iter();
                    Ok(signed.map(|scope| signer.sign(scope, lasts_ms)).collect())
                }
                Err(
                    error @ (DatabaseError::NotFound { .. }
                    | DatabaseError::Fenced { .. }
                    | DatabaseError::Refused { .. }
                    | DatabaseError::Damaged { .. }),
                ) => Err(error.to_string()),
                Err(error) => return Err(error.into()),
            });
        }
        Ok(answers)
    }

    /// The scopes that a request gets, and how long they are valid in milliseconds.
    async fn scopes(
        self,
        reach: &Reach,
        now: Millis,
        request: CapabilityRequest,
    ) -> Result<(Vec<Scope>, u64), DatabaseError> {
        let (database, cluster) = (&self.inner.database, self.inner.cluster);
        Ok(match request {
            CapabilityRequest::Lease { volume, epoch } => {
                let rights = database
                    .catalog()
                    .lease_rights(reach.host, volume, epoch)
                    .await?;
                (leases(cluster, volume, &rights), CHANGE_MS)
            }
            CapabilityRequest::Sweep { volume } => {
                let rights = database.catalog().sweep_rights(reach, volume).await?;
                (leases(cluster, volume, &rights), CHANGE_MS)
            }
            CapabilityRequest::Read { lineage } => {
                let lineages = database.catalog().read_rights(reach, lineage).await?;
                (reads(cluster, &lineages), READ_MS)
            }
            CapabilityRequest::Count => {
                let leases = database.catalog().lease_count().await?;
                (vec![Scope::Count { leases }], CHANGE_MS)
            }
            CapabilityRequest::Repair { copyset } => {
                let rights = database.repair().rights(reach.host, copyset, now).await?;
                let Some(units) = rights else {
                    let reason =
                        format!("copyset {} is not repaired by this host", copyset.number());
                    return Err(DatabaseError::Refused { reason });
                };
                let copysets = vec![copyset];
                (vec![Scope::Repair { copysets, units }], REPAIR_RIGHTS_MS)
            }
            CapabilityRequest::Free { plan } => {
                let rights = database.catalog().free_rights(reach, now, plan).await?;
                let parts = rights.segments.chunks(ITEMS_MAX);
                let frees = parts.map(|segments| Scope::Free {
                    segments: segments.to_vec(),
                });
                // A daemon frees only in lineages that may be read.
                let reads = reads(cluster, &rights.lineages);
                (reads.into_iter().chain(frees).collect(), CHANGE_MS)
            }
        })
    }
}

fn items_of(scope: &Scope) -> usize {
    match scope {
        Scope::Lease { serials, .. } => serials.len(),
        Scope::Read { lineage_tags } => lineage_tags.len(),
        Scope::Free { segments } => segments.len(),
        Scope::Repair { copysets, units } => copysets.len() + units.len(),
        Scope::Count { .. } => 1,
    }
}

fn reads(cluster: ClusterId, lineages: &[Lineage]) -> Vec<Scope> {
    let lineage_tags = lineages.iter();
    let lineage_tags: Vec<LineageTag> = lineage_tags
        .map(|lineage| lineage_tag_of(cluster, *lineage))
        .collect();
    let parts = lineage_tags.chunks(ITEMS_MAX);
    let scopes = parts.map(|lineage_tags| Scope::Read {
        lineage_tags: lineage_tags.to_vec(),
    });
    scopes.collect()
}

/// The scopes of a lease: several if it has too many ranges for one. There is at least one, since
/// it fences the previous holder even if it covers nothing yet.
fn leases(cluster: ClusterId, volume: VolumeId, rights: &LeaseRights) -> Vec<Scope> {
    let scope = |serials: &[std::ops::Range<u64>]| Scope::Lease {
        lineage_tag: lineage_tag_of(cluster, rights.lineage),
        fence: Fence::of(cluster, volume),
        epoch: rights.epoch,
        serials: serials.to_vec(),
    };
    if rights.serials.is_empty() {
        return vec![scope(&[])];
    }
    rights.serials.chunks(ITEMS_MAX).map(scope).collect()
}

impl Signer<'_> {
    fn sign(&self, scope: Scope, lasts_ms: u64) -> SignedBytes {
        let signed = self.key.sign(&Capability {
            cluster: self.cluster,
            holder: self.holder,
            made: self.now,
            ends: Millis(self.now.0.saturating_add_unsigned(lasts_ms)),
            generation: self.generation,
            scope,
        });
        SignedBytes {
            lasts_ms,
            bytes: signed.0,
        }
    }
}
