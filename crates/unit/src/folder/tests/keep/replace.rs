//! Keeping what is replaced.

use world::simulated::{Fault, Simulation};

use super::{is_there, made, of, path_of, put_synced, replaced};
use crate::Unit as _;
use crate::conformance::{SLOT_BYTES, read, replace, segment};
use crate::folder::SegmentFate;

/// Where the content begins of a segment of the usual size, in bytes.
const DATA_OFFSET: u64 = 53_248;

/// What mending replaces has often just that: a sector that cannot be read. It could
/// not be kept, so it could not be mended either.
#[test]
fn a_segment_that_cannot_be_read_everywhere_is_replaced_and_the_rest_of_it_is_kept() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 600);
    let path = path_of(&unit, id);
    for slot in [7, 300, 599] {
        let offset = DATA_OFFSET + slot * u64::from(SLOT_BYTES) + 512;
        let length = 512;
        let fault = Fault::BadSectors { offset, length };
        simulation.disk.inject(&path, fault);
    }
    replace(&unit, id, segment(9), (Some(0), 1), 600).expect("replaced");
    simulation.disk.heal(&path);
    assert_eq!(unit.stat_segment(id).expect("there").generation, 1);
    assert_eq!(unit.kept_freed().expect("known").segments, 1);

    let restored = unit.restore(&replaced(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::PutBack, 0, 0));
    let bad = unit.scrub(id).expect("scrubbed");
    assert_eq!(bad, [7, 300, 599].map(base::Slot));
    for run in [0..7, 8..300, 301..599] {
        let count = run.end - run.start;
        read(&unit, id, SLOT_BYTES, run.start, count).expect("as it was put");
    }
    assert_eq!(is_there(&unit, id, 0..1), [true]);
}
