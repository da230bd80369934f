//! Failures of `virsh` that a healthy libvirt does not show.

use std::fs;
use std::time::Duration;

use agent::vm::{Plugged, Unplugged, Vm, VmAddress, VmError, VmOptions};
use tempfile::TempDir;

use crate::fake_qemu::disk;

/// Reads its script from a file: a program that was just written could still be open in a
/// concurrent test, and then cannot be run.
const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/fake-virsh");

/// A VM whose `virsh` runs a shell script in its folder.
fn vm(script: &str, answer_within: Duration) -> (TempDir, Vm) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("script"), script).expect("written");
    let options = VmOptions {
        answer_within,
        unplug_within: Duration::from_millis(600),
        libvirt_uri: folder.path().to_str().expect("UTF-8").into(),
        virsh: FAKE.into(),
    };
    let vm = Vm::new(VmAddress::Libvirt("one".into()), options);
    (folder, vm)
}

const LONG: Duration = Duration::from_secs(20);

const DOMAIN: &str = "<domain id='3'><name>one</name><devices></devices></domain>";

/// The disk of [`disk`]`("att-1")` in a domain.
const PLUGGED: &str = "<domain id='3'><name>one</name><devices><disk>\
    <source><reconnect delay='30'/></source><serial>vol0123456789abcdef0</serial>\
    <target dev='vda'/><alias name='ua-scree-att-1'/></disk></devices></domain>";

#[tokio::test]
async fn a_missing_a_hanging_and_a_failing_virsh_are_distinguished() {
    let options = VmOptions {
        virsh: "/nonexistent/virsh".into(),
        ..VmOptions::default()
    };
    let missing = Vm::new(VmAddress::Libvirt("one".into()), options);
    let error = missing.disks().await.expect_err("no virsh");
    assert!(matches!(error, VmError::NoVirsh { .. }), "{error}");

    let (_folder, hanging) = vm("exec tail -f /dev/null", Duration::from_millis(200));
    let error = hanging.disks().await.expect_err("it hangs");
    assert!(
        matches!(
            error,
            VmError::VirshHangs {
                command: "dumpxml",
                ..
            }
        ),
        "{error}"
    );

    let script = "echo 'error: failed to connect to the hypervisor' >&2; echo >&2; \
                  echo 'error: Permission denied' >&2; exit 1";
    let (_folder, failing) = vm(script, LONG);
    for error in [
        failing.disks().await.expect_err("it fails"),
        failing
            .unplug(&disk("att-1").name)
            .await
            .expect_err("it fails"),
    ] {
        let words = error.to_string();
        assert!(
            words.ends_with("the hypervisor; error: Permission denied"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn a_domain_that_is_shut_off_or_unknown_has_ended() {
    let off = "echo '<domain><name>one</name></domain>'";
    let unknown = "[ $4 = list ] || { echo \"error: failed to get domain 'one'\" >&2; exit 1; }";
    for script in [off, unknown] {
        let (_folder, vm) = vm(script, LONG);
        assert!(matches!(vm.disks().await, Err(VmError::Ended { .. })));
        let ended = vm.unplug(&disk("att-1").name).await.expect("asked");
        assert_eq!(ended, Unplugged::VmEnded);
    }
}

/// `virsh` reports a broken connection like an unknown domain.
#[tokio::test]
async fn a_domain_that_libvirt_lists_has_not_ended() {
    let script = "[ $4 = list ] && { echo other; echo one; exit 0; }; \
                  echo \"error: failed to get domain 'one'\" >&2; exit 1";
    let (_folder, vm) = vm(script, LONG);
    let error = vm.unplug(&disk("att-1").name).await.expect_err("it runs");
    assert!(matches!(error, VmError::VirshFailed { .. }), "{error}");
}

#[tokio::test]
async fn a_description_that_cannot_be_parsed_is_an_error() {
    for script in [
        "echo '<network/>'",
        "echo '<domain'",
        "head -c 999 /dev/urandom",
        ":",
    ] {
        let (_folder, vm) = vm(script, LONG);
        let error = vm.disks().await.expect_err("not a domain");
        assert!(matches!(error, VmError::BadDescription { .. }), "{error}");
    }
}

/// The file `domain` is the domain; `attach-device` and `detach-device-alias` change it.
const KEEPING: &str =
    "case $4 in dumpxml) cat domain;; attach-device) cat >asked; mv next domain;;";

#[tokio::test]
async fn a_disk_is_plugged_with_its_serial_and_the_first_free_target() {
    let (folder, vm) = vm(&format!("echo \"$@\" >>commands; {KEEPING} esac"), LONG);
    fs::write(folder.path().join("domain"), DOMAIN).expect("written");
    fs::write(folder.path().join("next"), PLUGGED).expect("written");
    let plugged = vm.plug(&disk("att-1")).await.expect("plugged");
    let newly = Plugged {
        was_there: false,
        waits_for_server: true,
    };
    assert_eq!(plugged, newly);
    let asked = fs::read_to_string(folder.path().join("asked")).expect("asked");
    for part in [
        "<serial>vol0123456789abcdef0</serial>",
        "<target dev='vda' bus='virtio'/>",
        "<alias name='ua-scree-att-1'/>",
        "<reconnect delay='30'/>",
    ] {
        assert!(asked.contains(part), "{asked}");
    }
    let commands = fs::read_to_string(folder.path().join("commands")).expect("asked");
    let uri = folder.path().display();
    let attach =
        format!("--quiet --connect {uri} attach-device --domain one --file /dev/stdin --live");
    assert!(
        commands.lines().any(|command| command == attach),
        "{commands}"
    );
    assert!(vm.plug(&disk("att-1")).await.expect("plugged").was_there);
}

#[tokio::test]
async fn a_guest_that_holds_its_disk_is_busy_also_when_asked_again() {
    let script = "case $4 in dumpxml) cat domain;; domstate) echo running;; \
        detach-device-alias) echo 'error: Device is already in the process of unplug' >&2; exit 1;; \
        esac";
    let (folder, vm) = vm(script, LONG);
    fs::write(folder.path().join("domain"), PLUGGED).expect("written");
    let busy = vm.unplug(&disk("att-1").name).await.expect("asked");
    assert!(matches!(busy, Unplugged::Busy { .. }), "{busy:?}");
}
