//! `scree image`.

use std::time::Duration;

use api::types::{Image, MarkImage, Preload, PreloadImage};
use api::words::PreloadState;
use base::size::about_bytes as bytes;
use world::real::RealClock;
use world::{Clock as _, host};

use super::{Failure, Session, or_dash, qualified, segment};
use crate::args::ImageCommand;
use crate::output::{Table, print, print_notice};
use crate::progress::Progress;

/// Interval at which the progress of hosts is requested.
const POLL_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(session: &Session, command: ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Mark { volume, .. } => mark_image(session, &volume, None).await,
        ImageCommand::Pin { volume, .. } => mark_image(session, &volume, Some(true)).await,
        ImageCommand::Unpin { volume, .. } => mark_image(session, &volume, Some(false)).await,
        ImageCommand::Unmark { volume, .. } => {
            let image: Image = session.client.delete(&path(&volume)?).await?;
            Ok(print(session.format, &image, |image| {
                format!("{} is an ordinary volume again\n", image.name)
            })?)
        }
        ImageCommand::List => {
            let mut images: Vec<Image> = session.client.all("/v1/images").await?;
            images.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
            let is_own = session.are_own(images.iter().map(|image| image.owner.as_ref()));
            let is_own = is_own.await?;
            Ok(print(session.format, &images, |images| {
                list(images, is_own)
            })?)
        }
        ImageCommand::Preload {
            volume,
            cancel: true,
            ..
        } => {
            let path = format!("{}/preloads", path(&volume)?);
            let image: Image = session.client.delete(&path).await?;
            Ok(print(session.format, &image, preloads)?)
        }
        ImageCommand::Preload {
            volume,
            host,
            no_wait,
            cancel: false,
            ..
        } => preload(session, &volume, host, no_wait).await,
    }
}

async fn mark_image(session: &Session, volume: &str, pinned: Option<bool>) -> Result<(), Failure> {
    let how = MarkImage { pinned };
    let image: Image = session.client.put(&path(volume)?, &how).await?;
    Ok(print(session.format, &image, |image| {
        list(std::slice::from_ref(image), true)
    })?)
}

async fn preload(
    session: &Session,
    volume: &str,
    hosts: Vec<String>,
    no_wait: bool,
) -> Result<(), Failure> {
    let path = path(volume)?;
    let how = PreloadImage { hosts };
    let mut image: Image = session
        .client
        .post(&format!("{path}/preloads"), &how)
        .await?;
    if no_wait || session.is_dry_run {
        return Ok(print(session.format, &image, preloads)?);
    }
    let notice = format!(
        "Ctrl-C ends only this command; to cancel the preload, run `scree image preload {volume} --cancel`"
    );
    print_notice(session.format, &notice);
    let progress = Progress::start(format!("waiting for hosts to read {volume}"));
    let mut rate_meter = RateMeter::default();
    let hosts = hosts_of_preload(&image.preloads, &how.hosts);
    let of_hosts = |image: &Image| {
        let mut preloads = image.preloads.clone();
        preloads.retain(|preload| hosts.contains(&preload.host));
        preloads
    };
    let mut now = of_hosts(&image);
    while now.iter().any(is_under_way) {
        host::sleep(POLL_EVERY).await;
        image = session.client.get(&path).await?;
        now = of_hosts(&image);
        let rate = rate_meter.rate(&now);
        progress.say(how_far(volume, &now, rate));
    }
    drop(progress);
    print(session.format, &image, preloads)?;
    match unread(&now, !how.hosts.is_empty()) {
        None => Ok(()),
        Some(why) => Err(Failure::new(why)),
    }
}

