//! `keys.toml`.

use std::path::PathBuf;

use agent::keys::{KeyEntry, KeysFile};
use base::KeyId;
use world::World;

use super::{Place, chmod};

const ALL: &str = r#"
[keys.main]
kind = "file"
path = "main.key"

[keys.key-00000000000000007]
kind = "passphrase"
path = "/etc/scree/words"

[keys.alice]
kind = "age"
path = "alice.age"
passphrase_path = "deep/words"

[keys.hsm]
kind = "pkcs11"
module = "/usr/lib/softhsm/libsofthsm2.so"
token = "tenant"
key = "scree"
pin_path = "hsm.pin"

[keys.vault]
kind = "transit"
address = "https://vault.example:8200"
key = "scree"
token_path = "vault.token"
ca_path = "ca.pem"
"#;

fn read(place: &Place, text: &str) -> Result<KeysFile, String> {
    let path = place.private("keys.toml", text);
    KeysFile::read(&World::real(1), &path).map_err(|error| base::with_causes(&error))
}

#[test]
fn each_kind_is_read_and_its_paths_are_relative_to_the_file() {
    let place = Place::new();
    let file = read(&place, ALL).expect("valid");
    let id = KeyId::from_u128(1);
    let entry = |name| file.entry(Some(id), name).expect("an entry").clone();
    let main = entry("main");
    assert_eq!(
        main,
        KeyEntry::File {
            path: place.path("main.key")
        }
    );
    let KeyEntry::Age {
        passphrase_path, ..
    } = entry("alice")
    else {
        panic!("another kind");
    };
    assert_eq!(passphrase_path, Some(place.path("deep/words")));
    let KeyEntry::Pkcs11(hsm) = entry("hsm") else {
        panic!("another kind");
    };
    assert_eq!(hsm.module, PathBuf::from("/usr/lib/softhsm/libsofthsm2.so"));
    assert_eq!(hsm.pin_path, place.path("hsm.pin"));
    let KeyEntry::Transit(vault) = entry("vault") else {
        panic!("another kind");
    };
    assert_eq!(
        (vault.mount.as_str(), vault.timeout_seconds),
        ("transit", 10)
    );
    assert_eq!(vault.ca_path, Some(place.path("ca.pem")));
    assert_eq!(file.entries().count(), 5);
}

#[test]
fn an_entry_is_found_by_id_before_it_is_found_by_name() {
    let place = Place::new();
    let file = read(&place, ALL).expect("valid");
    let kind = |id, name| {
        file.entry(Some(KeyId::from_u128(id)), name)
            .map(KeyEntry::kind)
    };
    assert_eq!(kind(7, "main"), Some("passphrase"));
    assert_eq!(kind(8, "main"), Some("file"));
    assert_eq!(kind(8, "other"), None);
}

#[test]
fn a_file_with_anything_else_is_refused() {
    let place = Place::new();
    let refusal = |text: &str| read(&place, text).expect_err("refused");
    for (text, said) in [
        (
            "[keys.a]\nkind = \"file\"\npath = \"a\"\nmode = 1\n",
            "mode",
        ),
        ("[keys.a]\nkind = \"file\"\n", "path"),
        ("[keys.a]\nkind = \"floppy\"\npath = \"a\"\n", "floppy"),
        ("[keys.a]\npath = \"a\"\n", "kind"),
        ("[key.a]\nkind = \"file\"\npath = \"a\"\n", "key"),
        (
            "[keys.a]\nkind = \"pkcs11\"\nmodule = \"m\"\ntoken = \"t\"\nkey = \"k\"\npin_path = \"p\"\npin = \"1\"\n",
            "pin",
        ),
        ("keys", "keys.toml"),
        (
            "[keys.a]\nkind = \"transit\"\naddress = \"a\"\nkey = \"k\"\ntoken_path = \"t\"\ntimeout_seconds = -1\n",
            "-1",
        ),
    ] {
        let refused = refusal(text);
        assert!(refused.contains(said), "{text}: {refused}");
    }
    assert!(read(&place, "").is_ok());
    let path = place.private("keys.toml", ALL);
    for mode in [0o620, 0o602] {
        chmod(&path, mode);
        let refused = read_again(&place).expect_err("others can write it");
        assert!(refused.contains("chmod go-w"), "{refused}");
    }
    chmod(&path, 0o644);
    assert!(read_again(&place).is_ok());
}

fn read_again(place: &Place) -> Result<KeysFile, String> {
    let path = place.path("keys.toml");
    KeysFile::read(&World::real(1), &path).map_err(|error| base::with_causes(&error))
}
