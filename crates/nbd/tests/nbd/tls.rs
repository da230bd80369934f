//! TLS: clients prove who they are, and nothing is said before.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::Durability;
use nbd::client::{Broken, ClientTls, Target};
use nbd::{
    Client as Peer, Export, ExportTable, Exports, Listed, ListenOptions, ServerTls, TlsError,
    TlsPolicy,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use world::real::RealDisk;
use world::{Disk, Endpoint, OpenMode};

use crate::client::*;
use crate::device::same_as_an_array;
use crate::requester::{Requester, options};
use crate::support::{Fixture, MIB, must_run, run};

/// An authority and what it signed, as PEM.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate"),
        }
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a DNS name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes a folder as libnbd, QEMU and nbdkit want it.
    fn write(&self, folder: &Path, trusted: &Authority) {
        fs::create_dir(folder).expect("a new folder");
        let put = |name: &str, text: &str| {
            std::io::Write::write_all(
                &mut fs::File::create(folder.join(name)).expect("a new file"),
                text.as_bytes(),
            )
            .expect("room");
        };
        put("ca-cert.pem", &trusted.issuer.pem());
        let (certificate, key) = self.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        put("server-cert.pem", &certificate);
        put("server-key.pem", &key);
        let (certificate, key) = self.sign("vm-host", ExtendedKeyUsagePurpose::ClientAuth);
        put("client-cert.pem", &certificate);
        put("client-key.pem", &key);
    }
}

/// Reads what [`Authority::write`] wrote.
fn read_folder(folder: &Path) -> Result<ServerTls, TlsError> {
    let file = |name| folder.join(name);
    let (ca, certificate) = (file("ca-cert.pem"), file("server-cert.pem"));
    ServerTls::read(&RealDisk, &ca, &certificate, &file("server-key.pem"))
}

struct Secure {
    fixture: Fixture,
    port: u16,
}

impl Secure {
    fn new(policy: TlsPolicy) -> Self {
        let fixture = Fixture::new();
        let exports = fixture.table.clone();
        Self::serving(fixture, exports, policy)
    }

    fn serving(fixture: Fixture, exports: Arc<dyn Exports>, policy: TlsPolicy) -> Self {
        let authority = Authority::new("Scree test");
        authority.write(&fixture.folder.path().join("pki"), &authority);
        let stranger = Authority::new("Somebody else");
        stranger.write(&fixture.folder.path().join("stranger"), &authority);
        let tls = read_folder(&fixture.folder.path().join("pki"));
        let mut listen = ListenOptions::new(exports);
        listen.tls = Some(tls.expect("certificates"));
        listen.tls_policy = policy;
        let any_port = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
        let tcp = fixture
            .server
            .listen(&any_port, listen.clone())
            .expect("a free port");
        let plain = Endpoint::Unix(fixture.folder.path().join("secure"));
        fixture.server.listen(&plain, listen).expect("a free name");
        let Endpoint::Tcp(address) = tcp.endpoint else {
            panic!("TCP was asked for");
        };
        Self {
            fixture,
            port: address.port(),
        }
    }

    fn uri(&self, pki: &str) -> String {
        let folder = self.fixture.folder.path().join(pki);
        format!(
            "nbds://localhost:{}/disk?tls-certificates={}",
            self.port,
            folder.display()
        )
    }

    fn plain(&self) -> Client {
        Client::connect(&self.fixture.folder.path().join("secure"))
    }
}

