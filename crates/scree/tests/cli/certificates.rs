//! An operator's own authority signs the controller, users and hosts; Scree's own authority signs
//! only whom it was asked to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::service::{Process, Site};

/// The operator's authority, and the folder with its certificates.
struct Company {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Company {
    fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("signed").pem();
        fs::write(folder.join(format!("{name}.pem")), &pem).expect("written");
        Self {
            issuer: Issuer::from_ca_cert_pem(&pem, key).expect("an authority"),
            folder: folder.to_owned(),
        }
    }

    /// Writes `name.pem` and `name.key`.
    fn sign(&self, name: &str, san: SanType, purpose: ExtendedKeyUsagePurpose) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![purpose];
        params.subject_alt_names = vec![san];
        let pem = params.signed_by(&key, &self.issuer).expect("signed").pem();
        fs::write(self.folder.join(format!("{name}.pem")), pem).expect("written");
        let path = self.folder.join(format!("{name}.key"));
        fs::write(&path, key.serialize_pem()).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("private");
    }

    fn client(&self, name: &str, uri: &str) {
        let uri = SanType::URI(Ia5String::try_from(uri).expect("ASCII"));
        self.sign(name, uri, ExtendedKeyUsagePurpose::ClientAuth);
    }
}

#[test]
fn an_operators_own_authority_serves_controllers_users_and_hosts() {
    let mut company = None;
    let (site, controller) = Site::with(|folder| {
        let made = Company::new(folder, "company");
        let name = Ia5String::try_from("localhost").expect("ASCII");
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        made.sign("server", SanType::DnsName(name), purpose);
        company = Some(made);
        let file = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        ["--client-ca", "--tls-cert", "--tls-key"]
            .into_iter()
            .map(str::to_owned)
            .zip([file("company.pem"), file("server.pem"), file("server.key")])
            .flat_map(|(option, file)| [option, file])
            .collect()
    });
    let company = company.expect("made");
    company.client("alice", "scree://user/alice");
    company.client("h1", "scree://host/h1");
    let (url, ca) = (site.url(), site.text("company.pem"));
    let bring = |verb: &[&str], name: &str| {
        let (cert, key) = (
            site.text(&format!("{name}.pem")),
            site.text(&format!("{name}.key")),
        );
        let words = [&url, "--ca", &ca, "--cert", &cert, "--key", &key];
        site.try_scree(&[verb, &words].concat())
    };

    let alice = |words: &[&str]| site.scree(&[&["--profile", "default"], words].concat());

    // Signed by the right authority, but not a user yet.
    let said = bring(&["login"], "alice");
    let remedy = "`scree user add alice`";
    assert!(
        said.code == 1 && said.error.contains(remedy),
        "{}",
        said.error
    );
    site.locally(&["user", "add", "alice", "--administrator"]);
    let said = bring(&["login"], "alice");
    assert_eq!(said.code, 0, "{}", said.error);
    assert_eq!(alice(&["whoami"])["name"], "alice");

    // Joining with a token works, too, with the server known by the company's authority.
    let invited = alice(&["user", "add", "bob"]);
    let token = invited["token"].as_str().expect("a text");
    let words = [
        "login",
        "--profile",
        "bob",
        &url,
        "--token",
        token,
        "--ca",
        &ca,
    ];
    let said = site.try_scree(&words);
    assert_eq!(said.code, 0, "{}", said.error);
    assert_eq!(site.scree(&["--profile", "bob", "whoami"])["name"], "bob");

    // Without that authority the server is not trusted: Scree's own has not signed it.
    let said = site.login("carol", &alice(&["user", "add", "carol"]));
    let why = "authority that is not trusted here";
    assert!(said.code == 1 && said.error.contains(why), "{}", said.error);

    // The host serves volumes as any other.
    site.locally(&["host", "add", "h1"]);
    let folder = site.text("a");
    let said = bring(&["host", "join", "--dir", &folder], "h1");
    assert_eq!(said.code, 0, "{}", said.error);
    let agent = site.agent();
    alice(&["volume", "create", "disk", "--size", "64M"]);
    alice(&["volume", "export", "disk"]);
    assert_eq!(alice(&["volume", "show", "disk"])["state"], "in-use");

    // A new certificate is used as soon as its file exists; its name decides who the caller is.
    company.client("alice", "scree://user/bob");
    assert_eq!(alice(&["whoami"])["name"], "bob");
    let stranger = Company::new(&site.path(""), "stranger");
    stranger.client("alice", "scree://user/alice");
    let said = site.try_scree(&["--profile", "default", "whoami"]);
    let why = "no authority that signed it";
    assert!(said.code == 1 && said.error.contains(why), "{}", said.error);
    agent.stop();
    controller.stop();
}

#[test]
fn unusable_certificates_are_refused_at_the_start() {
    let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
    let folder = folder.expect("a folder");
    let company = Company::new(folder.path(), "company");
    let name = || SanType::DnsName(Ia5String::try_from("localhost").expect("ASCII"));
    company.sign("server", name(), ExtendedKeyUsagePurpose::ServerAuth);
    company.sign("other", name(), ExtendedKeyUsagePurpose::ServerAuth);
    company.sign("open", name(), ExtendedKeyUsagePurpose::ServerAuth);
    let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(file("open.key"), open).expect("set");
    fs::write(file("garbage.pem"), "garbage").expect("written");
    let refused = |options: &[&str], why: &str| {
        let dir = file("c");
        let words = ["controller", "--dir", &dir, "--listen", "127.0.0.1:0"];
        let said = crate::host::scree(&[&words, options].concat());
        assert!(said.code == 1 && said.error.contains(why), "{}", said.error);
    };
    // The data directory is created: its own authority is in it.
    let dir = file("c");
    let words = ["controller", "--dir", &dir, "--listen", "127.0.0.1:0"];
    Process::start(&words).stop();
    let own = file("c/authority.pem");
    refused(&["--client-ca", &own], "and not the cluster's");
    refused(&["--client-ca", &file("none.pem")], "cannot use");
    refused(
        &["--client-ca", &file("garbage.pem")],
        "no certificate of an authority",
    );
    let pair = |certificate: &str, key: &str| [file(certificate), file(key)];
    for ([certificate, key], why) in [
        (pair("server.pem", "other.key"), "cannot use"),
        (pair("open.pem", "open.key"), "can be read by other users"),
        (pair("garbage.pem", "server.key"), "certificate"),
        (pair("none.pem", "server.key"), "cannot use"),
    ] {
        refused(&["--tls-cert", &certificate, "--tls-key", &key], why);
    }
}
