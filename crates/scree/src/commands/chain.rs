//! `scree chain`.

use std::io::{self, Read as _};
use std::path::Path;

use api::types::{ApplyChain, Chain, ChainFilter, ChainUse};
use world::host;
use world::real::RealDisk;

use super::{Failure, Session, or_dash, qualified, query, segment};
use crate::args::{ChainCommand, ChainSelector};
use crate::output::{Table, print, time};
use crate::progress::Progress;

/// The longest wait for the hosts, in seconds: longer than a live reconfiguration may take.
const WAIT_SECONDS: u64 = 60;

/// The largest policy in bytes; the server refuses a larger one.
const POLICY_BYTES_MAX: u64 = 1 << 20;

pub(super) async fn run(session: &Session, command: ChainCommand) -> Result<(), Failure> {
    match command {
        ChainCommand::Apply { file, no_wait, .. } => apply_chain(session, &file, no_wait).await,
        ChainCommand::List { volume } => {
            let path = query("/v1/chains", &[("volume", volume.as_deref())], &[])?;
            let chains: Vec<Chain> = session.client.all(&path).await?;
            let is_own = session.are_own(chains.iter().map(|chain| chain.owner.as_ref()));
            let is_own = is_own.await?;
            Ok(print(session.format, &chains, |chains| {
                list(chains, is_own)
            })?)
        }
        ChainCommand::Show(which) => {
            let chain = chain_of(session, &which).await?;
            Ok(print(session.format, &chain, shown)?)
        }
        ChainCommand::Delete { which, no_wait, .. } => delete_chain(session, &which, no_wait).await,
    }
}

async fn delete_chain(
    session: &Session,
    which: &ChainSelector,
    no_wait: bool,
) -> Result<(), Failure> {
    let chain = chain_of(session, which).await?;
    let wait = if no_wait { 0 } else { WAIT_SECONDS };
    let progress = Progress::start("replacing filters".to_owned());
    let path = format!("/v1/chains/{}?wait={wait}", chain.id);
    let chain: Chain = session.client.delete(&path).await?;
    drop(progress);
    print(session.format, &chain, |chain| {
        let (id, volume) = (&chain.id, &chain.volume);
        format!("{id} is deleted; {volume} has no filters{}\n", in_vm(chain))
    })?;
    match chain.attachments.first() {
        Some(one) if !no_wait && !session.is_dry_run => Err(Failure::new(format!(
            "attachment {} is still served through the filters: {}; the host retries until it is \
             detached or the volume has a chain again",
            one.attachment,
            why_not(one)
        ))),
        _ => Ok(()),
    }
}

async fn apply_chain(session: &Session, file: &Path, no_wait: bool) -> Result<(), Failure> {
    let policy = read(file)?;
    let wait = if no_wait { 0 } else { WAIT_SECONDS };
    let progress = Progress::start("replacing filters".to_owned());
    let path = format!("/v1/chains?wait={wait}");
    let chain: Chain = session.client.post(&path, &ApplyChain { policy }).await?;
    drop(progress);
    print(session.format, &chain, shown)?;
    if no_wait || session.is_dry_run {
        return Ok(());
    }
    let is_outdated = |usage: &&ChainUse| usage.revision != Some(chain.revision);
    match chain.attachments.iter().find(is_outdated) {
        None => Ok(()),
        Some(one) => {
            let why = why_not(one);
            let id = &one.attachment;
            Err(Failure::new(format!(
                "attachment {id} is not served through the chain: {why}; the host retries until \
                 the chain changes (see `scree attachment show {id}`)"
            )))
        }
    }
}

/// The chain that the arguments select.
async fn chain_of(session: &Session, which: &ChainSelector) -> Result<Chain, Failure> {
    let volume = &which.volume;
    if volume.starts_with("chain-") {
        let path = format!("/v1/chains/{}", segment(volume)?);
        return Ok(session.client.get(&path).await?);
    }
    let path = query("/v1/chains", &[("volume", Some(volume))], &[])?;
    let mut chains: Vec<Chain> = session.client.all(&path).await?;
    if let Some(at) = chains.iter().position(|chain| chain.vm == which.vm) {
        return Ok(chains.swap_remove(at));
    }
    Err(Failure::new(match (&which.vm, chains.first()) {
        (Some(vm), _) => format!(
            "volume {volume:?} has no chain for {vm}: see `scree chain list --volume {volume}`"
        ),
        (None, Some(other)) => format!(
            "volume {volume:?} has chains for single VMs only: add --vm, as --vm {}",
            other.vm.as_deref().unwrap_or_default()
        ),
        (None, None) => {
            format!("volume {volume:?} has no chain: create one with `scree chain apply FILE`")
        }
    }))
}

/// Why an attachment is not served through the current revision of its chain.
fn why_not(usage: &ChainUse) -> String {
    let unresponsive = || format!("its host has not answered after {WAIT_SECONDS} s");
    usage.problem.clone().unwrap_or_else(unresponsive)
}