#[test]
fn libnbd_and_qemu_work_over_tls() {
    let secure = Secure::new(TlsPolicy::Required);
    let export = secure.fixture.export("disk", 8 * MIB);
    let image = secure.fixture.folder.path().join("image");
    let bytes: Vec<u8> = (0..8 * MIB).map(|at| (at / 512 % 251) as u8).collect();
    std::io::Write::write_all(&mut fs::File::create(&image).expect("a file"), &bytes)
        .expect("room");
    let image = image.to_str().expect("UTF-8");
    let info = must_run("nbdinfo", &[&secure.uri("pki")]);
    assert!(info.contains("with TLS"), "{info}");
    must_run("nbdcopy", &[image, &secure.uri("pki")]);
    assert_eq!(export.call(move |device| device.bytes() == bytes), Ok(true));
    let folder = secure.fixture.folder.path().join("pki");
    let creds = format!(
        "tls-creds-x509,id=tls,endpoint=client,dir={}",
        folder.display()
    );
    let target = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={},export=disk,tls-creds=tls",
        secure.port
    );
    must_run(
        "qemu-img",
        &[
            "compare",
            "--object",
            &creds,
            "--image-opts",
            &format!("driver=raw,file.filename={image}"),
            &target,
        ],
    );
}

#[test]
fn a_device_speaks_tls_and_shows_who_it_is() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let open = |pki: &str, server: &str| {
        let folder = secure.fixture.folder.path().join(pki);
        let mut options = options("disk");
        options.tls = Some(ClientTls::read(&RealDisk, &folder, server).expect("certificates"));
        let address = format!("127.0.0.1:{}", secure.port);
        let target = Target::Endpoint(Endpoint::Tcp(address.parse().expect("an address")));
        let mut requester = Requester::over(target, options);
        requester.device = requester.device.opened()?;
        Ok::<_, Broken>(requester)
    };
    let mut requester = open("pki", "localhost").expect("it is let in");
    same_as_an_array(&mut requester, MIB, 4, 20);
    // Its data are longer than what TLS holds.
    let data: Vec<u8> = (0..MIB).map(|at| (at / 4096) as u8).collect();
    requester
        .write(0, &data, Durability::Durable)
        .expect("it is let in");
    assert!(requester.read(0, MIB) == Ok(data));
    for (pki, server) in [("stranger", "localhost"), ("pki", "elsewhere")] {
        let refused = open(pki, server).err();
        assert!(
            matches!(refused, Some(Broken::Socket(_) | Broken::Closed)),
            "{refused:?}"
        );
    }
    let plain = secure.fixture.folder.path().join("secure");
    let refused = Requester::at(&plain, options("disk"))
        .err()
        .expect("it wants TLS");
    assert!(refused.to_string().contains("wants TLS"), "{refused}");
}

#[test]
fn a_client_of_another_authority_is_refused() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let output = run("nbdinfo", &[&secure.uri("stranger")]);
    assert!(!output.status.success(), "{output:?}");
    assert!(must_run("nbdinfo", &[&secure.uri("pki")]).contains("with TLS"));
}

#[test]
fn nothing_is_said_without_tls_where_it_is_required() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    for (number, data) in [
        (OPT_LIST, vec![]),
        (OPT_GO, named("disk", &[0, 0])),
        (OPT_INFO, named("nonsense", &[0, 0])),
        (OPT_INFO, vec![1]),
        (OPT_STRUCTURED_REPLY, vec![]),
        (99, vec![]),
    ] {
        assert_eq!(client.ask_kind(number, &data), REP_ERR_TLS_REQD);
    }
    client.send(&option(OPT_EXPORT_NAME, b"disk"));
    assert_eq!(client.closed(), []);
}

#[test]
fn both_ways_work_where_tls_is_allowed() {
    let secure = Secure::new(TlsPolicy::Allowed);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    client.structured();
    client.go("disk");
    assert_eq!(client.read(0, 512).data, [0; 512]);
    assert!(must_run("nbdinfo", &[&secure.uri("pki")]).contains("with TLS"));
}

/// Bytes that somebody on the wire put behind STARTTLS must not be taken for
/// the client's (CVE-2021-3716 was that in nbdkit).
#[test]
fn plain_bytes_behind_starttls_end_the_connection() {
    let secure = Secure::new(TlsPolicy::Allowed);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    let injected = [option(OPT_STARTTLS, &[]), option(OPT_STRUCTURED_REPLY, &[])].concat();
    client.send(&injected);
    let said = client.closed();
    assert_eq!(
        said.len(),
        20,
        "the answer to STARTTLS, and not one byte more"
    );
}