/// The hosts of this preload: the named ones, or otherwise those that were requested last and those
/// that are reading.
fn hosts_of_preload(preloads: &[Preload], named: &[String]) -> Vec<String> {
    let newest = preloads.iter().map(|preload| &preload.created).max();
    // The caller may have named hosts by id.
    let are_known = |named: &String| preloads.iter().any(|preload| preload.host == *named);
    let are_named = !named.is_empty() && named.iter().all(are_known);
    let is_one = |preload: &&Preload| match are_named {
        true => named.contains(&preload.host),
        false => {
            preload.state == PreloadState::Loading.as_str() || Some(&preload.created) == newest
        }
    };
    let hosts = preloads.iter().filter(is_one);
    hosts.map(|one| one.host.clone()).collect()
}

/// Why the image was not read on all hosts, if so. A host without a cache counts only if it was
/// named or no host has a cache.
fn unread(preloads: &[Preload], are_named: bool) -> Option<String> {
    let is = |preload: &Preload, state: PreloadState| preload.state == state.as_str();
    let are_skipped = are_named
        || preloads
            .iter()
            .all(|preload| is(preload, PreloadState::Skipped));
    let mut wrong = preloads.iter().filter(|preload| {
        is(preload, PreloadState::Error) || are_skipped && is(preload, PreloadState::Skipped)
    });
    let one = wrong.next()?;
    let why = one.message.as_ref();
    let why = why.map_or("the host gave no reason", |message| message.text.as_str());
    let more = match wrong.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!("{} has not read it: {why}{more}", one.host))
}

/// Measures the speed of a preload: the time of the last reading, and the bytes read until then.
#[derive(Default)]
struct RateMeter(Option<(Duration, u64)>);

impl RateMeter {
    /// The speed of all hosts together since the last call, in bytes per second.
    fn rate(&mut self, preloads: &[Preload]) -> Option<u64> {
        let now = RealClock::new().monotonic();
        let done = preloads.iter().map(|preload| preload.done_bytes).sum();
        let before = self.0.replace((now, done));
        let (then, done_before) = before?;
        let millis = u64::try_from(now.saturating_sub(then).as_millis()).unwrap_or(u64::MAX);
        Some(u64::saturating_sub(done, done_before).saturating_mul(1000) / millis.max(1))
    }
}

fn path(volume: &str) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}/image", segment(volume)?))
}

fn is_under_way(preload: &Preload) -> bool {
    preload.ended.is_none()
}

/// A line of progress: bytes read, on how many hosts, and the speed.
fn how_far(volume: &str, preloads: &[Preload], rate: Option<u64>) -> String {
    let done = preloads.iter().map(|preload| preload.done_bytes).sum();
    let all: Option<u64> = preloads.iter().map(|preload| preload.total_bytes).sum();
    let of = all.map(|all| format!(" of {}", bytes(all)));
    let left = preloads
        .iter()
        .filter(|preload| is_under_way(preload))
        .count();
    let ended = preloads.len() - left;
    let fast = rate.map(|rate| format!(", {}/s", bytes(rate)));
    format!(
        "reading {volume}: {}{}{}, {ended} of {} hosts done",
        bytes(done),
        of.unwrap_or_default(),
        fast.unwrap_or_default(),
        preloads.len()
    )
}

fn list(images: &[Image], is_own: bool) -> String {
    let mut table = Table::new(&["ID", "NAME", "SIZE", "PINNED", "CLONES", "PRELOADED"]);
    for image in images {
        let hosts = image.preloads.iter();
        let hosts: Vec<String> = hosts
            .map(|one| format!("{} {}", one.host, far(one)))
            .collect();
        table.row(vec![
            image.id.clone(),
            qualified(image.owner.as_ref(), &image.name, is_own),
            bytes(image.size),
            if image.pinned { "yes" } else { "no" }.to_owned(),
            or_dash(image.clones),
            or_dash((!hosts.is_empty()).then(|| hosts.join(", "))),
        ]);
    }
    table.to_string()
}

fn preloads(image: &Image) -> String {
    let mut table = Table::new(&["HOST", "STATE", "READ", "OF", "MESSAGE"]);
    for preload in &image.preloads {
        table.row(vec![
            preload.host.clone(),
            preload.state.clone(),
            bytes(preload.done_bytes),
            or_dash(preload.total_bytes.map(bytes)),
            or_dash(preload.message.as_ref()),
        ]);
    }
    table.to_string()
}

