//! Out-of-process, external and remote filters: what they may do, and the disk when they end.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::host::{CommandOutput, Host, Running, wait_until};

fn applied(host: &Host, filters: &str) {
    let said = host.apply_chain("disk", filters);
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(said.out.contains("served through"), "{}", said.out);
}

fn disk(host: &Host) -> String {
    host.json(&["volume", "create", "disk", "--size", "64M"]);
    let export = host.json(&["volume", "export", "disk"]);
    export["uri"].as_str().expect("text").to_owned()
}

/// Writes and reads back for some seconds.
fn verified(uri: &str) -> Child {
    Command::new("fio")
        .args(["--name=w", "--ioengine=nbd", "--rw=randwrite", "--bs=4k"])
        .args(["--size=32M", "--io_size=32M", "--iodepth=16"])
        .args(["--verify=crc32c", "--verify_backlog=256", "--fsync=64"])
        .args(["--verify_state_save=0"])
        .args(["--rate_iops=3000"])
        .arg(format!("--uri={uri}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("fio is installed")
}

fn ended_well(fio: Child) {
    let fio = CommandOutput::of(fio.wait_with_output().expect("it ends"));
    assert_eq!(fio.code, 0, "{} {}", fio.out, fio.error);
}

/// The processes below `parent` whose command line has all of `words`.
fn processes(parent: u32, words: &[&str]) -> Vec<u32> {
    let listed = Command::new("ps")
        .args(["-e", "-o", "pid=,ppid=,args=", "-ww"])
        .output()
        .expect("ps is installed");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let of = |line: &str| {
        let mut parts = line.split_whitespace();
        let (pid, above) = (parts.next()?.parse().ok()?, parts.next()?);
        let is_it = above == parent.to_string() && words.iter().all(|word| line.contains(word));
        is_it.then_some(pid)
    };
    listed.lines().filter_map(of).collect()
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("kill is installed").success());
}

/// The kernel's status of a process.
fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.expect("there is such a field").trim().to_owned()
}

fn notes(host: &Host) -> String {
    host.run(&["monitor", "disk", "-o", "json"]).out
}

const LIMITED: &str = "[[filter]]\nkind = \"rate\"\nname = \"limits\"\niops = 1000000\nruns = \
                       \"process\"\nmemory = \"128M\"\ncpu_percent = 300\n";

#[test]
fn an_out_of_process_filter_is_confined_and_restarted_after_a_kill() {
    let host = Host::with(&["--units", "2"]);
    let uri = disk(&host);
    applied(&host, LIMITED);
    let found = processes(host.pid(), &["filter-process"]);
    let &[pid] = found.as_slice() else {
        panic!("one process, and not {found:?}");
    };
    assert_eq!(status(pid, "NoNewPrivs:"), "1");
    assert_eq!(status(pid, "Seccomp:"), "2");
    assert_eq!(status(pid, "CapEff:"), "0000000000000000");
    let users = status(pid, "Uid:");
    assert!(
        users.split_whitespace().all(|uid| uid.starts_with("19000")),
        "{users}"
    );
    let own = fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs");
    assert_ne!(own, fs::read_link("/proc/self/ns/net").expect("this too"));

    let fio = verified(&uri);
    let mut killed = 0;
    wait_until("it was killed three times", || {
        if let [pid] = processes(host.pid(), &["filter-process"])[..] {
            let name = if killed == 1 { "-ABRT" } else { "-KILL" };
            let times_back = || notes(&host).matches("answers again after").count();
            let before = times_back();
            signal(name, pid);
            wait_until("it is restarted", || times_back() > before);
            killed += 1;
        }
        killed == 3
    });
    ended_well(fio);
    // Inline again: the process ends.
    host.json(&["chain", "delete", "disk"]);
    wait_until("its process has ended", || {
        processes(host.pid(), &["filter-process"]).is_empty()
    });
}

#[test]
fn a_filter_that_cannot_run_out_of_process_is_refused_and_the_disk_continues() {
    let host = Host::with(&["--units", "2"]);
    let uri = disk(&host);
    for (filters, words) in [
        (
            "[[filter]]\nkind = \"external\"\nprogram = \"none\"\n",
            "no program none",
        ),
        (
            "[[filter]]\nkind = \"encrypt\"\nkey = \"missing\"\nruns = \"process\"\nformat = \"if-empty\"\n",
            "no key missing",
        ),
        (
            "[[filter]]\nkind = \"remote\"\naddress = \"192.0.2.1:7\"\nkey = \"sha256:\
             0000000000000000000000000000000000000000000000000000000000000000\"\n",
            "--filter-network",
        ),
    ] {
        let said = host.apply_chain("disk", filters);
        let all = format!("{}{}", said.out, said.error);
        assert!(all.contains(words), "{filters}: {all}");
        ended_well(verified(&uri));
    }
}

#[test]
fn an_external_filter_is_bypassed_when_it_fails() {
    let host = Host::with(&["--units", "2"]);
    let uri = disk(&host);
    let programs = host.path().join("filter-programs");
    fs::create_dir_all(&programs).expect("made");
    let command = "command = [\"nbdkit\", \"-f\", \"-U\", \"{socket}\", \"--filter=readahead\", \
                   \"nbd\", \"socket={below}\", \"export=disk\"]\n";
    let file = programs.join("ahead.toml");
    fs::write(&file, command).expect("written");
    applied(
        &host,
        "[[filter]]\nkind = \"external\"\nprogram = \"ahead\"\non_failure = \"bypass\"\n",
    );
    let found = || processes(host.pid(), &["nbdkit", "--filter=readahead"]);
    let fio = verified(&uri);
    let pid = found()[0];
    assert_eq!(status(pid, "NoNewPrivs:"), "1");
    signal("-KILL", pid);
    wait_until("it is restarted", || found().iter().any(|new| *new != pid));
    // A filter that cannot start is bypassed.
    let nbdkit = found();
    fs::remove_file(&file).expect("removed");
    for pid in nbdkit {
        signal("-STOP", pid);
    }
    ended_well(fio);
    ended_well(verified(&uri));
}

