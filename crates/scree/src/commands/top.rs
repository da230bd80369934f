//! `scree top`: the load of hosts and the hit ratios of their caches, continuously.

use std::collections::HashMap;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use api::types::{
    CACHE_BLOCK_BYTES, CacheArea, CacheLookups, HostCache, HostLoad, LookupsByArea, VolumeLoad,
};
use base::size::about_bytes;
use world::real::RealClock;
use world::{Clock as _, host};

use super::{Failure, Session};
use crate::args::TopArguments;
use crate::output::{Format, Table, print, print_lines, write_out};

/// Moves the cursor to the top left corner of a terminal and clears what follows.
const HOME: &str = "\x1b[H\x1b[J";

/// The previous reading. Its counters only grow.
#[derive(Default)]
struct Earlier {
    hosts: HashMap<String, HostLoad>,
    /// Time since that reading; `None` for the first one.
    seconds: Option<f64>,
}

pub(super) async fn run(session: &Session, arguments: &TopArguments) -> Result<(), Failure> {
    if arguments.once || session.format != Format::Table {
        let load = load(session).await?;
        let show = |load: &Vec<HostLoad>| show(load, &Earlier::default());
        return Ok(print(session.format, &load, show)?);
    }
    let clock = RealClock::new();
    let mut earlier = Earlier::default();
    let mut ticks = host::ticks(arguments.interval.max(Duration::from_millis(200)));
    let mut last = clock.monotonic();
    loop {
        ticks.tick().await;
        let load = load(session).await?;
        let now = clock.monotonic();
        if earlier.seconds.is_some() {
            earlier.seconds = Some((now - last).as_secs_f64());
        }
        if stdout().is_terminal() {
            write_out(HOME.as_bytes())?;
        }
        let text = show(&load, &earlier);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if !print_lines(&lines)? {
            return Ok(());
        }
        last = now;
        earlier = Earlier {
            hosts: load
                .into_iter()
                .map(|load| (load.host.clone(), load))
                .collect(),
            seconds: Some(0.0),
        };
    }
}

async fn load(session: &Session) -> Result<Vec<HostLoad>, Failure> {
    let mut load: Vec<HostLoad> = session.client.get("/v1/load").await?;
    load.sort_by(|one, other| one.host.cmp(&other.host));
    for host in &mut load {
        host.volumes.sort_by(|one, other| one.name.cmp(&other.name));
    }
    Ok(load)
}

fn show(load: &[HostLoad], earlier: &Earlier) -> String {
    let mut text = String::new();
    for host in load {
        let before = earlier.hosts.get(&host.host);
        text += &format!("host {}\n", host.host);
        if let Some(cache) = &host.cache {
            let before = before.and_then(|before| before.cache.as_ref());
            text += &show_cache(cache, before).to_string();
        }
        text.push('\n');
    }
    let mut table = Table::new(&[
        "volume",
        "host",
        "clients",
        "journal",
        "written",
        "destaged",
        "requested",
        "hits",
        "read-ahead used",
    ]);
    for host in load {
        for volume in &host.volumes {
            let before = earlier.hosts.get(&host.host);
            let before = before.and_then(|before| {
                let mut volumes = before.volumes.iter();
                volumes.find(|one| one.attachment == volume.attachment)
            });
            table.row(row(&host.host, volume, before, earlier.seconds));
        }
    }
    text + &table.to_string()
}

