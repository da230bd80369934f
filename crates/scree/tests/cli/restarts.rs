//! After a restart of its host, a disk in use keeps the filters that it was served through,
//! whatever its chain is now.

use std::path::PathBuf;

use crate::host::{Host, wait_until};

const ENCRYPT: &str = "[[filter]]\nkind = 'encrypt'\nkey = 'disk'\nformat = 'if-empty'\n";

fn shown(host: &Host, volume: &str) -> String {
    let said = host.run(&["attachment", "list"]);
    let lines = said.out.lines().filter(|line| line.starts_with(volume));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Once such a disk was served without encryption, with the header as its first blocks, which the
/// guest then overwrote.
#[test]
fn an_encrypted_disk_in_use_stays_encrypted_after_its_chain_is_deleted() {
    let mut host = Host::with(&["--units", "2"]);
    host.filter_key("disk", "a passphrase");
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let said = host.apply_chain("disk", ENCRYPT);
    assert_eq!(said.code, 0, "{}", said.error);
    host.json(&["volume", "export", "disk"]);
    host.qemu_io("disk", &["write -P 5 0 1M", "flush"]);
    let deleted = host.run(&["chain", "delete", "disk"]);
    assert_eq!(deleted.code, 1, "{}", deleted.out);
    let why = "the size of the disk would change from 50331648 to 67108864 bytes";
    assert!(deleted.error.contains(why), "{}", deleted.error);
    assert!(deleted.error.contains("still"), "{}", deleted.error);
    for is_killed in [true, false] {
        match is_killed {
            true => host.kill(),
            false => assert_eq!(host.stop(), 0),
        }
        host.start();
        assert_eq!(host.state("disk"), "in-use");
        host.qemu_io("disk", &["read -P 5 0 1M", "write -P 5 0 1M"]);
        wait_until("it is reported", || shown(&host, "disk").contains(why));
    }
    // A chain of the same size replaces it.
    let monitored = format!("[[filter]]\nkind = 'monitor'\n{ENCRYPT}");
    let said = host.apply_chain("disk", &monitored);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(!shown(&host, "disk").contains(why));
    host.kill();
    host.start();
    host.qemu_io("disk", &["read -P 5 0 1M"]);
    // The disk is not in use any more.
    host.json(&["volume", "unexport", "disk"]);
    let deleted = host.run(&["chain", "delete", "disk"]);
    assert_eq!(deleted.code, 0, "{}", deleted.error);
    host.json(&["volume", "export", "disk"]);
    host.qemu_io("disk", &["read -P 0 63M 1M"]);
}

/// Once acknowledged writes were lost silently.
#[test]
fn a_disk_whose_filter_lost_its_journal_is_not_served() {
    let mut host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let filters = "[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\nflush = 'journal'\n\
                 [[filter]]\nkind = 'fault'\ndelays_one_in = 1\ndelay_ms = 3000\n";
    let said = host.apply_chain("disk", filters);
    assert_eq!(said.code, 0, "{}", said.error);
    host.json(&["volume", "export", "disk"]);
    host.qemu_io("disk", &["write -P 2 0 1M", "flush"]);
    let chains = std::fs::read_dir(host.path().join("chains")).expect("listed");
    let mut journals = chains.map(|volume| volume.expect("one").path().join("fast.journal"));
    let journal: PathBuf = journals.find(|path| path.exists()).expect("it exists");
    let aside = journal.with_extension("elsewhere");
    host.kill();
    std::fs::rename(&journal, &aside).expect("renamed");
    host.start();
    wait_until("it is reported", || {
        shown(&host, "disk").contains("the journal of filter fast is missing")
    });
    host.kill();
    std::fs::rename(&aside, &journal).expect("renamed");
    host.start();
    assert_eq!(host.state("disk"), "in-use");
    host.qemu_io("disk", &["read -P 2 0 1M"]);
    // After accepting the loss, the operator has the state of the volume.
    host.kill();
    std::fs::remove_file(&journal).expect("removed");
    host.start();
    wait_until("it is reported", || {
        shown(&host, "disk").contains("the journal of filter fast is missing")
    });
    let forced = host.run(&["detach", "disk", "--force"]);
    assert_eq!(forced.code, 0, "{}", forced.error);
    let said = host.run(&["chain", "delete", "disk"]);
    assert_eq!(said.code, 0, "{}", said.error);
    host.json(&["volume", "export", "disk"]);
    // All writes had been written below by then.
    host.qemu_io("disk", &["read -P 2 0 1M"]);
}
