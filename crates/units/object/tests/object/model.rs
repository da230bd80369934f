//! Anything that several hosts may do, in any order, with a request failing now
//! and then, compared with what should come of it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use unit::{Unit as _, UnitError};
use unit_object::ObjectUnit;

use crate::help::{Fails, Site, free, live, local, memory, put_slots, segment};

const HOSTS: usize = 3;
const SEGMENTS: u64 = 3;

#[derive(Debug, Clone)]
enum Act {
    Put(u64, u16),
    Free(u64, BTreeSet<u16>),
    Settle,
    Delete(u64),
    /// The process of this host ends, and another one begins.
    Restart,
    Read(u64),
}

/// An action of one client, and which of its requests fails, if any.
type Step = (usize, Act, Option<(i64, bool)>);

fn step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        2 => (0..SEGMENTS, 1u16..70).prop_map(|(number, slots)| Act::Put(number, slots)),
        5 => (0..SEGMENTS, proptest::collection::btree_set(0u16..70, 0..30))
            .prop_map(|(number, slots)| Act::Free(number, slots)),
        3 => Just(Act::Settle),
        1 => (0..SEGMENTS).prop_map(Act::Delete),
        1 => Just(Act::Restart),
        3 => (0..SEGMENTS).prop_map(Act::Read),
    ];
    let fails = proptest::option::weighted(0.3, (0i64..8, any::<bool>()));
    (0..HOSTS, act, fails)
}

/// The expected state: the number of slots that were put, and the live ones.
#[derive(Default)]
struct Model(BTreeMap<u64, (u16, BTreeSet<u16>)>);

impl Model {
    fn apply(&mut self, act: &Act) {
        match act {
            Act::Put(number, slots) => {
                self.0
                    .entry(*number)
                    .or_insert((*slots, (0..*slots).collect()));
            }
            Act::Free(number, freed) => {
                if let Some((_, live)) = self.0.get_mut(number) {
                    live.retain(|slot| !freed.contains(slot));
                    if live.is_empty() {
                        self.0.remove(number);
                    }
                }
            }
            Act::Delete(number) => {
                self.0.remove(number);
            }
            Act::Settle | Act::Restart | Act::Read(_) => {}
        }
    }

    fn live(&self, number: u64) -> Vec<u16> {
        let found = self.0.get(&number).map(|(_, live)| live);
        found.into_iter().flatten().copied().collect()
    }

    fn check(&self, unit: &ObjectUnit) {
        let mut expected: Vec<_> = self.0.keys().map(|number| segment(*number)).collect();
        expected.sort_unstable();
        assert_eq!(unit.list().expect("listed"), expected);
        for (number, (slots, live_slots)) in &self.0 {
            let stat = unit.stat_segment(segment(*number)).expect("there");
            assert_eq!(stat.slots, u32::from(*slots));
            assert_eq!(stat.slots - stat.freed, live_slots.len() as u32);
            assert_eq!(live(unit, segment(*number), 0..71), self.live(*number));
            assert_eq!(unit.scrub(segment(*number)).expect("scrubbed"), []);
        }
    }
}

fn carry_out(unit: &ObjectUnit, act: &Act) -> Result<(), UnitError> {
    match act {
        Act::Put(number, slots) => match put_slots(unit, segment(*number), 4096, *slots) {
            // By a put before this one, of as many or of others.
            Err(UnitError::Misplaced { .. }) => Ok(()),
            other => other,
        },
        Act::Free(number, slots) => free(unit, segment(*number), slots.iter().copied()),
        Act::Settle => {
            while unit.reclaim()? {}
            Ok(())
        }
        Act::Delete(number) => unit.delete(segment(*number)),
        Act::Restart | Act::Read(_) => Ok(()),
    }
}

fn run(site: &Site, steps: &[Step]) {
    site.unit();
    let mut hosts: Vec<ObjectUnit> = (0..HOSTS).map(|_| site.open()).collect();
    let mut model = Model::default();
    for (host, act, failure) in steps {
        if let Some((count, is_before)) = failure {
            let fails = if *is_before {
                Fails::Before
            } else {
                Fails::After
            };
            site.store.fail_after(*count, fails);
        }
        let first = carry_out(&hosts[*host], act);
        site.store.take_unfailed();
        if first.is_err() {
            carry_out(&hosts[*host], act).expect("it can be done again");
        }
        model.apply(act);
        match act {
            Act::Restart => hosts[*host] = site.open(),
            Act::Read(number) => {
                // What others have freed since may still be read, and then right.
                let found = live(&hosts[*host], segment(*number), 0..71);
                let missing = model.live(*number);
                assert!(missing.iter().all(|slot| found.contains(slot)), "{found:?}");
            }
            _ => {}
        }
    }
    model.check(&site.open());
    for unit in &hosts {
        while unit.reclaim().expect("settled") {}
    }
    let walks = site.open();
    while walks.reclaim().expect("settled") {}
    model.check(&walks);
    // Nothing is left of deleted segments.
    let names = site.store.names();
    for number in (0..SEGMENTS).filter(|number| !model.0.contains_key(number)) {
        let left = format!("/{number:09x}-");
        assert!(!names.iter().any(|name| name.contains(&left)), "{names:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn hosts_agree_with_the_model(steps in proptest::collection::vec(step(), 1..40)) {
        run(&Site::new(memory()), &steps);
    }

    #[test]
    fn hosts_agree_with_the_model_where_nothing_is_replaced_on_condition(
        steps in proptest::collection::vec(step(), 1..20),
    ) {
        let (_folder, store) = local();
        run(&Site::new(store), &steps);
    }
}
