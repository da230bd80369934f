//! Limits of single volumes on their hosts.

use crate::host::Host;

#[test]
fn a_new_journal_size_applies_from_the_next_attachment_on() {
    let host = Host::with(&["--units", "2"]);
    let create = ["volume", "create", "disk", "--size", "16M"];
    let sizes = ["--journal-size", "32M", "--cache-max", "2M"];
    let made = host.json(&[&create[..], &sizes].concat());
    assert_eq!(
        (&made["journal_bytes"], &made["cache_max_bytes"]),
        (&(32 << 20).into(), &(2 << 20).into())
    );
    let journal = || {
        host.json(&["volume", "export", "disk"]);
        let shown = host.json(&["volume", "show", "disk"]);
        shown["engine"]["journal_bytes"].as_u64().expect("a number")
    };
    assert_eq!(journal(), 32 << 20);
    // A size that is not given stays.
    let set = host.json(&["volume", "set", "disk", "--journal-size", "default"]);
    assert!(set["journal_bytes"].is_null());
    assert_eq!(set["cache_max_bytes"], 2 << 20);
    assert_eq!(journal(), 32 << 20, "it is in use");
    host.json(&["volume", "unexport", "disk"]);
    assert_eq!(journal(), 16 << 20, "as the host has it for all");
    let set = host.json(&["volume", "set", "disk", "--cache-max", "default"]);
    assert!(set["cache_max_bytes"].is_null());

    let set = ["volume", "set", "disk"];
    let refuses = |code, more: &[&str], words: &[&str]| {
        host.refuses(code, &[&set[..], more].concat(), words);
    };
    refuses(
        1,
        &["--journal-size", "1M"],
        &["a journal has a size of 8M to 256G"],
    );
    refuses(1, &["--cache-max", "4K"], &["a cache is at least 1M"]);
    // Either option is enough.
    refuses(2, &[], &["--journal-size <SIZE>|--cache-max <SIZE>"]);
}
