//! What some units alone have of a version: [`volume::audit`] beside what else is known of it.

use base::UnitId;

use volume::audit::Audit;
use volume::catalog::{Catalog as _, StoredVersion};
use volume::scatter::Exposure;

use crate::Check;
use crate::audit::Walked;
use crate::machine::Machine;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// All units together have every block of a version that can be read, none of which says
/// anything if it is sealed; and some of them have none of copysets that they are not in.
///
/// # Errors
/// What is not so.
pub fn check(machine: &Machine, version: &StoredVersion, walked: &Walked) -> Check {
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
            for one in batch.blocks {
                let Some((block, entry)) = blocks.next().filter(|(block, _)| **block == one.block)
                else {
                    return Err(format!("an audit has come across block {}", one.block));
                };
                let members = table.members(entry.location.segment().copyset());
                let can_be = members
                    .iter()
                    .any(|member| compromised.contains(&member.id));
                let is_there = one.exposure >= Exposure::Sealed;
                let is_sealed = !keyring.of_epoch(entry.sequence.epoch()).is_plaintext();
                let is_wrong = match is_there {
                    true => !can_be || is_sealed != (one.exposure == Exposure::Sealed),
                    false => compromised.len() == all.len(),
                };
                if is_wrong {
                    return Err(format!("block {block} at {entry:?} is {:?}", one.exposure));
                }
            }
        }
        if let Some((block, _)) = blocks.next() {
            return Err(format!("an audit has passed over block {block}"));
        }
    }
    Ok(())
}
