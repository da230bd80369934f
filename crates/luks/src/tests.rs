//! Round trips, and tests against the real cryptsetup.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use world::simulated::SimulatedRandom;

use super::*;

/// As cheap as Argon2 gets.
pub(super) const CHEAP: Argon2Cost = Argon2Cost {
    memory_kib: 32,
    passes: 4,
    lanes: 1,
};

/// Applies steps to a disk in memory.
pub(super) fn carry_out(disk: &mut [u8], steps: &[Step]) {
    for step in steps {
        if let Step::Write { offset, bytes } = step {
            let at = *offset as usize;
            assert!(at + bytes.len() <= DATA_OFFSET as usize, "no data");
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// The beginning of a formatted disk, its header and its key.
pub(super) fn formatted(random: &SimulatedRandom) -> (Vec<u8>, Header, KeyBytes) {
    let mut disk = vec![0; DATA_OFFSET as usize];
    let made = Header::format(512, 0, CHEAP, b"secret", random);
    let (header, key, steps) = made.expect("made");
    carry_out(&mut disk, &steps);
    (disk, header, key)
}

#[test]
fn a_formatted_disk_is_read_and_opens() {
    let random = SimulatedRandom::new(1);
    let (disk, header, key) = formatted(&random);
    let (read, repair) = Header::read(&disk).expect("read");
    assert_eq!(repair, None);
    assert_eq!(read.layout(), header.layout());
    assert_eq!(read.unlock(&disk, b"secret"), Ok(key));
    assert_eq!(
        read.unlock(&disk, b"secreT"),
        Err(UnlockError::Wrong { tried: 1 })
    );
    let (_, other) = (formatted(&random), &header);
    assert_ne!(formatted(&random).1.binary.uuid, other.binary.uuid);
}

#[test]
fn a_damaged_key_slot_opens_nothing() {
    let random = SimulatedRandom::new(2);
    let (mut disk, header, _) = formatted(&random);
    let area = header.layout().slots[0].area.clone();
    for at in [0, 100_000, 255_999] {
        disk[area.start as usize + at] ^= 4;
        let wrong = Err(UnlockError::Wrong { tried: 1 });
        assert_eq!(header.unlock(&disk, b"secret"), wrong, "byte {at}");
        disk[area.start as usize + at] ^= 4;
    }
    assert!(header.unlock(&disk, b"secret").is_ok());
    // Nor does one that is not there.
    assert!(header.unlock(&disk[..40_000], b"secret").is_err());
}

#[test]
fn passphrases_are_added_and_removed_except_the_last_one() {
    let random = SimulatedRandom::new(3);
    let (mut disk, mut header, key) = formatted(&random);
    assert_eq!(header.remove_key(0, &random), Err(SlotError::Last(0)));
    assert_eq!(header.remove_key(7, &random), Err(SlotError::NoSuch(7)));
    let other = KeyBytes::new([7; KEY_BYTES]);
    let refused = header.add_key(&other, CHEAP, b"second", &random);
    assert_eq!(refused, Err(SlotError::Key));
    let (id, steps) = header
        .add_key(&key, CHEAP, b"second", &random)
        .expect("added");
    assert_eq!(id, 1);
    carry_out(&mut disk, &steps);
    let (mut header, _) = Header::read(&disk).expect("read");
    for passphrase in [&b"secret"[..], b"second"] {
        assert_eq!(header.unlock(&disk, passphrase).as_ref(), Ok(&key));
    }
    let steps = header.remove_key(0, &random).expect("removed");
    carry_out(&mut disk, &steps);
    let (header, _) = Header::read(&disk).expect("read");
    assert!(header.unlock(&disk, b"secret").is_err());
    assert_eq!(header.unlock(&disk, b"second"), Ok(key));
    // Nothing is left of it.
    assert!(disk[32 << 10..284 << 10].iter().all(|byte| *byte == 0));
}

/// New slots were once placed over others.
#[test]
fn there_is_room_for_32_passphrases() {
    let random = SimulatedRandom::new(4);
    let (mut disk, mut header, key) = formatted(&random);
    for slot in 1..32 {
        let added = header.add_key(&key, CHEAP, &[slot], &random);
        carry_out(&mut disk, &added.expect("there is room").1);
    }
    let full = header.add_key(&key, CHEAP, b"more", &random);
    assert_eq!(full, Err(SlotError::Full));
    assert!(header.unlock(&disk, &[31]).is_ok());
    let steps = header.remove_key(5, &random).expect("removed");
    carry_out(&mut disk, &steps);
    let added = header.add_key(&key, CHEAP, b"again", &random);
    let (id, steps) = added.expect("there is room");
    assert_eq!(id, 5);
    carry_out(&mut disk, &steps);
    let (header, _) = Header::read(&disk).expect("read");
    assert!(header.unlock(&disk, b"again").is_ok());
}

#[test]
fn an_interrupted_change_leaves_a_disk_that_opens() {
    let random = SimulatedRandom::new(5);
    let (mut disk, mut header, key) = formatted(&random);
    let (_, steps) = header
        .add_key(&key, CHEAP, b"second", &random)
        .expect("added");
    for step in &steps {
        // Only half of the step is written.
        if let Step::Write { offset, bytes } = step {
            let half = Step::Write {
                offset: *offset,
                bytes: bytes[..bytes.len() / 2].to_vec(),
            };
            carry_out(&mut disk, &[half]);
        }
        let (header, _) = Header::read(&disk).expect("one copy is valid");
        assert_eq!(header.unlock(&disk, b"secret").as_ref(), Ok(&key));
        carry_out(&mut disk, std::slice::from_ref(step));
        let (header, repair) = Header::read(&disk).expect("one copy is valid");
        assert_eq!(header.unlock(&disk, b"secret").as_ref(), Ok(&key));
        let mut repaired = disk.clone();
        let steps = repair.map(|copy| header.repair(copy, &random));
        carry_out(&mut repaired, &steps.unwrap_or_default());
        let (same, repair) = Header::read(&repaired).expect("both are valid");
        assert_eq!((same.layout(), repair), (header.layout(), None));
    }
}

#[test]
fn unknown_fields_are_kept() {
    let random = SimulatedRandom::new(6);
    let (mut disk, mut header, key) = formatted(&random);
    let mut tree = header.tree.clone();
    let token = serde_json::json!({ "type": "tpm", "keyslots": ["0"], "blob": [1, { "a": null }] });
    tree["tokens"]["3"] = token.clone();
    tree["keyslots"]["0"]["color"] = "green".into();
    tree["new"] = 7.into();
    carry_out(&mut disk, &header.change(tree, &random).expect("changed"));
    let (mut header, _) = Header::read(&disk).expect("read");
    let added = header.add_key(&key, CHEAP, b"second", &random);
    carry_out(&mut disk, &added.expect("added").1);
    let (header, _) = Header::read(&disk).expect("read");
    assert_eq!(header.tree["tokens"]["3"], token);
    assert_eq!(header.tree["keyslots"]["0"]["color"], "green");
    assert_eq!(header.tree["new"], 7);
}

#[test]
fn a_reencryption_has_two_keys_until_it_ends() {
    let random = SimulatedRandom::new(9);
    let (mut disk, mut header, old) = formatted(&random);
    let begun = header.begin_reencryption(3, CHEAP, b"secret", &random);
    let (new, steps) = begun.expect("begun");
    carry_out(&mut disk, &steps);
    assert_ne!(old, new);
    let again = header.begin_reencryption(4, CHEAP, b"secret", &random);
    assert_eq!(again, Err(SlotError::Reencrypting));
    let added = header.add_key(&old, CHEAP, b"second", &random);
    assert_eq!(added, Err(SlotError::Reencrypting));
    assert_eq!(header.remove_key(0, &random), Err(SlotError::Reencrypting));
    for boundary in [0, 4096, 1 << 20, 1 << 50] {
        if boundary > 0 {
            let steps = header.advance(boundary, &random).expect("it goes on");
            carry_out(&mut disk, &steps);
        }
        let (read, repair) = Header::read(&disk).expect("read");
        assert_eq!((read.layout(), repair), (header.layout(), None));
        let run = read.layout().run.as_ref().expect("it is under way");
        assert_eq!((run.to, run.boundary, read.layout().done), (3, boundary, 0));
        let both = read.unlock_both(&disk, b"secret").expect("it opens");
        assert_eq!(both, (old.clone(), new.clone()));
    }
    assert!(header.advance(4095, &random).is_err(), "no whole blocks");
    carry_out(&mut disk, &header.finish(&random).expect("it ends"));
    let (mut read, _) = Header::read(&disk).expect("read");
    assert_eq!(read.layout().run, None);
    assert_eq!((read.layout().done, read.layout().slots.len()), (3, 1));
    assert_eq!(read.unlock(&disk, b"secret"), Ok(new));
    assert_eq!(read.wipe_remains(&disk), []);
    assert!(read.finish(&random).is_err() && read.advance(4096, &random).is_err());
    // The remains of an interrupted end are wiped.
    disk[40 << 10] = 1;
    disk[(16 << 20) - 1] = 1;
    let steps = read.wipe_remains(&disk);
    assert_eq!(steps.len(), 3);
    carry_out(&mut disk, &steps);
    assert_eq!(read.wipe_remains(&disk), []);
    assert!(read.unlock(&disk, b"secret").is_ok());
}

#[test]
fn a_journal_is_valid_only_as_a_whole_and_for_its_zone() {
    let random = SimulatedRandom::new(10);
    let (mut disk, mut header, _) = formatted(&random);
    assert_eq!(header.save(&[1; 4096]), [], "none is under way");
    let begun = header.begin_reencryption(1, CHEAP, b"secret", &random);
    carry_out(&mut disk, &begun.expect("begun").1);
    carry_out(
        &mut disk,
        &header.advance(8192, &random).expect("it goes on"),
    );
    assert_eq!(header.saved(&disk), None);
    let content: Vec<u8> = (0..ZONE_BYTES).map(|at| (at / 7) as u8).collect();
    carry_out(&mut disk, &header.save(&content));
    let saved = Saved {
        begin: 8192,
        content,
    };
    assert_eq!(header.saved(&disk).as_ref(), Some(&saved));
    // Flipped bytes. The rest of the first block is unused.
    let journal = (16 << 20) - ZONE_BYTES as usize - 4096;
    for at in (0..72).chain((4096..4096 + ZONE_BYTES as usize).step_by(99_991)) {
        disk[journal + at] ^= 0x10;
        assert!(header.saved(&disk).is_none(), "byte {at}");
        disk[journal + at] ^= 0x10;
    }
    assert_eq!(header.saved(&disk[..disk.len() - 1]), None);
    // The zone is done, or the journal is of another re-encryption.
    let mut other = header.clone();
    other.layout.run.as_mut().expect("it is under way").id[3] ^= 1;
    assert_eq!(other.saved(&disk), None);
    carry_out(
        &mut disk,
        &header.advance(12_288, &random).expect("it goes on"),
    );
    assert_eq!(header.saved(&disk), None);
}

// The following tests use the real cryptsetup on plain files.

struct Files(tempfile::TempDir);

#[expect(
    clippy::disallowed_methods,
    reason = "cryptsetup is asked on a real machine"
)]
impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("read")
    }
}

