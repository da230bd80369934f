//! Several users on the command line: what each owns, shares, and cannot see.

use serde_json::Value;

use crate::service::{Process, Site};

struct Users {
    site: Site,
}

impl Users {
    fn of(&self, user: &str, arguments: &[&str]) -> Value {
        self.site.scree(&[&["--profile", user], arguments].concat())
    }

    /// Runs a command that must fail with `why` in its error.
    fn refused(&self, user: &str, arguments: &[&str], why: &str) {
        let said = self
            .site
            .try_scree(&[&["--profile", user], arguments].concat());
        assert_eq!(said.code, 1, "{arguments:?}: {}", said.out);
        assert!(said.error.contains(why), "{arguments:?}: {}", said.error);
    }

    fn table(&self, user: &str, arguments: &[&str]) -> String {
        let said = self
            .site
            .try_scree(&[&["--profile", user], arguments].concat());
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.error);
        said.out
    }

    fn names(&self, user: &str, arguments: &[&str]) -> Vec<String> {
        let list = self.of(user, arguments);
        let list = list.as_array().expect("a list");
        let name = |item: &Value| item["name"].as_str().expect("a name").to_owned();
        list.iter().map(name).collect()
    }
}

/// The first five minutes of tenants, as the README has them.
#[test]
fn users_own_share_and_transfer_volumes_that_others_cannot_see() {
    let (users, _processes) = users_of_a_site();
    a_login_beside_a_data_directory_has_a_notice(&users.site);
    let disk = a_volume_is_created_once_and_tagged(&users);
    an_export_needs_a_grant_on_the_host(&users);
    another_user_needs_a_grant_on_the_volume(&users, &disk);
    names_of_others_are_qualified(&users);
    grants_are_returned_and_revoked(&users);
    projects_have_quotas_and_members(&users);
    changes_are_in_the_audit_log(&users);
}

