//! Trims and writes of zeroes.

use base::{BlockDevice, IoError};
use extfs::Owner;
use serde_json::Value;

use super::{Rig, offset_of, paths, trojan};

type Change<'a> = dyn Fn(&mut Rig) -> Result<(), IoError> + 'a;

/// Trims were not monitored, so a file that may not be written could be emptied without an event.
#[test]
fn a_trim_of_a_file_is_judged_and_reported_as_a_write() {
    let (before, ..) = trojan();
    let rule = "[[filter.rule]]\nname = 'sealed'\npaths = ['/again']\n\
                operations = ['write']\naction = 'deny'\n";
    let at = offset_of(&before, b"/again");
    let length = before.0.len() as u64;
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    rig.events();
    let changes: [(&str, &Change<'_>); 4] = [
        ("the block", &|rig| rig.trim(at, 4096)),
        ("a part of it", &|rig| rig.trim(at + 512, 512)),
        ("all of the disk", &|rig| rig.trim(0, length)),
        ("as zeroes", &|rig| rig.write_zeroes(0, length)),
    ];
    for (name, change) in changes {
        let refused = change(&mut rig).expect_err(name);
        assert!(
            refused.to_string().contains("\"sealed\""),
            "{name}: {refused}"
        );
        assert!(rig.chain.bottom().bytes() == &before.0[..], "{name}");
        let events = rig.events();
        let denied = events.iter().find(|event| event["action"] == "deny");
        let denied = denied.unwrap_or_else(|| panic!("{name}: {events:?}"));
        assert_eq!(
            (&denied["operation"], &denied["path"]),
            (&"write".into(), &"/again".into())
        );
    }
    // Without a rule it is carried out and reported.
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.events();
    rig.trim(at, 4096).expect("trimmed");
    assert_eq!(paths(&rig.events(), "write"), ["/again"]);
    assert!(rig.chain.next_timer().is_none(), "all is known of the disk");
}

/// With a rule that denies, a write is followed before it is forwarded. The monitor once kept the
/// state after a write that had failed, and judged later requests by names that were not on the
/// disk.
#[test]
fn a_followed_write_that_fails_is_undone() {
    let (before, ..) = trojan();
    let rule = "[[filter.rule]]\nname = 'secret'\npaths = ['/bin/**']\n\
                operations = ['read']\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    rig.events();
    let names = offset_of(&before, b"/bin");
    rig.chain.bottom().misbehavior.pending_one_in = 0;
    rig.chain.bottom().misbehavior.damaged = names..names + 4096;
    rig.write(names, &[0; 4096]).expect_err("it is damaged");
    rig.chain.bottom().misbehavior.damaged = 0..0;
    rig.events();
    assert!(
        rig.chain.next_timer().is_some(),
        "the disk has to be read again"
    );
    rig.until_reread();
    let refused = rig.read(offset_of(&before, b"/bin/large"), 4096);
    let refused = refused.expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
}

/// Most trims follow the deletion of files.
#[test]
fn a_trim_of_free_blocks_is_not_reported() {
    let (before, ..) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.events();
    let view = before.view().expect("a file system");
    let mut free = Vec::new();
    let blocks = 0..before.0.len() as u64 / 4096;
    view.owners(blocks, |run, owner| {
        if owner == Owner::Unowned {
            free.push(run);
        }
    });
    assert!(!free.is_empty());
    for run in free {
        let length = (run.end - run.start) * 4096;
        rig.trim(run.start * 4096, length).expect("trimmed");
    }
    assert_eq!(rig.events(), Vec::<Value>::new());
    assert!(rig.chain.next_timer().is_none(), "all is known of the disk");
}

/// A trim leaves unknown content, so the disk is read.
#[test]
fn after_a_trim_of_metadata_the_disk_is_read_again() {
    let (before, ..) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.events();
    let at = offset_of(&before, b"/bin");
    rig.trim(at, 4096).expect("trimmed");
    rig.until_reread();
    // The owner of the block has no path any more.
    let large = offset_of(&before, b"/bin/large");
    rig.write(large, &[1; 4096]).expect("written");
    let events = rig.events();
    let write = events.iter().find(|event| event["operation"] == "write");
    let write = write.expect("reported");
    assert_eq!(write["path"], Value::Null, "{write}");
}
