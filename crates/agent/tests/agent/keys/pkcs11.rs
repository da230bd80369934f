//! SoftHSM as a token. A module reads its configuration from the environment once in a process, so
//! each test runs itself again in its own process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent::keys::config::Pkcs11Entry;
use agent::keys::{KeyEntry, KeyProvider as _};
use base::{KeyId, Lineage};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::Attribute;
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use volume::seal::{DataKey, KeyError, UnwrapKeys as _};

use super::conformance::{conforms, opened};
use super::{Place, chmod};

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const PIN: &str = "4321-tenant";
const CHILD: &str = "SCREE_TEST_SOFTHSM";

fn run(program: &str, configuration: &Path, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .env("SOFTHSM2_CONF", configuration)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; run `tools/packages test`"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Runs `body` in a process that has a token `tenant`, in this folder.
fn with_token(name: &str, body: impl FnOnce(&Place, &Path)) {
    if let Some(folder) = std::env::var_os(CHILD) {
        body(&Place::new(), Path::new(&folder));
        return;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let tokens = folder.path().join("tokens");
    fs::create_dir(&tokens).expect("a folder");
    let configuration = folder.path().join("softhsm2.conf");
    let text = format!(
        "directories.tokendir = {}\nlog.level = ERROR\n",
        tokens.display()
    );
    fs::write(&configuration, text).expect("written");
    make_token(&configuration, "tenant");
    let test = format!("keys::pkcs11::{name}");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args([&test, "--exact", "--nocapture"])
        .env("SOFTHSM2_CONF", &configuration)
        .env(CHILD, folder.path())
        .output()
        .expect("started");
    let [said, result] = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{result}{said}");
    assert!(
        result.contains("1 passed"),
        "{test} is not the test's name: {result}"
    );
}

fn make_token(configuration: &Path, label: &str) {
    let arguments = [
        "--init-token",
        "--free",
        "--label",
        label,
        "--so-pin",
        "12345678",
        "--pin",
        PIN,
    ];
    run("softhsm2-util", configuration, &arguments);
}

fn on_token(place: &Place, key: &str) -> Pkcs11Entry {
    Pkcs11Entry {
        module: PathBuf::from(MODULE),
        token: "tenant".to_owned(),
        key: key.to_owned(),
        pin_path: place.private("pin", format!("{PIN}\n")),
    }
}

fn made(place: &Place, key: &str) -> KeyEntry {
    let entry = KeyEntry::Pkcs11(on_token(place, key));
    place.keys.create(&entry).expect("made");
    entry
}

/// Another user's view of the same token; only after the agent's first use.
fn beside() -> (Pkcs11, Slot) {
    let module = Pkcs11::new(MODULE).expect("the module");
    let slots = module.get_slots_with_initialized_token().expect("slots");
    (module, *slots.first().expect("a token"))
}

/// Ends the login of all sessions in this process.
fn log_out() {
    let (module, slot) = beside();
    let session = module.open_ro_session(slot).expect("a session");
    session.logout().expect("logged out");
}

/// Ends all sessions. SoftHSM looks for tokens when it is initialized.
fn restart() {
    let module = Pkcs11::new(MODULE).expect("the module");
    module.clone().finalize().expect("finalized");
    let arguments = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
    module.initialize(arguments).expect("initialized");
}

fn generate(session: &Session, label: &str, bytes: u64, extractable: bool) {
    let template = [
        Attribute::Label(label.into()),
        Attribute::ValueLen(bytes.into()),
        Attribute::Token(true),
        Attribute::Private(true),
        Attribute::Sensitive(!extractable),
        Attribute::Extractable(extractable),
        Attribute::Encrypt(true),
        Attribute::Decrypt(true),
    ];
    let key = session.generate_key(&Mechanism::AesKeyGen, &template);
    key.expect("a key");
}

#[test]
fn a_token_is_a_wrapping_key() {
    with_token("a_token_is_a_wrapping_key", |place, _| {
        let [ours, theirs] = ["ours", "theirs"].map(|key| made(place, key));
        conforms(&place.keys, &ours, &theirs);
    });
}

#[test]
fn the_key_must_be_unique_and_must_stay_on_its_token() {
    with_token(
        "the_key_must_be_unique_and_must_stay_on_its_token",
        |place, _| {
            let entry = made(place, "ours");
            let refused = place.keys.create(&entry).expect_err("it exists");
            assert!(
                super::text(&refused).contains("already has a key"),
                "{refused}"
            );
            place.keys.new_parameters(&entry).expect("parameters");

            let (module, slot) = beside();
            let session = module.open_rw_session(slot).expect("a session");
            // No other session is open now, so the PIN is requested.
            let _ = session.login(UserType::User, Some(&AuthPin::from(PIN)));
            generate(&session, "twice", 32, false);
            generate(&session, "twice", 32, false);
            generate(&session, "loose", 32, true);
            generate(&session, "short", 16, false);
            for (key, said) in [
                ("none", "has no AES key"),
                ("twice", "2 AES keys"),
                ("loose", "can be extracted"),
                ("short", "256 bits"),
            ] {
                let refused = place.refusal(&KeyEntry::Pkcs11(on_token(place, key)));
                assert!(refused.contains(said), "{refused}");
            }
        },
    );
}

#[test]
fn a_session_that_died_is_opened_again() {
    with_token("a_session_that_died_is_opened_again", |place, _| {
        let entry = made(place, "ours");
        let parameters = place.keys.new_parameters(&entry).expect("parameters");
        let id = KeyId::from_u128(1);
        let key = place.keys.open(id, &entry, &parameters).expect("open");
        let lineage = Lineage::from_u128(4);
        let wrapped = key
            .wrap(lineage, &DataKey::from_bytes([7; 32]))
            .expect("wrapped");
        for kill in [log_out, restart] {
            kill();
            assert_eq!(opened(&*key, lineage, &wrapped), Some([7; 32]));
            kill();
            assert!(key.wrap_none(lineage).is_ok());
        }
    });
}

#[test]
fn a_wrong_pin_is_tried_once() {
    with_token("a_wrong_pin_is_tried_once", |place, _| {
        let entry = made(place, "ours");
        let parameters = place.keys.new_parameters(&entry).expect("parameters");
        let id = KeyId::from_u128(1);
        place.private("pin", "0000-wrong");
        for _ in 0..20 {
            let refused = place
                .keys
                .open(id, &entry, &parameters)
                .expect_err("a wrong PIN");
            let refused = super::text(&refused);
            assert!(refused.contains("refuses the PIN"), "{refused}");
            assert!(!refused.contains("0000-wrong"));
        }
        // The token gets that PIN: a second attempt would succeed.
        let (module, slot) = beside();
        let session = module.open_rw_session(slot).expect("a session");
        let [right, wrong] = [PIN, "0000-wrong"].map(AuthPin::from);
        session
            .login(UserType::User, Some(&right))
            .expect("logged in");
        session.set_pin(&right, &wrong).expect("set");
        session.logout().expect("logged out");
        drop(session);
        assert!(place.keys.open(id, &entry, &parameters).is_err());
        let restarted = Place::new();
        let opened = restarted.keys.open(id, &entry, &parameters);
        drop((opened.expect("the token's PIN"), restarted));

        for (content, said) in [("", "should hold the PIN"), ("1", "refuses the PIN")] {
            place.private("pin", content);
            let refused = place
                .keys
                .open(id, &entry, &parameters)
                .expect_err("a wrong PIN");
            assert!(super::text(&refused).contains(said), "{refused}");
        }
        chmod(&place.private("pin", PIN), 0o640);
        let refused = place
            .keys
            .open(id, &entry, &parameters)
            .expect_err("readable");
        assert!(super::text(&refused).contains("chmod 600"));
        let session = module.open_rw_session(slot).expect("a session");
        session
            .login(UserType::User, Some(&wrong))
            .expect("logged in");
        session.set_pin(&wrong, &right).expect("set");
        session.logout().expect("logged out");
        drop(session);
        chmod(&place.path("pin"), 0o600);
        place
            .keys
            .open(id, &entry, &parameters)
            .expect("the right one");
    });
}

#[test]
fn a_removed_token_is_not_reported_as_a_damaged_volume() {
    with_token(
        "a_removed_token_is_not_reported_as_a_damaged_volume",
        |place, folder| {
            let entry = made(place, "ours");
            let parameters = place.keys.new_parameters(&entry).expect("parameters");
            let id = KeyId::from_u128(1);
            let key = place.keys.open(id, &entry, &parameters).expect("open");
            let lineage = Lineage::from_u128(4);
            let wrapped = key
                .wrap(lineage, &DataKey::from_bytes([7; 32]))
                .expect("wrapped");
            let mut tokens = fs::read_dir(folder.join("tokens")).expect("a folder");
            let token = tokens.next().expect("a token").expect("a token").path();
            let away = folder.join("away");
            fs::rename(&token, &away).expect("moved");
            // Before and after the module notices.
            for notice in [|| (), restart] {
                notice();
                let refused = key
                    .unwrap_key(lineage, &wrapped)
                    .expect_err("it is removed");
                assert!(
                    matches!(refused, KeyError::Unavailable { .. }),
                    "{refused:?}"
                );
                let told = base::with_causes(&refused);
                assert!(told.contains("there is no token"), "{told}");
                assert!(key.wrap_none(lineage).is_err());
            }
            fs::rename(&away, &token).expect("moved back");
            restart();
            assert_eq!(opened(&*key, lineage, &wrapped), Some([7; 32]));
        },
    );
}

#[test]
fn a_missing_token_or_module_is_named() {
    with_token("a_missing_token_or_module_is_named", |place, folder| {
        let right = on_token(place, "ours");
        let entry = Pkcs11Entry {
            token: "other".to_owned(),
            ..right.clone()
        };
        let refused = place.refusal(&KeyEntry::Pkcs11(entry));
        assert!(
            refused.contains("\"other\"") && refused.contains("[\"tenant\"]"),
            "{refused}"
        );
        for module in [
            "/nowhere/module.so",
            "/etc/passwd",
            "/lib/x86_64-linux-gnu/libc.so.6",
        ] {
            let module = PathBuf::from(module);
            let entry = Pkcs11Entry {
                module,
                ..right.clone()
            };
            let refused = place.refusal(&KeyEntry::Pkcs11(entry));
            assert!(
                refused.contains("cannot load the PKCS#11 module"),
                "{refused}"
            );
        }
        make_token(&folder.join("softhsm2.conf"), "tenant");
        restart();
        let refused = place.refusal(&KeyEntry::Pkcs11(right));
        assert!(refused.contains("2 tokens"), "{refused}");
    });
}
