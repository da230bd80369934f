//! Checks [`volume::audit`]: what some units alone reveal of a version, compared with the
//! version as the auditor has read it.

use base::UnitId;

use catalog::{Catalog as _, StoredVersion};
use volume::audit::Audit;
use volume::scatter::Exposure;

use crate::Check;
use crate::audit::WalkedVersion;
use crate::machine::Machine;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Checks the exposure of every block of a version: all units together have it, sealed
/// blocks reveal no content, and no unit has blocks of copysets that it is not in.
///
/// # Errors
/// The first block whose exposure is wrong.
pub fn check(machine: &Machine, version: &StoredVersion, walked: &WalkedVersion) -> Check {
    let keys = machine.catalog.memory.keys(version.lineage).map_err(text)?;
    let keyring = machine.keyring(&keys);
    let table = machine.audited.table();
    let all: Vec<UnitId> = table.units().iter().map(|unit| unit.id).collect();
    let some: Vec<UnitId> = all.iter().copied().step_by(2).collect();
    for compromised in [&all, &some] {
        let mut audit =
            Audit::open(&machine.audited, version, &keyring, compromised).map_err(text)?;
        let mut blocks = walked.blocks.iter();
        while let Some(batch) = audit.next_batch().map_err(text)? {
            for judged in batch.blocks {
                let Some((block, entry)) =
                    blocks.next().filter(|(block, _)| **block == judged.block)
                else {
                    return Err(format!("an audit found the unknown block {}", judged.block));
                };
                let members = table.members(entry.location.segment().copyset());
                let can_be = members
                    .iter()
                    .any(|member| compromised.contains(&member.id));
                let is_there = judged.exposure >= Exposure::Sealed;
                let is_sealed = !keyring.of_epoch(entry.sequence.epoch()).is_plaintext();
                let is_wrong = match is_there {
                    true => !can_be || is_sealed != (judged.exposure == Exposure::Sealed),
                    false => compromised.len() == all.len(),
                };
                if is_wrong {
                    return Err(format!(
                        "block {block} at {entry:?} is {:?}",
                        judged.exposure
                    ));
                }
            }
        }
        if let Some((block, _)) = blocks.next() {
            return Err(format!("an audit skipped block {block}"));
        }
    }
    Ok(())
}