fn run(arguments: &[&str], files: &[&Path]) -> Output {
    Command::new("cryptsetup")
        .args(arguments)
        .args(files)
        .output()
        .expect("cryptsetup is installed: tools/packages test")
}

fn cryptsetup(arguments: &[&str], files: &[&Path]) -> String {
    let output = run(arguments, files);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const OPEN: [&str; 4] = ["open", "--test-passphrase", "--batch-mode", "--key-file"];

#[test]
fn cryptsetup_opens_a_disk_that_scree_formatted() {
    let random = SimulatedRandom::new(7);
    let (mut disk, ..) = formatted(&random);
    let files = Files::new();
    let (good, bad) = (files.write("good", b"secret"), files.write("bad", b"no"));
    let more = files.write("more", b"from outside");
    disk.resize(20 << 20, 0);
    let image = files.write("image", &disk);
    let said = cryptsetup(&["luksDump"], &[&image]);
    for expected in ["aes-xts-plain64", "argon2id", "512 bits", "(whole device)"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    cryptsetup(&OPEN, &[&good, &image]);
    assert!(!run(&OPEN, &[&bad, &image]).status.success());
    // A key that cryptsetup adds opens the disk here.
    let add = [
        "luksAddKey",
        "--batch-mode",
        "--pbkdf",
        "argon2i",
        "--pbkdf-memory",
        "32",
        "--pbkdf-force-iterations",
        "4",
        "--key-file",
    ];
    cryptsetup(&add, &[&good, &image, &more]);
    let disk = files.read("image");
    let (mut header, repair) = Header::read(&disk).expect("read");
    assert_eq!(repair, None);
    let key = header.unlock(&disk, b"from outside").expect("it opens");
    assert_eq!(header.unlock(&disk, b"secret").as_ref(), Ok(&key));
    // cryptsetup still opens the disk after a change here.
    let mut disk = disk;
    carry_out(
        &mut disk,
        &header.remove_key(0, &random).expect("there are two"),
    );
    let image = files.write("image", &disk);
    cryptsetup(&OPEN, &[&more, &image]);
    assert!(!run(&OPEN, &[&good, &image]).status.success());
}

#[test]
fn a_disk_that_cryptsetup_formatted_opens() {
    let files = Files::new();
    let key = files.write("key", b"secret");
    for (sector, kdf) in [
        ("512", ["argon2id", "--pbkdf-memory", "32768"]),
        ("4096", ["argon2i", "--pbkdf-memory", "64"]),
        ("512", ["pbkdf2", "--hash", "sha256"]),
    ] {
        let image = files.write("image", &vec![0; 20 << 20]);
        let mut format = vec!["luksFormat", "--batch-mode", "--type", "luks2"];
        format.extend(["--sector-size", sector, "--label", "a disk", "--pbkdf"]);
        format.extend(kdf);
        let iterations = if kdf[0] == "pbkdf2" { "1000" } else { "4" };
        format.extend(["--pbkdf-force-iterations", iterations]);
        cryptsetup(&format, &[&image, &key]);
        let disk = files.read("image");
        let (header, repair) = Header::read(&disk).expect("read");
        assert_eq!(repair, None);
        assert_eq!(header.layout().sector_bytes.to_string(), sector);
        header.unlock(&disk, b"secret").expect("it opens");
    }
}

/// This checks the data as well as the header: cryptsetup decrypts it in place.
#[test]
fn cryptsetup_decrypts_data_that_scree_encrypted() {
    let random = SimulatedRandom::new(8);
    for sector_bytes in [512, 4096] {
        let files = Files::new();
        let passphrase = files.write("key", b"secret");
        let made = Header::format(sector_bytes, 0, CHEAP, b"secret", &random);
        let (_, key, steps) = made.expect("made");
        let mut disk = vec![0; 20 << 20];
        carry_out(&mut disk, &steps);
        let plain: Vec<u8> = (0..4 << 17)
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        let data = &mut disk[DATA_OFFSET as usize..];
        data.copy_from_slice(&plain);
        Xts::new(&key).encrypt(0, sector_bytes as usize, data);
        let image = files.write("image", &disk);
        let header = files.path("header");
        let arguments = [
            "reencrypt",
            "--decrypt",
            "--batch-mode",
            "--force-offline-reencrypt",
            "--key-file",
        ];
        let header_is = Path::new("--header");
        cryptsetup(&arguments, &[&passphrase, header_is, &header, &image]);
        assert!(
            files.read("image")[..plain.len()] == plain,
            "{sector_bytes}"
        );
    }
}

/// Otherwise cryptsetup would use the new key for all of the data.
#[test]
fn cryptsetup_refuses_a_disk_that_is_being_reencrypted() {
    let random = SimulatedRandom::new(11);
    let (mut disk, mut header, _) = formatted(&random);
    disk.resize(20 << 20, 0);
    let files = Files::new();
    let key = files.write("key", b"secret");
    let begun = header.begin_reencryption(1, CHEAP, b"secret", &random);
    carry_out(&mut disk[..DATA_OFFSET as usize], &begun.expect("begun").1);
    for boundary in [0, 1 << 20] {
        if boundary > 0 {
            carry_out(
                &mut disk,
                &header.advance(boundary, &random).expect("it goes on"),
            );
        }
        let image = files.write("image", &disk);
        assert!(cryptsetup(&["luksDump"], &[&image]).contains(REQUIREMENT));
        let add = ["luksAddKey", "--batch-mode", "--key-file"];
        let refused = run(&add, &[&key, &image, &key]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("Unmet LUKS2 requirements"), "{said}");
    }
    carry_out(&mut disk, &header.finish(&random).expect("it ends"));
    let image = files.write("image", &disk);
    cryptsetup(&OPEN, &[&key, &image]);
    let said = cryptsetup(&["luksDump"], &[&image]);
    assert!(!said.contains(REQUIREMENT), "{said}");
}
