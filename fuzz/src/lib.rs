//! The fuzz targets: functions that accept any bytes. They panic only if an invariant is broken.
//!
//! Formats with a checksum or a seal are read twice: as given, and with the checksum corrected, so
//! that the code after the check is reached as well.

use std::sync::Arc;

use base::checksum::crc32c;
use base::{ClusterId, DatabaseId, SegmentId, UnitId};
use unit_folder::format;
use world::World;
use world::simulated::{SimulatedClock, SimulatedDisk, SimulatedPool, SimulatedRandom};

mod disks;
mod filters;
pub mod images;
mod journals;
mod nbd_seeds;
mod traces;
mod units;
mod versions;

pub use disks::{ext_live, ext_view, partition_table};
pub use filters::{luks_header, policy, relay_journal};
pub use journals::{journal_page, journal_record, journal_replay};
pub use nbd::client::fuzz::{fuzz_greeting as nbd_greeting, fuzz_replies as nbd_replies};
pub use nbd::fuzz::fuzz_handshake as nbd_handshake;
pub use nbd::fuzz::fuzz_option as nbd_option;
pub use nbd::fuzz::fuzz_transmission as nbd_transmission;
pub use traces::{foreign_trace, trace_file as trace};
pub use unit::fuzz::fuzz_marker as unit_marker;
pub use units::{capability, daemon_answer, daemon_session};
pub use versions::{free_plan, map_page, tail_page, version_record};

/// A fuzz target.
pub struct Target {
    /// Its name, which is also that of its program in `fuzz_targets/`.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// Valid inputs, from which mutation starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "segment",
        run: segment,
        seeds: segment_seeds,
    },
    Target {
        name: "unit_marker",
        run: unit_marker,
        seeds: unit_marker_seeds,
    },
    Target {
        name: "capability",
        run: capability,
        seeds: units::capability_seeds,
    },
    Target {
        name: "daemon_session",
        run: daemon_session,
        seeds: units::daemon_session_seeds,
    },
    Target {
        name: "daemon_answer",
        run: daemon_answer,
        seeds: units::daemon_answer_seeds,
    },
    Target {
        name: "trace",
        run: trace,
        seeds: traces::trace_seeds,
    },
    Target {
        name: "foreign_trace",
        run: foreign_trace,
        seeds: traces::foreign_trace_seeds,
    },
    Target {
        name: "journal_page",
        run: journal_page,
        seeds: journals::journal_page_seeds,
    },
    Target {
        name: "journal_record",
        run: journal_record,
        seeds: journals::journal_record_seeds,
    },
    Target {
        name: "journal_replay",
        run: journal_replay,
        seeds: journals::journal_replay_seeds,
    },
    Target {
        name: "map_page",
        run: map_page,
        seeds: versions::map_page_seeds,
    },
    Target {
        name: "version_record",
        run: version_record,
        seeds: versions::version_record_seeds,
    },
    Target {
        name: "tail_page",
        run: tail_page,
        seeds: versions::tail_page_seeds,
    },
    Target {
        name: "free_plan",
        run: free_plan,
        seeds: versions::free_plan_seeds,
    },
    Target {
        name: "nbd_option",
        run: nbd_option,
        seeds: nbd_seeds::nbd_option_seeds,
    },
    Target {
        name: "nbd_handshake",
        run: nbd_handshake,
        seeds: nbd_seeds::nbd_handshake_seeds,
    },
    Target {
        name: "nbd_transmission",
        run: nbd_transmission,
        seeds: nbd_seeds::nbd_transmission_seeds,
    },
    Target {
        name: "nbd_greeting",
        run: nbd_greeting,
        seeds: nbd_seeds::nbd_greeting_seeds,
    },
    Target {
        name: "nbd_replies",
        run: nbd_replies,
        seeds: nbd_seeds::nbd_replies_seeds,
    },
    Target {
        name: "ext_view",
        run: ext_view,
        seeds: disks::ext_view_seeds,
    },
    Target {
        name: "ext_live",
        run: ext_live,
        seeds: disks::ext_live_seeds,
    },
    Target {
        name: "partition_table",
        run: partition_table,
        seeds: disks::partition_table_seeds,
    },
    Target {
        name: "luks_header",
        run: luks_header,
        seeds: filters::luks_header_seeds,
    },
    Target {
        name: "relay_journal",
        run: relay_journal,
        seeds: filters::relay_journal_seeds,
    },
    Target {
        name: "policy",
        run: policy,
        seeds: filters::policy_seeds,
    },
];

/// A segment file: header and table.
pub fn segment(data: &[u8]) {
    let check = |bytes: &[u8]| {
        if let Ok((header, entries)) = format::parse(bytes) {
            assert_eq!(format::Header::parse(&header.encode()), Ok(header));
            assert!(entries.len() <= header.capacity as usize);
        }
    };
    check(data);
    let mut repaired = data.to_vec();
    if repaired.len() >= format::HEADER_BYTES {
        let (content, crc) =
            repaired[..format::HEADER_BYTES].split_at_mut(format::HEADER_BYTES - 4);
        crc.copy_from_slice(&crc32c(content).to_le_bytes());
        check(&repaired);
    }
}

fn segment_seeds() -> Vec<Vec<u8>> {
    let segment = SegmentId::from_bits(0x0001_2345_6789).expect("not 0");
    [(4096, 8 << 20), (512, 1 << 20), (65536, 4 << 20)]
        .map(|(slot_bytes, data_bytes)| {
            let header =
                format::Header::new(segment, ClusterId::from_u128(7), slot_bytes, data_bytes)
                    .expect("a valid size");
            let mut bytes = header.encode();
            bytes.resize(4096, 0);
            // A table of 20 entries in any state.
            bytes.extend((0..20 * 24).map(|byte| byte as u8));
            bytes
        })
        .into()
}

fn unit_marker_seeds() -> Vec<Vec<u8>> {
    let cluster = ClusterId::from_u128(1);
    let unit = UnitId::from_u128(2);
    let database = DatabaseId::from_u128(3);
    let owner = format!("[owner]\ndatabase = \"{database}\"\ngeneration = 4294967295\n");
    [
        format!(
            "format = 1\ncluster = \"{cluster}\"\nunit = \"{unit}\"\n\n{owner}place = \"/srv/\\\"a b\\\" on vm1\"\n"
        ),
        format!("# A unit.\nformat = 1\ncluster = \"{cluster}\"\nunit = \"{unit}\"\n"),
        format!("format = 0\nunit = '{unit}'\ncluster = '{cluster}'\n[more]\nfields = [1]"),
        "format = 2\nclan = 1\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

fn world() -> World {
    let pool = SimulatedPool::new();
    World {
        disk: Arc::new(SimulatedDisk::new(1)),
        clock: Arc::new(SimulatedClock::new(world::Millis(0))),
        random: Arc::new(SimulatedRandom::new(1)),
        pool: Arc::new(pool),
    }
}