/// The capabilities of the package's agent with the drop-in `filters.conf`.
const OF_A_USER: &str = "-S -c 0 && set -- setpriv --reuid=64123 --regid=64123 --clear-groups \
    --inh-caps=+setuid,+setgid,+kill,+chown,+dac_override \
    --ambient-caps=+setuid,+setgid,+kill,+chown,+dac_override \"$@\"";

/// Once filters of an agent without root rights had its user and its capabilities, and external
/// programs were refused.
#[test]
fn an_agent_with_capabilities_gives_each_filter_a_user_of_its_own() {
    let mut host = Host::idle(&["--units", "2"]);
    let mut chown = Command::new("chown");
    let owned = chown.arg("64123:64123").arg(host.path()).status();
    assert!(owned.expect("chown is installed").success());
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o711)).expect("set");
    host.limit = OF_A_USER;
    host.start();
    let uri = disk(&host);
    let programs = host.path().join("filter-programs");
    fs::create_dir_all(&programs).expect("made");
    let command = "command = [\"nbdkit\", \"-f\", \"-U\", \"{socket}\", \"nbd\", \
                   \"socket={below}\", \"export=disk\"]\n";
    fs::write(programs.join("through.toml"), command).expect("written");
    applied(
        &host,
        "[[filter]]\nkind = \"monitor\"\nruns = \"process\"\n\
         [[filter]]\nkind = \"external\"\nprogram = \"through\"\n",
    );
    let own = processes(host.pid(), &["filter-process"]);
    let foreign = processes(host.pid(), &["nbdkit", "export=disk"]);
    let found = [own, foreign].concat();
    assert_eq!(found.len(), 2, "{found:?}");
    for pid in &found {
        let users = status(*pid, "Uid:");
        let is_own = |uid: &str| uid.starts_with("19000");
        assert!(users.split_whitespace().all(is_own), "{users}");
        for kind in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(status(*pid, kind), "0000000000000000", "{kind}");
        }
        assert_eq!(status(*pid, "NoNewPrivs:"), "1");
    }
    ended_well(verified(&uri));
    // The agent ends them, though they belong to other users.
    host.json(&["chain", "delete", "disk"]);
    wait_until("their processes have ended", || {
        found
            .iter()
            .all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
}

#[test]
fn a_remote_filter_is_known_by_its_key_and_may_restart() {
    let host = Host::with(&["--units", "2", "--filter-network", "127.0.0.1"]);
    let uri = disk(&host);
    let folder = host.path().with_extension("filter");
    fs::create_dir_all(folder.join("policies")).expect("made");
    fs::write(
        folder.join("policies/far.toml"),
        "volume = \"*\"\n[[filter]]\nkind = \"rate\"\niops = 1000000\n",
    )
    .expect("written");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is left");
    let at = port.local_addr().expect("it has one");
    drop(port);
    let begin = || begin_filter(&folder, &at.to_string(), &host.path().join("authority.pem"));
    let (machine, key) = begin();
    let policy = |key: &str| {
        format!(
            "[[filter]]\nkind = \"remote\"\nname = \"far\"\naddress = \"{at}\"\nkey = \"{key}\"\n"
        )
    };
    let other = format!("sha256:{}", "0".repeat(64));
    let said = host.apply_chain("disk", &policy(&other));
    let all = format!("{}{}", said.out, said.error);
    assert!(all.contains("the server has the key sha256:"), "{all}");
    applied(&host, &policy(&key));

    let fio = verified(&uri);
    drop(machine);
    wait_until("it is reported as failed", || {
        notes(&host).contains("is restarted")
    });
    let (machine, again) = begin();
    assert_eq!(again, key, "its key is kept");
    ended_well(fio);
    assert!(notes(&host).contains("answers again after"));

    // A client without a certificate of the cluster is refused.
    let refused = Command::new("openssl")
        .args(["s_client", "-connect", &at.to_string(), "-tls1_3"])
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed");
    assert!(refused.stdout.len() < 64 << 10);
    ended_well(verified(&uri));
    drop(machine);
    fs::remove_dir_all(&folder).expect("removed");
}

/// Starts `scree filter-server` and waits until it prints its key.
fn begin_filter(folder: &Path, at: &str, authority: &Path) -> (Running, String) {
    use std::io::{BufRead as _, BufReader};
    let child = Command::new(env!("CARGO_BIN_EXE_scree"))
        .args(["filter-server", "--listen", at, "--filter-dir"])
        .arg(folder)
        .arg("--authority")
        .arg(authority)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut server = Running(child.expect("it starts"));
    let mut said = String::new();
    let out = server.0.stdout.take().expect("it is piped");
    BufReader::new(out)
        .read_line(&mut said)
        .expect("it says something");
    let key = said.split_whitespace().last().expect("a key").to_owned();
    assert!(key.starts_with("sha256:"), "{said}");
    (server, key)
}
