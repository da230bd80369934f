//! A replica on an NBD server with mutual TLS.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::Value;
use tempfile::TempDir;

use crate::host::{Host, wait_until};

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a certificate")
}

/// A folder with the certificates of a server or a client, as nbdkit and libnbd read it.
fn write(folder: &Path, who: &str, name: &str, issuer: &CertifiedIssuer<'static, KeyPair>) {
    fs::create_dir_all(folder).expect("made");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("signed");
    for (file, text) in [
        ("ca-cert.pem".to_owned(), issuer.pem()),
        (format!("{who}-cert.pem"), certificate.pem()),
        (format!("{who}-key.pem"), key.serialize_pem()),
    ] {
        fs::write(folder.join(file), text).expect("written");
    }
}

fn serve(port: u16, certificates: &Path, file: &Path) -> Child {
    let server = Command::new("nbdkit")
        .args(["-f", "-i", "127.0.0.1", "-p", &port.to_string()])
        .args(["--tls=require", "--tls-verify-peer"])
        .arg(format!("--tls-certificates={}", certificates.display()))
        .arg("file")
        .arg(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("nbdkit is installed");
    wait_until("the server listens", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    server
}

fn is_reported(host: &Host, words: &str) -> bool {
    let said = host.run(&["monitor", "disk", "-o", "json"]);
    let mut lines = said.out.lines().map(serde_json::from_str::<Value>);
    lines.any(|line| {
        let note = &line.expect("JSON")["message"];
        note.as_str().is_some_and(|note| note.contains(words))
    })
}

#[test]
fn a_replica_over_tls_uses_the_tenants_own_certificate() {
    const SIZE: u64 = 8 << 20;
    let folder = TempDir::new().expect("a folder");
    let host = Host::with(&["--units", "2", "--filter-network", "127.0.0.1"]);
    let (ours, others) = (authority(), authority());
    let server = folder.path().join("server");
    write(&server, "server", "copies.example", &ours);
    let own = host.path().join("filter-certificates/local/pki");
    write(&own, "client", "host", &others);
    let file = folder.path().join("copy");
    let made = fs::File::create(&file).expect("made");
    made.set_len(SIZE).expect("room");
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let mut nbdkit = serve(port, &server, &file);
    host.json(&["volume", "create", "disk", "--size", "8M"]);
    let export = host.json(&["volume", "export", "disk"]);
    let uri = export["uri"].as_str().expect("text").to_owned();
    let filters = format!(
        "[[filter]]\nkind = 'replicate'\n[[filter.replica]]\nname = 'r'\n\
         uri = 'nbds://127.0.0.1:{port}/?tls-certificates=pki&tls-hostname=copies.example'\n"
    );
    let said = host.apply_chain("disk", &filters);
    assert_eq!(said.code, 0, "{}", said.error);
    // Neither side trusts the other's authority.
    wait_until("the server is not trusted", || {
        is_reported(&host, "replica r is excluded")
    });
    assert!(!is_reported(&host, "in sync"));
    write(&own, "client", "host", &ours);
    wait_until("r is in sync", || is_reported(&host, "r is in sync"));
    host.qemu_io_at(&uri, &["write -P 7 1M 2M", "flush"]);
    let copy = fs::read(&file).expect("read");
    let expected = |at: usize| if (1..3).contains(&(at >> 20)) { 7 } else { 0 };
    assert!((0..copy.len()).all(|at| copy[at] == expected(at)));
    nbdkit.kill().expect("it runs");
    nbdkit.wait().expect("it ends");
}