#[test]
fn garbage_instead_of_tls_ends_the_connection() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    assert_eq!(client.ask_kind(OPT_STARTTLS, &[]), REP_ACK);
    client.send(&[0x16; 200]);
    client.closed();
    assert!(must_run("nbdinfo", &[&secure.uri("pki")]).contains("with TLS"));
}

/// Shows its exports only to who has a certificate, and remembers which.
struct Private(Arc<ExportTable>, Mutex<Vec<Vec<u8>>>);

impl Exports for Private {
    fn list(&self, peer: &Peer) -> Vec<Listed> {
        if peer.certificate.is_some() {
            self.0.list(peer)
        } else {
            Vec::new()
        }
    }

    fn find(&self, peer: &Peer, name: &str) -> Option<Export> {
        let certificate = peer.certificate.clone()?;
        self.1.lock().expect("no panic").push(certificate);
        self.0.find(peer, name)
    }
}

#[test]
fn exports_can_depend_on_the_clients_certificate() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", MIB);
    let private = Arc::new(Private(fixture.table.clone(), Mutex::default()));
    let secure = Secure::serving(fixture, private.clone(), TlsPolicy::Allowed);
    let mut plain = secure.plain();
    assert_eq!(
        plain.ask_kind(OPT_GO, &named("disk", &[0, 0])),
        REP_ERR_UNKNOWN
    );
    must_run("nbdinfo", &[&secure.uri("pki")]);
    let path = secure.fixture.folder.path().join("pki/client-cert.pem");
    let file = RealDisk
        .open(&path, world::OpenMode::Read)
        .expect("it was written");
    let mut pem = vec![0; file.length().expect("a length") as usize];
    file.read_at(&mut pem, 0).expect("its own length");
    let seen = private.1.lock().expect("no panic");
    let own = rustls_pki_types::pem::PemObject::from_pem_slice(&pem);
    let own: rustls_pki_types::CertificateDer<'_> = own.expect("a certificate");
    assert_eq!(seen.first().map(Vec::as_slice), Some(own.as_ref()));
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let authority = Authority::new("Scree test");
    let (certificate, key) = authority.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let ca = authority.issuer.pem();
    let load = |ca: &str, certificate: &str, key: &str| {
        ServerTls::from_pem(ca.as_bytes(), certificate.as_bytes(), key.as_bytes())
            .map_err(|error| error.to_string())
    };
    assert!(load(&ca, &certificate, &key).is_ok());
    let (_, other_key) = authority.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let error = load(&ca, &certificate, &other_key).expect_err("not its key");
    assert!(error.contains("certificate and key"), "{error}");
    let error = load("", &certificate, &key).expect_err("no authority");
    assert!(error.contains("authority"), "{error}");
    let error = load(&ca, &certificate, "-----BEGIN").expect_err("no key");
    assert!(error.contains("key"), "{error}");
    let missing = read_folder(Path::new("/nonexistent")).expect_err("no folder");
    assert!(
        missing.to_string().contains("/nonexistent/ca-cert.pem"),
        "{missing}"
    );
}

/// `scree up` once read the first megabyte of each file and went on with that.
#[test]
fn a_pem_file_that_is_far_too_long_is_refused_and_not_cut() {
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("pki");
    let authority = Authority::new("Scree test");
    authority.write(&folder, &authority);
    read_folder(&folder).expect("good ones");
    let path = folder.join("ca-cert.pem");
    let long = RealDisk.open(&path, OpenMode::Write).expect("there");
    long.set_length(2 << 20).expect("sized");
    let error = read_folder(&folder).expect_err("2 MiB");
    let TlsError::File {
        path: named,
        source,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(named, path);
    assert!(source.to_string().contains("2097152 bytes"), "{source}");
}