fn show_cache(cache: &HostCache, before: Option<&HostCache>) -> Table {
    let mut table = Table::new(&["cache", "used", "of", "hits", "evicted", "pinned"]);
    let hits = |of: fn(&LookupsByArea) -> CacheLookups| {
        let now = of(&cache.lookups);
        ratio(
            before
                .map_or(now, |before| now.since(&of(&before.lookups)))
                .hit_ratio(),
        )
    };
    let bytes = |blocks: u64| about_bytes(blocks * CACHE_BLOCK_BYTES);
    let memory = |asked: &LookupsByArea| {
        let all = asked.all();
        // A block is in memory or in the file, not in both.
        CacheLookups {
            memory: all.memory,
            file: 0,
            units: all.file + all.units,
        }
    };
    table.row(vec![
        "memory".to_owned(),
        bytes(cache.memory_blocks),
        bytes(cache.memory_capacity),
        hits(memory),
        "-".to_owned(),
        "-".to_owned(),
    ]);
    let Some(file) = &cache.file else {
        return table;
    };
    let mut area = |name: &str, area: &CacheArea, hits: String, pinned: String| {
        table.row(vec![
            name.to_owned(),
            bytes(area.blocks),
            bytes(area.capacity),
            hits,
            bytes(area.evicted),
            pinned,
        ]);
    };
    area(
        "maps",
        &file.metadata,
        hits(|all| all.metadata),
        bytes(file.protected),
    );
    area(
        "images",
        &file.image,
        hits(|all| all.image),
        bytes(file.pinned),
    );
    let none = "-".to_owned();
    area("others", &file.active, hits(|all| all.active), none);
    table
}

fn row(
    host: &str,
    volume: &VolumeLoad,
    before: Option<&VolumeLoad>,
    seconds: Option<f64>,
) -> Vec<String> {
    let engine = &volume.engine;
    let rate = |of: fn(&VolumeLoad) -> u64| match (before, seconds) {
        (Some(before), Some(seconds)) if seconds > 0.0 => {
            per_second(of(volume).saturating_sub(of(before)), seconds)
        }
        _ => "-".to_owned(),
    };
    let cache = engine.cache.unwrap_or_default();
    let asked = cache.lookups.all();
    let earlier = before.and_then(|before| before.engine.cache);
    let recent = earlier.map_or(asked, |earlier| asked.since(&earlier.lookups.all()));
    vec![
        volume.name.clone(),
        host.to_owned(),
        engine.connections.to_string(),
        ratio(part(engine.journal_used_bytes, engine.journal_bytes)),
        rate(|volume| volume.engine.blocks_written),
        rate(|volume| volume.engine.blocks_destaged),
        rate(|volume| {
            let cache = volume.engine.cache.unwrap_or_default();
            let asked = cache.lookups.all();
            asked.memory + asked.file + asked.units
        }),
        ratio(recent.hit_ratio()),
        ratio(part(
            cache.read_ahead_used,
            cache.read_ahead_used + cache.read_ahead_unread,
        )),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn part(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}

fn ratio(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0))
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(count: u64, seconds: f64) -> String {
    format!("{:.0}/s", count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use api::types::{Engine, VolumeCache};

    use super::*;

    fn load(written: u64, memory: u64, units: u64) -> Vec<HostLoad> {
        let asked = LookupsByArea {
            active: CacheLookups {
                memory,
                file: 0,
                units,
            },
            ..LookupsByArea::default()
        };
        let engine = Engine {
            version: Some(1),
            journal_bytes: 1000,
            journal_used_bytes: 250,
            blocks_written: written,
            blocks_destaged: 0,
            connections: 2,
            destage_error: None,
            read_error: None,
            cache: Some(VolumeCache {
                lookups: asked,
                read_ahead_blocks: 10,
                read_ahead_used: 3,
                read_ahead_unread: 1,
            }),
        };
        vec![HostLoad {
            host: "here".to_owned(),
            cache: Some(HostCache {
                lookups: asked,
                ..HostCache::default()
            }),
            volumes: vec![VolumeLoad {
                volume: "vol-1".to_owned(),
                name: "disk".to_owned(),
                attachment: "att-1".to_owned(),
                engine,
            }],
        }]
    }

    #[test]
    fn rates_cover_the_time_since_the_previous_reading() {
        let first = show(&load(100, 90, 10), &Earlier::default());
        assert!(
            first.contains("90.0 %") && first.contains("25.0 %"),
            "{first}"
        );
        assert!(!first.contains("/s"), "{first}");
        let earlier = Earlier {
            hosts: load(100, 90, 10)
                .into_iter()
                .map(|load| (load.host.clone(), load))
                .collect(),
            seconds: Some(2.0),
        };
        let later = show(&load(300, 100, 40), &earlier);
        assert!(later.contains("100/s") && later.contains("20/s"), "{later}");
        // Ten of the 40 that were requested since then.
        assert!(
            later.contains("25.0 %") && later.contains("75.0 %"),
            "{later}"
        );
    }
}