fn read(file: &Path) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", file.display()));
    if file.as_os_str() == "-" {
        let mut policy = String::new();
        let input = io::stdin().lock();
        input
            .take(POLICY_BYTES_MAX)
            .read_to_string(&mut policy)
            .map_err(failed)?;
        return Ok(policy);
    }
    let read = host::read_small(&RealDisk, file, POLICY_BYTES_MAX).map_err(failed)?;
    let is_text = |_| Failure::new(format!("{}: it is not UTF-8 text", file.display()));
    String::from_utf8(read.to_vec()).map_err(is_text)
}

fn in_vm(chain: &Chain) -> String {
    let vm = chain.vm.as_deref().map(|vm| format!(" of its own in {vm}"));
    vm.unwrap_or_default()
}

fn filters(chain: &Chain) -> String {
    let names = chain
        .filters
        .iter()
        .map(|filter| match filter.name == filter.kind {
            true => filter.name.clone(),
            false => format!("{} ({})", filter.name, filter.kind),
        });
    names.collect::<Vec<_>>().join(" → ")
}

/// A line for each filter that does not run in the agent.
fn elsewhere(filters: &[ChainFilter]) -> String {
    let elsewhere = filters
        .iter()
        .filter(|filter| !matches!(&*filter.placement, "" | "inline"));
    let lines = elsewhere.map(|one| {
        let at = one.target.as_deref().map(|at| format!(" {at}"));
        let without = match one.on_failure.as_deref() {
            Some("bypass") => "the disk works without it",
            _ => "the disk fails without it",
        };
        let (name, runs) = (&one.name, &one.placement);
        format!("  {name}: {runs}{}; {without}\n", at.unwrap_or_default())
    });
    lines.collect()
}

fn list(chains: &[Chain], is_own: bool) -> String {
    let mut table = Table::new(&[
        "ID", "VOLUME", "VM", "REVISION", "FILTERS", "IN USE", "CHANGED",
    ]);
    for chain in chains {
        let revision = Some(chain.revision);
        let uses = &chain.attachments;
        let in_use = uses.iter().filter(|one| one.revision == revision).count();
        table.row(vec![
            chain.id.clone(),
            qualified(chain.owner.as_ref(), &chain.volume, is_own),
            or_dash(chain.vm.as_deref()),
            chain.revision.to_string(),
            filters(chain),
            format!("{in_use} of {}", uses.len()),
            time(&chain.changed),
        ]);
    }
    table.to_string()
}

fn shown(chain: &Chain) -> String {
    let mut text = format!(
        "{}: volume {}{}, revision {}, of {}\n{}\n{}",
        chain.id,
        chain.volume,
        chain
            .vm
            .as_deref()
            .map(|vm| format!(" in {vm}"))
            .unwrap_or_default(),
        chain.revision,
        time(&chain.changed),
        filters(chain),
        elsewhere(&chain.filters),
    );
    for usage in &chain.attachments {
        let vm = usage.vm.as_deref().unwrap_or("exported");
        let id = &usage.attachment;
        let how = how(chain.revision, usage);
        text += &format!("{id} ({vm}): {how}\n");
    }
    text + "\n" + &chain.policy
}

/// How a disk is served, compared with the newest revision of its chain.
fn how(newest: u64, usage: &ChainUse) -> String {
    match (usage.revision, &usage.problem) {
        (Some(revision), None) => format!("served through revision {revision}"),
        (Some(revision), Some(why)) if revision == newest => format!(
            "served through revision {revision}; the guest does not see the new size of the volume \
             yet: {why}"
        ),
        (Some(revision), Some(why)) => {
            format!("still served through revision {revision}: {why}")
        }
        (None, Some(why)) => format!("not served through it: {why}"),
        (None, None) => "not served through it yet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_served_revision_and_its_reason_are_shown() {
        let how = |revision: Option<u64>, problem: Option<&str>| {
            let one = ChainUse {
                attachment: String::new(),
                vm: None,
                revision,
                problem: problem.map(str::to_owned),
            };
            super::how(3, &one)
        };
        assert_eq!(how(Some(3), None), "served through revision 3");
        assert_eq!(
            how(Some(2), Some("no key")),
            "still served through revision 2: no key"
        );
        // Revision 3 is the newest one.
        assert_eq!(
            how(Some(3), Some("it waits")),
            "served through revision 3; the guest does not see the new size of the volume yet: it \
             waits"
        );
        assert_eq!(how(None, Some("no key")), "not served through it: no key");
    }

    #[test]
    fn remote_filters_are_shown_with_their_failure_rule() {
        let one =
            |name: &str, runs: &str, at: Option<&str>, on_failure: Option<&str>| ChainFilter {
                name: name.to_owned(),
                kind: "monitor".to_owned(),
                placement: runs.to_owned(),
                target: at.map(str::to_owned),
                on_failure: on_failure.map(str::to_owned),
            };
        let filters = [
            one("a", "inline", None, None),
            one("b", "process", None, Some("fail-closed")),
            one("c", "remote", Some("10.0.0.7:10810"), Some("bypass")),
            // Without a place, a filter runs inline.
            one("d", "", None, None),
        ];
        assert_eq!(
            elsewhere(&filters),
            "  b: process; the disk fails without it\n  \
             c: remote 10.0.0.7:10810; the disk works without it\n"
        );
    }
}
