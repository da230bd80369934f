//! The events of a monitor filter, compared with the steps of a workload.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::host::Host;
use crate::watched::{THE_END, Tested};
use crate::workload::{Happened, Step};

/// The events that the filter of the volume `disk` has recorded.
pub fn read_events(host: &Host) -> Vec<Value> {
    let output = host.run(&["monitor", "disk", "-o", "json"]);
    assert_eq!(output.code, 0, "{}", output.error);
    let lines = output.out.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("each line is JSON")
}

/// The changes that an event reports; a write is one for each block.
fn changes_in(event: &Value, block_bytes: u64) -> Vec<Happened> {
    let text = |field: &str| event[field].as_str().map(str::to_owned);
    let Some(operation) = text("operation") else {
        return Vec::new();
    };
    let known = [
        "create", "mkdir", "rename", "link", "unlink", "delete", "chmod", "chown", "truncate",
        "write",
    ];
    // Reads are only those that the guest's page cache does not answer.
    let Some(operation) = known.into_iter().find(|one| *one == operation) else {
        assert!(["read", "open"].contains(&&*operation), "{event}");
        return Vec::new();
    };
    let happened = Happened {
        operation,
        paths: text("path").into_iter().collect(),
        to: text("to"),
        block: None,
        now: match operation {
            "chmod" => event["mode"].clone(),
            "chown" => event["owner"].clone(),
            "truncate" => json!([event["size_before"], event["size"]]),
            _ => Value::Null,
        },
    };
    if operation != "write" {
        return vec![happened];
    }
    let number = |field: &str| event[field].as_u64().expect("a number");
    let (begin, length) = (number("offset"), number("length"));
    // Appended content begins at the previous end of the file.
    assert!(length > 0, "{event}");
    let blocks = begin / block_bytes..(begin + length).div_ceil(block_bytes);
    let block = |block| Happened {
        block: Some(block),
        ..happened.clone()
    };
    blocks.map(block).collect()
}

fn matches(expected: &Happened, reported: &Happened) -> bool {
    (
        expected.operation,
        &expected.to,
        expected.block,
        &expected.now,
    ) == (
        reported.operation,
        &reported.to,
        reported.block,
        &reported.now,
    ) && !expected.paths.is_disjoint(&reported.paths)
}

/// Asserts that each step is reported as expected, in order, and nothing else.
fn assert_reported_in_order(steps: &[Step], reported: &[Happened]) {
    let mut reported = reported.iter().peekable();
    let mut last: &[Happened] = &[];
    let mut steps = steps.iter();
    while let Some(step) = steps.next() {
        let mut left: Vec<&Happened> = step.required.iter().collect();
        let mut seen: Vec<&Happened> = Vec::new();
        while let Some(one) = reported.peek() {
            let found = left.iter().position(|expected| matches(expected, one));
            // The guest may write a block twice.
            let again = step.required.iter().chain(&step.optional).chain(last);
            let is_more = || {
                let mut again = again.clone();
                one.block.is_some() && again.any(|expected| matches(expected, one))
            };
            let next = || steps.clone();
            match found {
                Some(at) => drop(left.remove(at)),
                None if left.is_empty()
                    && belongs_to_next_step(next(), one, |step| &step.required) =>
                {
                    break;
                }
                None if is_more() => {}
                None if left.is_empty()
                    && belongs_to_next_step(next(), one, |step| &step.optional) =>
                {
                    break;
                }
                None => panic!(
                    "{:?}: reported {one:?}, before that {seen:#?}; not reported {left:#?}; next {:#?}",
                    step.commands,
                    steps.next()
                ),
            }
            seen.push(one);
            reported.next();
        }
        assert!(
            left.is_empty(),
            "{:?}: not reported: {left:#?}",
            step.commands
        );
        last = &step.optional;
    }
    assert!(
        reported.peek().is_none(),
        "reported in addition: {:#?}",
        reported.collect::<Vec<_>>()
    );
}

/// Whether this belongs to the next step with a report, or to an earlier one.
fn belongs_to_next_step<'a>(
    steps: impl Iterator<Item = &'a Step>,
    reported: &Happened,
    part: impl Fn(&Step) -> &[Happened],
) -> bool {
    for step in steps {
        if part(step)
            .iter()
            .any(|expected| matches(expected, reported))
        {
            return true;
        }
        if !step.required.is_empty() {
            break;
        }
    }
    false
}

/// Asserts that the events about files are those that the steps cause.
pub fn assert_steps_reported(events: &[Value], tested: &Tested, steps: &[Step]) {
    let is_file = |event: &&Value| event["inode"].is_number();
    for event in events.iter().filter(is_file) {
        assert_eq!(event["partition"], json!(tested.partition), "{event}");
    }
    let happened: Vec<Happened> = events
        .iter()
        .filter(is_file)
        .flat_map(|event| changes_in(event, tested.block_bytes))
        .filter(|one| !one.paths.contains(THE_END))
        .collect();
    assert_reported_in_order(steps, &happened);
}

/// Without a journal each block counts as it is written, in the guest's order: a rename is a new
/// name and a removed one. So only events about one block of the file system itself, or about
/// existing files, are checked.
pub fn assert_steps_reported_in_any_order(events: &[Value], tested: &Tested, steps: &[Step]) {
    let happened: Vec<Happened> = events
        .iter()
        .filter(|event| event["inode"].is_number())
        .flat_map(|event| changes_in(event, tested.block_bytes))
        .collect();
    for step in steps {
        let is_new = |path: &BTreeSet<String>| {
            let mut created = step.required.iter();
            created.any(|one| one.operation == "create" && one.paths == *path)
        };
        let known = ["mkdir", "chmod", "chown", "write"];
        let required = step.required.iter();
        for one in required.filter(|one| known.contains(&one.operation)) {
            let is_reported = happened.iter().any(|reported| matches(one, reported));
            assert!(
                is_reported || is_new(&one.paths),
                "{step:#?}: not reported: {one:?}"
            );
        }
    }
}
