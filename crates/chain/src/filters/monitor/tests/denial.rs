//! Requests that a rule denies, and what is judged once.

use base::{BlockDevice, Durability, Request, Started};
use serde_json::Value;

use super::{Rig, paths, trojan};

#[test]
fn a_denied_request_does_not_reach_the_disk() {
    let (before, replayed, after) = trojan();
    let rules = "[[filter.rule]]\nname = 'sealed'\npaths = ['/bin/**']\n\
                 operations = ['create']\naction = 'deny'\n\
                 [[filter.rule]]\nname = 'secret'\npaths = ['/again']\n\
                 operations = ['read', 'write']\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.events();
    let mut denied = Vec::new();
    for (block, content) in before.written(&replayed, 4096) {
        if let Err(error) = rig.write(block * 4096, content) {
            denied.push((block, error.to_string()));
        }
    }
    let [(block, why)] = &denied[..] else {
        panic!("one write completes the transaction: {denied:?}");
    };
    assert!(why.contains("\"sealed\""), "{why}");
    let on_disk = rig.chain.bottom().bytes();
    let at = (block * 4096) as usize..(block * 4096 + 4096) as usize;
    assert_eq!(on_disk[at.clone()], before.0[at]);
    let events = rig.events();
    let event = events.iter().find(|event| event["rule"] == "sealed");
    let event = event.expect("it is events");
    assert_eq!(
        (&event["action"], &event["path"]),
        (&"deny".into(), &"/bin/trojan".into())
    );
    drop((replayed, after));

    // The disk is read again, since the denied write was followed.
    rig.until(|rig| {
        let events = rig.events();
        events
            .iter()
            .any(|event| event["message"].is_string())
            .then_some(())
    });
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    let refused = rig.read(run.block * 4096, 4096).expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
    let refused = rig.write(run.block * 4096, &[9; 4096]).expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
    // Other blocks can be read.
    rig.read(0, 4096).expect("read");
}

/// With a rule that denies, each read was judged twice: before it started, and when it was
/// reported. A rule with `first_time` matched only before, and reported nothing.
#[test]
fn a_read_is_judged_once() {
    let (before, ..) = trojan();
    let rules = "[[filter.rule]]\nname = 'first'\npaths = ['/again']\n\
                 operations = ['read']\nfirst_time = true\naction = 'alert'\n\
                 [[filter.rule]]\nname = 'often'\npaths = ['/again']\n\
                 operations = ['read']\nmore_than_a_minute = 2\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.events();
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    for number in 0..4 {
        let read = rig.read(run.block * 4096, 4096);
        assert_eq!(read.is_err(), number >= 2, "{number}: {read:?}");
        let events = rig.events();
        let reads = events.iter().filter(|event| event["operation"] == "read");
        let rules: Vec<&Value> = reads.map(|event| &event["rule"]).collect();
        let expected = [
            Value::from("first"),
            Value::Null,
            "often".into(),
            "often".into(),
        ];
        assert_eq!(rules, [&expected[number]], "{number}: {events:?}");
    }
}

/// A server may retry a request with another token, and use its token for another request
/// meanwhile. Each write is reported and counted once, and each is judged.
#[test]
fn a_retried_write_is_recognized_by_its_range_and_content() {
    let (before, ..) = trojan();
    let rules = "[[filter.rule]]\nname = 'often'\npaths = ['/again']\n\
                 operations = ['write']\nmore_than_a_minute = 2\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.events();
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    let offer = |rig: &mut Rig, token: u64, data: &[u8], busy: u64| {
        rig.chain.bottom().misbehavior.pending_one_in = 0;
        rig.chain.bottom().misbehavior.busy_one_in = busy;
        let at = run.block * 4096;
        let started = rig
            .chain
            .start(Request::write(token, at, data, Durability::Volatile));
        rig.chain.bottom().misbehavior.busy_one_in = 0;
        started
    };
    let writes = |events: &[Value]| paths(events, "write").len();
    for token in 100..110 {
        assert_eq!(offer(&mut rig, token, &[1; 4096], 1), Started::Busy);
    }
    assert_eq!(offer(&mut rig, 110, &[1; 4096], 0), Started::Done);
    assert_eq!(writes(&rig.events()), 1);
    assert_eq!(offer(&mut rig, 111, &[2; 4096], 1), Started::Busy);
    // Its requester gave it up. Other data for the same range is another write.
    let denied = offer(&mut rig, 111, &[3; 4096], 0);
    assert!(matches!(denied, Started::Failed(_)), "{denied:?}");
    let events = rig.events();
    assert!(
        events.iter().any(|event| event["action"] == "deny"),
        "{events:?}"
    );
}
