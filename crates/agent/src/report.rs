//! Telling the controllers how this host is doing.

use std::time::Duration;

use api::host::{Report, VolumeReport};
use api::types::Engine;
use volume::VolumeStatus;
use world::host;

use crate::agent::{Agent, lock};
use crate::cache_counts;

/// How often, if nobody asks.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// So many problems are told, and how many more there are: each report is kept,
/// and people read it.
const PROBLEMS_MAX: usize = 100;

impl Agent {
    /// Reports again and again, and at once when somebody asks.
    pub(crate) async fn keep_reporting(&self) {
        let mut look = self.inner.look.subscribe();
        let mut ticks = host::ticks(REPORT_EVERY);
        loop {
            let is_asked = tokio::select! {
                _ = ticks.tick() => false,
                _ = look.changed() => true,
            };
            self.send_report(is_asked).await;
        }
    }

    /// Reports, after asking the units anew if somebody waits for it.
    pub(crate) async fn send_report(&self, is_asked: bool) {
        // What is asked from here on is for the next report.
        let look = *self.inner.look.borrow();
        let units = match is_asked {
            true => self.units().await,
            false => self.units_as_known(),
        };
        let report = Report {
            look,
            units,
            volumes: self.volumes().await,
            free_bytes: self.free_bytes(),
            problems: told(self.problems().await),
            cache: Some(cache_counts::of_host(&self.inner.caching.cache)),
        };
        match self.inner.controller.report(&report).await {
            Ok(()) => self.note_heard(),
            Err(error) => tracing::debug!(%error, "a report was not heard"),
        }
    }

    async fn volumes(&self) -> Vec<VolumeReport> {
        let open = self.open_volumes().await.into_iter();
        let told = open.filter_map(|open| {
            Some(VolumeReport {
                attachment: open.attachment,
                volume: open.volume,
                engine: engine(open.status?, open.connections),
            })
        });
        told.collect()
    }

    async fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Ok(Some(older)) = self.older_database().await {
            problems.push(older.to_string());
        }
        if let Some(why) = lock(&self.inner.removal_problem).as_ref() {
            problems.push(format!("old versions are not all removed: {why}"));
        }
        problems.extend(self.journals_aside().await);
        problems.extend(self.filter_journals_aside().await);
        if let Some(why) = lock(&self.inner.freeing_problem).as_ref() {
            problems.push(format!("room is not all given back: {why}"));
        }
        if let Some(why) = lock(&self.inner.rewrap_problem).as_ref() {
            problems.push(format!(
                "a wrapping key is not replaced by this host: {why}"
            ));
        }
        problems.extend(self.inner.keys.problems());
        problems.extend(self.inner.caching.problem());
        problems
    }
}

/// The first of the problems, and how many are left out.
fn told(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!(
            "{more} more problems of host {:?} are not told here; repair these first",
            host::machine_name()
        ));
    }
    problems
}

fn engine(status: VolumeStatus, connections: u64) -> Engine {
    Engine {
        version: status.head.map(|head| head.number),
        journal_bytes: status.journal_bytes,
        journal_used_bytes: status.journal_used_bytes,
        blocks_written: status.counters.blocks_written,
        blocks_destaged: status.counters.blocks_destaged,
        connections,
        destage_error: status.destage_error,
        read_error: status.read_error,
        cache: status.cache.as_ref().map(cache_counts::of_volume),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_problems_the_first_are_told_and_how_many_there_are() {
        let problems = |count| (0..count).map(|number: usize| number.to_string());
        let few: Vec<String> = problems(PROBLEMS_MAX).collect();
        assert_eq!(told(few.clone()), few);
        let many = told(problems(PROBLEMS_MAX + 7).collect());
        assert_eq!(many[..PROBLEMS_MAX], few);
        assert_eq!(many.len(), PROBLEMS_MAX + 1);
        assert!(many[PROBLEMS_MAX].starts_with("7 more"), "{many:?}");
    }
}
