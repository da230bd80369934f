//! `scree image`.

use std::time::Duration;

use api::types::{Image, MarkImage, Preload, PreloadImage};
use api::words::PreloadState;
use base::size::about_bytes as bytes;
use world::real::RealClock;
use world::{Clock as _, host};

use super::{Failure, Session, or_dash, segment, spelt};
use crate::args::ImageCommand;
use crate::output::{Table, print};
use crate::progress::Progress;

/// How far hosts are, is asked so often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Session {
    pub(super) async fn image(&self, command: ImageCommand) -> Result<(), Failure> {
        match command {
            ImageCommand::Mark { volume } => self.mark_image(&volume, None).await,
            ImageCommand::Pin { volume } => self.mark_image(&volume, Some(true)).await,
            ImageCommand::Unpin { volume } => self.mark_image(&volume, Some(false)).await,
            ImageCommand::Unmark { volume } => {
                let image: Image = self.client.delete(&path(&volume)?).await?;
                Ok(print(self.format, &image, |image| {
                    format!("{} is no base image any more\n", image.name)
                })?)
            }
            ImageCommand::List => {
                let mut images: Vec<Image> = self.client.all("/v1/images").await?;
                images.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
                let is_own = self.are_own(images.iter().map(|one| one.owner.as_ref()));
                let is_own = is_own.await?;
                Ok(print(self.format, &images, |images| list(images, is_own))?)
            }
            ImageCommand::Preload {
                volume,
                call_off: true,
                ..
            } => {
                let path = format!("{}/preloads", path(&volume)?);
                let image: Image = self.client.delete(&path).await?;
                Ok(print(self.format, &image, preloads)?)
            }
            ImageCommand::Preload {
                volume,
                host,
                no_wait,
                call_off: false,
            } => self.preload(&volume, host, no_wait).await,
        }
    }

    async fn mark_image(&self, volume: &str, pinned: Option<bool>) -> Result<(), Failure> {
        let how = MarkImage { pinned };
        let image: Image = self.client.put(&path(volume)?, &how).await?;
        Ok(print(self.format, &image, |image| {
            list(std::slice::from_ref(image), true)
        })?)
    }

    async fn preload(
        &self,
        volume: &str,
        hosts: Vec<String>,
        no_wait: bool,
    ) -> Result<(), Failure> {
        let path = path(volume)?;
        let asked = PreloadImage { hosts };
        let mut image: Image = self
            .client
            .post(&format!("{path}/preloads"), &asked)
            .await?;
        if no_wait || self.is_dry_run {
            return Ok(print(self.format, &image, preloads)?);
        }
        let progress = Progress::start(format!("waiting for hosts to read {volume}"));
        let mut seen = Seen::default();
        while image.preloads.iter().any(is_under_way) {
            host::pause(LOOK_EVERY).await;
            image = self.client.get(&path).await?;
            let rate = seen.rate(&image.preloads);
            progress.say(how_far(volume, &image.preloads, rate));
        }
        drop(progress);
        print(self.format, &image, preloads)?;
        let is_wrong = |one: &&Preload| one.state == PreloadState::Error.as_str();
        match image.preloads.iter().find(is_wrong) {
            None => Ok(()),
            Some(one) => Err(Failure::new(format!(
                "{} has not read it: {}",
                one.host,
                one.reason.as_deref().unwrap_or("it does not say why")
            ))),
        }
    }
}

/// How much was read by when it was looked last.
#[derive(Default)]
struct Seen(Option<(Duration, u64)>);

impl Seen {
    /// How fast all hosts together read, in bytes a second, by now.
    fn rate(&mut self, preloads: &[Preload]) -> Option<u64> {
        let now = RealClock::new().monotonic();
        let done = preloads.iter().map(|one| one.done_bytes).sum();
        let before = self.0.replace((now, done));
        let (then, had) = before?;
        let millis = u64::try_from(now.saturating_sub(then).as_millis()).unwrap_or(u64::MAX);
        Some(u64::saturating_sub(done, had).saturating_mul(1000) / millis.max(1))
    }
}

fn path(volume: &str) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}/image", segment(volume)?))
}

fn is_under_way(one: &Preload) -> bool {
    let ended = [PreloadState::Done, PreloadState::Error].map(PreloadState::as_str);
    !ended.contains(&&*one.state)
}

/// A line for whoever waits: how much of how much, on how many hosts, and how fast.
fn how_far(volume: &str, preloads: &[Preload], rate: Option<u64>) -> String {
    let done = preloads.iter().map(|one| one.done_bytes).sum();
    let all: Option<u64> = preloads.iter().map(|one| one.all_bytes).sum();
    let of = all.map(|all| format!(" of {}", bytes(all)));
    let left = preloads.iter().filter(|one| is_under_way(one)).count();
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
            spelt(image.owner.as_ref(), &image.name, is_own),
            bytes(image.size),
            if image.pinned { "yes" } else { "no" }.to_owned(),
            or_dash(image.clones),
            or_dash((!hosts.is_empty()).then(|| hosts.join(", "))),
        ]);
    }
    table.to_string()
}

fn preloads(image: &Image) -> String {
    let mut table = Table::new(&["HOST", "STATE", "READ", "OF", "REASON"]);
    for one in &image.preloads {
        table.row(vec![
            one.host.clone(),
            one.state.clone(),
            bytes(one.done_bytes),
            or_dash(one.all_bytes.map(bytes)),
            or_dash(one.reason.as_ref()),
        ]);
    }
    table.to_string()
}

/// How far a host is, in a word.
fn far(one: &Preload) -> String {
    match one.all_bytes.filter(|all| is_under_way(one) && *all > 0) {
        Some(all) => format!("{} %", one.done_bytes.min(all) * 100 / all),
        None => one.state.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preload(state: &str, done_bytes: u64, all_bytes: Option<u64>) -> Preload {
        Preload {
            host: "h1".to_owned(),
            state: state.to_owned(),
            done_bytes,
            all_bytes,
            reason: None,
            created: String::new(),
            ended: None,
        }
    }

    #[test]
    fn whoever_waits_sees_how_much_of_how_much_was_read() {
        let half = preload("loading", 1 << 20, Some(2 << 20));
        let done = preload("done", 2 << 20, Some(2 << 20));
        assert_eq!(far(&half), "50 %");
        assert_eq!(far(&done), "done");
        assert_eq!(far(&preload("waiting", 0, None)), "waiting");
        assert_eq!(
            how_far("base", &[half.clone(), done], Some(1 << 20)),
            "reading base: 3M of 4M, 1M/s, 1 of 2 hosts done"
        );
        // Of one that has not begun it is not known how much there is.
        assert_eq!(
            how_far("base", &[half, preload("waiting", 0, None)], None),
            "reading base: 1M, 0 of 2 hosts done"
        );
    }
}
