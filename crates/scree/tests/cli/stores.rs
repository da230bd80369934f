//! Unit daemons of a site.

use std::fs;

use crate::service::{Process, Site};

/// Daemons, each in a folder of its own.
pub struct Stores<'a> {
    site: &'a Site,
    pub running: Vec<Process>,
}

impl<'a> Stores<'a> {
    pub fn new(site: &'a Site, count: usize) -> Self {
        let mut stores = Self {
            site,
            running: Vec::new(),
        };
        for number in 1..=count {
            let invited = site.locally(&["unit", "create", &format!("s{number}")]);
            let joined = site.join_unit_in(&format!("u{number}"), &invited);
            assert_eq!(joined.code, 0, "{}", joined.error);
            stores.running.push(stores.start(number));
        }
        stores
    }

    /// Starts daemon `number`, at another port each time.
    pub fn start(&self, number: usize) -> Process {
        let folder = self.site.text(&format!("u{number}"));
        Process::start(&["unit", "--dir", &folder, "--listen", "127.0.0.1:0"])
    }

    /// The states of the units, by the names of their daemons.
    pub fn states(&self) -> Vec<(String, String)> {
        let units = self.site.locally(&["unit", "list"]);
        let units = units.as_array().expect("a list");
        let text = |unit: &serde_json::Value, field: &str| {
            let text = unit[field].as_str();
            text.expect("text").to_owned()
        };
        let mut states: Vec<_> = units
            .iter()
            .map(|unit| (text(unit, "daemon"), text(unit, "state")))
            .collect();
        states.sort();
        states
    }

    /// Whether exactly these units exist and are healthy.
    pub fn are(&self, numbers: &[usize]) -> bool {
        let well = |number: &usize| (format!("s{number}"), "healthy".to_owned());
        let expected: Vec<_> = numbers.iter().map(well).collect();
        self.states() == expected
    }

    /// Whether a unit has blocks of a volume.
    pub fn has_segments(&self, number: usize) -> bool {
        let segments = self.site.path(&format!("u{number}/unit/segments"));
        let mut entries = fs::read_dir(segments).expect("a folder");
        entries.any(|entry| {
            let entry = entry.expect("read").path();
            !entry.is_dir() || fs::read_dir(entry).expect("a folder").next().is_some()
        })
    }
}