/// The progress of a host in a word, with the reason if it failed.
fn far(preload: &Preload) -> String {
    let all = preload
        .total_bytes
        .filter(|all| is_under_way(preload) && *all > 0);
    let is_wrong = preload.state == PreloadState::Error.as_str();
    match (all, preload.message.as_ref().filter(|_| is_wrong)) {
        (Some(all), _) => format!("{} %", preload.done_bytes.min(all) * 100 / all),
        (None, Some(why)) => format!("{} ({why})", preload.state),
        (None, None) => preload.state.clone(),
    }
}

#[cfg(test)]
mod tests {
    use api::types::Message;
    use api::words::MessageCode;

    use super::*;

    fn preload(state: &str, done_bytes: u64, total_bytes: Option<u64>) -> Preload {
        Preload {
            host: "h1".to_owned(),
            state: state.to_owned(),
            done_bytes,
            total_bytes,
            message: None,
            created: String::new(),
            ended: (state != "waiting" && state != "loading").then(String::new),
        }
    }

    fn of(host: &str, state: &str, reason: &str, created: &str) -> Preload {
        Preload {
            host: host.to_owned(),
            message: (!reason.is_empty()).then(|| Message::new(MessageCode::PreloadFailed, reason)),
            created: created.to_owned(),
            ..preload(state, 0, None)
        }
    }

    /// An old failure of a host once failed the next command.
    #[test]
    fn earlier_preloads_of_other_hosts_do_not_matter() {
        let all = [
            of("h1", "waiting", "", "2"),
            of("h2", "error", "it is off", "1"),
            of("h3", "loading", "", "1"),
            of("h4", "done", "", "2"),
            of("h5", "waiting", "", "1"),
        ];
        let names = |names: &[&str]| names.iter().copied().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(hosts_of_preload(&all, &[]), names(&["h1", "h3", "h4"]));
        assert_eq!(hosts_of_preload(&all, &names(&["h1"])), names(&["h1"]));
        let by_id = names(&["party-0123456789abcdef0"]);
        assert_eq!(hosts_of_preload(&all, &by_id), names(&["h1", "h3", "h4"]));
        assert_eq!(far(&all[1]), "error (it is off)");
    }

    #[test]
    fn a_host_without_a_cache_counts_only_if_it_was_named_or_is_alone() {
        let done = of("h1", "done", "", "");
        let skipped = of("h2", "skipped", "no cache", "");
        let failed = of("h3", "error", "no unit", "");
        let both = [done.clone(), skipped.clone()];
        assert_eq!(unread(&both, false), None);
        let why = "h2 has not read it: no cache".to_owned();
        assert_eq!(unread(&both, true).as_ref(), Some(&why));
        assert_eq!(unread(std::slice::from_ref(&skipped), false), Some(why));
        let all = [done, skipped.clone(), failed.clone()];
        let why = "h3 has not read it: no unit".to_owned();
        assert_eq!(unread(&all, false).as_ref(), Some(&why));
        let why = format!("{why} (and 1 more)");
        assert_eq!(unread(&[failed, skipped], true), Some(why));
    }

    #[test]
    fn progress_shows_how_much_was_read() {
        let half = preload("loading", 1 << 20, Some(2 << 20));
        let done = preload("done", 2 << 20, Some(2 << 20));
        assert_eq!(far(&half), "50 %");
        assert_eq!(far(&done), "done");
        assert_eq!(far(&preload("waiting", 0, None)), "waiting");
        assert_eq!(
            how_far("base", &[half.clone(), done], Some(1 << 20)),
            "reading base: 3M of 4M, 1M/s, 1 of 2 hosts done"
        );
        // The size is unknown until a host has begun.
        assert_eq!(
            how_far("base", &[half, preload("waiting", 0, None)], None),
            "reading base: 1M, 0 of 2 hosts done"
        );
    }
}