/// The users alice and bob of a site with host h1, and the processes.
fn users_of_a_site() -> (Users, [Process; 2]) {
    let (site, controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let agent = site.agent();
    for user in ["alice", "bob"] {
        let invited = site.locally(&["user", "add", user]);
        let said = site.login(user, &invited);
        assert_eq!((said.code, said.error.as_str()), (0, ""));
    }
    (Users { site }, [controller, agent])
}

/// Without the notice, commands would silently run as `local`.
fn a_login_beside_a_data_directory_has_a_notice(site: &Site) {
    let invited = site.locally(&["user", "add", "carol"]);
    let folder = site.text("c");
    let options = ["--profile", "carol", "--dir", folder.as_str()];
    let said = site.login_with(&options, &invited);
    assert_eq!(said.code, 0);
    for word in [folder.as_str(), "scree://user/carol", "--profile carol"] {
        assert!(said.error.contains(word), "{}", said.error);
    }
}

/// Returns the volume's id.
fn a_volume_is_created_once_and_tagged(users: &Users) -> String {
    users.refused(
        "alice",
        &["volume", "create", "disk", "--size", "5"],
        "block",
    );
    let create = [
        "volume",
        "create",
        "disk",
        "--size",
        "64M",
        "--tag",
        "tier=gold",
    ];
    let tried = users.of("alice", &[&create[..], &["--dry-run"]].concat());
    assert_eq!(tried["name"], "disk");
    assert!(users.names("alice", &["volume", "list"]).is_empty());
    let keyed = [&create[..], &["--idempotency-key", "k1"]].concat();
    let disk = users.of("alice", &keyed);
    assert_eq!(users.of("alice", &keyed)["id"], disk["id"]);
    users.refused("alice", &create, "already exists");
    assert_eq!(
        users.names("alice", &["volume", "list", "--tag", "tier=gold"]),
        ["disk"]
    );
    assert!(
        users
            .names("alice", &["volume", "list", "--state", "in-use"])
            .is_empty()
    );
    users.of("alice", &["volume", "tag", "disk", "tier=tin", "for=tests"]);
    let shown = users.table("alice", &["volume", "show", "disk"]);
    assert!(
        shown.contains("tier=tin") && shown.contains("for=tests"),
        "{shown}"
    );
    disk["id"].as_str().expect("an id").to_owned()
}

fn an_export_needs_a_grant_on_the_host(users: &Users) {
    users.refused(
        "alice",
        &["volume", "export", "disk"],
        "scree grant add alice use --host",
    );
    users
        .site
        .locally(&["grant", "add", "alice", "use", "--host", "h1"]);
    users
        .site
        .locally(&["grant", "add", "bob", "use", "--host", "h1"]);
    let export = users.of("alice", &["volume", "export", "disk"]);
    let uri = export["uri"].as_str().expect("a URI");
    assert!(uri.starts_with("nbd+unix:///alice/disk?"), "{uri}");
    users.refused(
        "alice",
        &["volume", "transfer", "disk", "bob"],
        "detach it first",
    );
    users.of("alice", &["volume", "unexport", "disk"]);
}

fn another_user_needs_a_grant_on_the_volume(users: &Users, id: &str) {
    for name in ["disk", "alice/disk", id] {
        let why = format!("volume {name:?} does not exist");
        users.refused("bob", &["volume", "show", name], &why);
        users.refused("bob", &["volume", "export", name], &why);
        users.refused("bob", &["volume", "delete", name], &why);
    }
    users.of(
        "alice",
        &["snapshot", "create", "disk", "--name", "noon", "--wait"],
    );
    users.of(
        "alice",
        &["grant", "add", "bob", "read", "--volume", "disk"],
    );
    users.refused(
        "bob",
        &["volume", "export", "alice/disk"],
        "the right `use`",
    );
    users.refused(
        "bob",
        &["volume", "delete", "alice/disk"],
        "the right `administer`",
    );
    let read = users.of("bob", &["volume", "export", "alice/disk", "--read-only"]);
    assert_eq!(read["read_only"], true);
}

/// Lists show names in the form that other commands accept.
fn names_of_others_are_qualified(users: &Users) {
    for (list, word) in [
        (["volume", "list"], "alice/disk  "),
        (["snapshot", "list"], "alice/noon  "),
        (["snapshot", "list"], "  alice/disk  "),
        (["snapshot", "tree"], "alice/disk  "),
        (["attachment", "list"], "alice/disk  "),
        (["grant", "list"], "volume alice/disk  "),
    ] {
        let bobs = users.table("bob", &list);
        assert!(bobs.contains(word), "{bobs}");
        let hers = users.table("alice", &list);
        assert!(!hers.contains("alice/"), "{hers}");
    }
    users.refused(
        "bob",
        &["detach", "disk", "--no-wait"],
        "name alice's as alice/disk",
    );
    users.refused(
        "bob",
        &["volume", "unexport", "disk"],
        "name alice's as alice/disk",
    );
    users.of("bob", &["volume", "unexport", "alice/disk"]);
    users.of("bob", &["volume", "create", "disk", "--from", "alice/noon"]);
    let list = users.table("bob", &["volume", "list"]);
    assert!(
        list.contains("alice/disk") && list.contains("bob/disk"),
        "{list}"
    );
}

fn grants_are_returned_and_revoked(users: &Users) {
    let grants = users.of("alice", &["grant", "list", "--volume", "disk"]);
    let id = grants[0]["id"].as_str().expect("an id").to_owned();
    users.of("bob", &["grant", "delete", &id]);
    users.of(
        "alice",
        &["grant", "add", "bob", "read", "--volume", "disk"],
    );
    let grants = users.of("alice", &["grant", "list", "--volume", "disk"]);
    let id = grants[0]["id"].as_str().expect("an id");
    users.of("alice", &["grant", "delete", id]);
    users.refused("bob", &["volume", "show", "alice/disk"], "does not exist");
}

fn projects_have_quotas_and_members(users: &Users) {
    users.refused(
        "alice",
        &["project", "add", "red"],
        "is not an administrator",
    );
    users.site.locally(&[
        "project",
        "quota",
        "alice",
        "--volumes",
        "1",
        "--size",
        "1G",
    ]);
    users.refused(
        "alice",
        &["volume", "create", "more", "--size", "1M"],
        "project \"alice\"",
    );
    let quota = users.table("alice", &["project", "show", "alice"]);
    assert!(quota.contains("1 of 1"), "{quota}");
    users.site.locally(&["project", "add", "red"]);
    users.site.locally(&["project", "join", "red", "alice"]);
    users.of(
        "alice",
        &[
            "volume",
            "create",
            "more",
            "--size",
            "1M",
            "--project",
            "red",
        ],
    );
    assert_eq!(users.names("alice", &["project", "list"]), ["alice", "red"]);
    assert_eq!(users.names("bob", &["project", "list"]), ["bob"]);
    users.refused(
        "alice",
        &["volume", "transfer", "more", "bob"],
        "both you and bob",
    );
    let moved = users
        .site
        .locally(&["volume", "transfer", "alice/more", "bob"]);
    assert_eq!(
        (&moved["owner"], &moved["project"]),
        (&"bob".into(), &"bob".into())
    );
    users.site.locally(&["project", "delete", "red"]);
}

fn changes_are_in_the_audit_log(users: &Users) {
    let log = users.site.locally(&["audit", "--limit", "100"]);
    let log = log.as_array().expect("lines");
    for (who, action) in [
        ("scree://user/alice", "create"),
        ("scree://user/alice", "snapshot"),
        ("scree://user/alice", "grant"),
        ("scree://user/alice", "revoke"),
        ("scree://user/bob", "attach"),
        ("scree://user/bob", "detach"),
        ("scree://user/local", "transfer"),
        ("scree://user/local", "set-quota"),
    ] {
        let is_there = log
            .iter()
            .any(|line| line["principal"] == who && line["action"] == action);
        assert!(is_there, "{action} by {who}: {log:?}");
    }
}
