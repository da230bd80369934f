//! Users beside each other, on the command line: what each has, gives, and may
//! not see.

use serde_json::Value;

use crate::service::Site;

struct Users {
    site: Site,
}

impl Users {
    fn of(&self, user: &str, arguments: &[&str]) -> Value {
        self.site.scree(&[&["--profile", user], arguments].concat())
    }

    /// What a command says that fails.
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
fn users_have_give_and_hide_what_is_theirs() {
    let (site, _controller) = Site::new();
    let invited = site.locally(&["host", "add", "h1"]);
    assert_eq!(site.join_host(&invited).code, 0);
    let _agent = site.agent();
    for user in ["alice", "bob"] {
        let invited = site.locally(&["user", "add", user]);
        let said = site.login(user, &invited);
        assert_eq!((said.code, said.error.as_str()), (0, ""));
    }
    // Commands would go on as `local`, without a word.
    let invited = site.locally(&["user", "add", "carol"]);
    let folder = site.text("c");
    let options = ["--profile", "carol", "--dir", folder.as_str()];
    let said = site.login_with(&options, &invited);
    assert_eq!(said.code, 0);
    for word in [folder.as_str(), "scree://user/carol", "--profile carol"] {
        assert!(said.error.contains(word), "{}", said.error);
    }
    let users = Users { site };
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
    users.refused("alice", &create, "exists already");
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

    // A host is for those it was given to.
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
        &["volume", "give", "disk", "bob"],
        "detach it first",
    );
    users.of("alice", &["volume", "unexport", "disk"]);

    // For bob there is nothing, until he is given something.
    for name in ["disk", "alice/disk", disk["id"].as_str().expect("an id")] {
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
        "the right to use",
    );
    users.refused(
        "bob",
        &["volume", "delete", "alice/disk"],
        "the right to administer",
    );
    let read = users.of("bob", &["volume", "export", "alice/disk", "--read-only"]);
    assert_eq!(read["read_only"], true);
    // Names are spelt so that they can be given to other commands.
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
    users.refused("bob", &["detach", "disk", "--no-wait"], "say alice/disk");
    users.refused("bob", &["volume", "unexport", "disk"], "say alice/disk");
    users.of("bob", &["volume", "unexport", "alice/disk"]);
    users.of("bob", &["volume", "create", "disk", "--from", "alice/noon"]);
    let list = users.table("bob", &["volume", "list"]);
    assert!(
        list.contains("alice/disk") && list.contains("bob/disk"),
        "{list}"
    );
    let grants = users.of("alice", &["grant", "list", "--volume", "disk"]);
    let id = grants[0]["id"].as_str().expect("an id").to_owned();
    // What was given can be given back, and taken away.
    users.of("bob", &["grant", "delete", &id]);
    users.of(
        "alice",
        &["grant", "add", "bob", "read", "--volume", "disk"],
    );
    let grants = users.of("alice", &["grant", "list", "--volume", "disk"]);
    let id = grants[0]["id"].as_str().expect("an id");
    users.of("alice", &["grant", "delete", id]);
    users.refused("bob", &["volume", "show", "alice/disk"], "does not exist");

    // Projects.
    users.refused("alice", &["project", "add", "red"], "is no administrator");
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
        &["volume", "give", "more", "bob"],
        "both you and bob",
    );
    let given = users.site.locally(&["volume", "give", "alice/more", "bob"]);
    assert_eq!(
        (&given["owner"], &given["project"]),
        (&"bob".into(), &"bob".into())
    );
    users.site.locally(&["project", "delete", "red"]);
    let log = users.site.locally(&["audit", "--limit", "100"]);
    let log = log.as_array().expect("lines");
    for (who, action) in [
        ("scree://user/alice", "create"),
        ("scree://user/alice", "snapshot"),
        ("scree://user/alice", "grant"),
        ("scree://user/alice", "revoke"),
        ("scree://user/bob", "attach"),
        ("scree://user/bob", "detach"),
        ("scree://user/local", "give"),
        ("scree://user/local", "set-quota"),
    ] {
        let is_there = log
            .iter()
            .any(|line| line["principal"] == who && line["action"] == action);
        assert!(is_there, "{action} by {who}: {log:?}");
    }
}
