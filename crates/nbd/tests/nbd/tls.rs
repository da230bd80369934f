//! TLS: clients need a certificate, and no option is handled before.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base::Durability;
use nbd::client::{ClientTls, ConnectionError, Target};
use nbd::{
    Client as Peer, Export, ExportTable, Exports, Listed, ListenOptions, ServerTls, TlsError,
    TlsPolicy,
};
use parking_lot::Mutex;
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

/// A certificate authority.
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

    /// Writes a folder of certificates in the form of libnbd, QEMU and nbdkit.
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

/// Reads a folder that [`Authority::write`] has written.
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
        let stranger = Authority::new("Another authority");
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
            panic!("a TCP endpoint");
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
fn a_client_uses_tls_with_its_certificate() {
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
        Ok::<_, ConnectionError>(requester)
    };
    let mut requester = open("pki", "localhost").expect("a connection");
    same_as_an_array(&mut requester, MIB, 4, 20);
    // More data than TLS buffers.
    let data: Vec<u8> = (0..MIB).map(|at| (at / 4096) as u8).collect();
    requester
        .write(0, &data, Durability::Durable)
        .expect("a connection");
    assert!(requester.read(0, MIB) == Ok(data));
    for (pki, server) in [("stranger", "localhost"), ("pki", "elsewhere")] {
        let refused = open(pki, server).err();
        assert!(
            matches!(
                refused,
                Some(ConnectionError::Socket(_) | ConnectionError::Closed)
            ),
            "{refused:?}"
        );
    }
    let plain = secure.fixture.folder.path().join("secure");
    let refused = Requester::at(&plain, options("disk"))
        .err()
        .expect("a refusal");
    assert!(refused.to_string().contains("TLS is required"), "{refused}");
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
fn no_option_is_answered_without_tls_where_it_is_required() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    for (number, data) in [
        (OPT_LIST, vec![]),
        (OPT_GO, named("disk", &[0, 0])),
        (OPT_INFO, named("unknown", &[0, 0])),
        (OPT_INFO, vec![1]),
        (OPT_STRUCTURED_REPLY, vec![]),
        (99, vec![]),
    ] {
        assert_eq!(client.send_option_kind(number, &data), REP_ERR_TLS_REQD);
    }
    client.send(&option(OPT_EXPORT_NAME, b"disk"));
    assert_eq!(client.closed(), []);
}

#[test]
fn clients_may_use_tls_or_not_where_it_is_allowed() {
    let secure = Secure::new(TlsPolicy::Allowed);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    client.structured();
    client.go("disk");
    assert_eq!(client.read(0, 512).data, [0; 512]);
    assert!(must_run("nbdinfo", &[&secure.uri("pki")]).contains("with TLS"));
}

/// Bytes that an attacker on the network appends to STARTTLS must not count as the client's (in
/// nbdkit this was CVE-2021-3716).
#[test]
fn plain_bytes_behind_starttls_end_the_connection() {
    let secure = Secure::new(TlsPolicy::Allowed);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    let injected = [option(OPT_STARTTLS, &[]), option(OPT_STRUCTURED_REPLY, &[])].concat();
    client.send(&injected);
    let received = client.closed();
    assert_eq!(received.len(), 20, "only the reply to STARTTLS");
}

#[test]
fn bytes_that_are_not_tls_end_the_connection() {
    let secure = Secure::new(TlsPolicy::Required);
    let _export = secure.fixture.export("disk", MIB);
    let mut client = secure.plain();
    assert_eq!(client.send_option_kind(OPT_STARTTLS, &[]), REP_ACK);
    client.send(&[0x16; 200]);
    client.closed();
    assert!(must_run("nbdinfo", &[&secure.uri("pki")]).contains("with TLS"));
}

/// Lists its exports only to clients with a certificate, and records the certificates.
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
        self.1.lock().push(certificate);
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
        plain.send_option_kind(OPT_GO, &named("disk", &[0, 0])),
        REP_ERR_UNKNOWN
    );
    must_run("nbdinfo", &[&secure.uri("pki")]);
    let path = secure.fixture.folder.path().join("pki/client-cert.pem");
    let file = RealDisk
        .open(&path, world::OpenMode::Read)
        .expect("the file");
    let mut pem = vec![0; file.length().expect("a length") as usize];
    file.read_at(&mut pem, 0).expect("the whole file");
    let certificates = private.1.lock();
    let own = rustls_pki_types::pem::PemObject::from_pem_slice(&pem);
    let own: rustls_pki_types::CertificateDer<'_> = own.expect("a certificate");
    assert_eq!(certificates.first().map(Vec::as_slice), Some(own.as_ref()));
}

#[test]
fn an_error_names_the_certificate_that_cannot_be_used() {
    let authority = Authority::new("Scree test");
    let (certificate, key) = authority.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let ca = authority.issuer.pem();
    let load = |ca: &str, certificate: &str, key: &str| {
        ServerTls::from_pem(ca.as_bytes(), certificate.as_bytes(), key.as_bytes())
            .map_err(|error| error.to_string())
    };
    assert!(load(&ca, &certificate, &key).is_ok());
    let (_, other_key) = authority.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let error = load(&ca, &certificate, &other_key).expect_err("another key");
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

/// `scree up` once read only the first megabyte of each file.
#[test]
fn a_pem_file_that_is_too_long_is_refused() {
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("pki");
    let authority = Authority::new("Scree test");
    authority.write(&folder, &authority);
    read_folder(&folder).expect("valid files");
    let path = folder.join("ca-cert.pem");
    let long = RealDisk.open(&path, OpenMode::Write).expect("the file");
    long.set_length(2 << 20).expect("a longer file");
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
