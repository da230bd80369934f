//! A volume with all that belongs to it, and callers with each kind of right on it.

use base::PartyId;
use serde_json::{Value, json};

use crate::parties::Scene;
use crate::tls::Party;

pub struct Cast {
    pub scene: Scene,
    pub host: Party,
    /// The target of moves.
    pub h2: PartyId,
    pub alice: Party,
    pub bob: Party,
}

impl Cast {
    pub async fn new(scene: Scene) -> Self {
        let alice = scene.member("users", "alice").await;
        let bob = scene.member("users", "bob").await;
        scene.member("users", "carol").await;
        let host = scene.member("hosts", "h1").await;
        scene.member("hosts", "h2").await;
        scene.member("daemons", "u1").await;
        let root = Some(&scene.root);
        let hosts = scene.request(root, "GET /v1/hosts", Value::Null, 200).await;
        let named = |host: &&Value| host["name"] == "h2";
        let h2 = hosts["items"]
            .as_array()
            .expect("a page")
            .iter()
            .find(named);
        let h2 = h2.expect("it was made")["id"].as_str().expect("an id");
        let h2 = h2.parse().expect("an id");
        for user in ["alice", "bob"] {
            for host in ["h1", "h2"] {
                let grant = json!({"user": user, "right": "use", "host": host});
                scene.request(root, "POST /v1/grants", grant, 201).await;
            }
        }
        let shared = json!({"name": "shared"});
        scene.request(root, "POST /v1/projects", shared, 201).await;
        for user in ["alice", "carol"] {
            let join = format!("PUT /v1/projects/shared/members/{user}");
            scene.request(root, &join, Value::Null, 200).await;
        }
        // A project with a volume cannot be deleted.
        let kept = json!({"name": "kept", "size": 1 << 20, "project": "shared"});
        scene
            .request(Some(&alice), "POST /v1/volumes", kept, 201)
            .await;
        Self {
            scene,
            host,
            h2,
            alice,
            bob,
        }
    }

    /// New objects of alice's, on which bob has `right`, by their placeholders in [`Call`].
    pub async fn objects(&self, number: usize, right: Option<&str>) -> Vec<(&'static str, String)> {
        let (scene, alice) = (&self.scene, Some(&self.alice));
        let made = async |request: &str, body: Value, status| -> String {
            let made = scene.request(alice, request, body, status).await;
            made["id"].as_str().expect("an id").to_owned()
        };
        let name = format!("thing-{number}");
        let new = json!({"name": name, "size": 1 << 20, "project": "alice"});
        let volume = made("POST /v1/volumes", new, 201).await;
        let new = json!({"volume": volume, "name": name});
        let snapshot = made("POST /v1/snapshots", new, 201).await;
        let new = json!({"user": "carol", "right": "read", "volume": volume});
        let grant = made("POST /v1/grants", new, 201).await;
        if let Some(right) = right {
            let new = json!({"user": "bob", "right": right, "volume": volume});
            made("POST /v1/grants", new, 201).await;
        }
        let new = json!({"name": format!("other-{number}"), "size": 1 << 20, "project": "alice"});
        let other = made("POST /v1/volumes", new, 201).await;
        let new = json!({"volume": other, "host": "h1"});
        let attachment = made("POST /v1/attachments", new, 202).await;
        if let Some(right) = right {
            let new = json!({"user": "bob", "right": right, "volume": other});
            made("POST /v1/grants", new, 201).await;
        }
        let policy = format!("volume = '{other}'\n[[filter]]\nkind = 'fault'\n");
        let chain = made("POST /v1/chains", json!({"policy": policy}), 200).await;
        vec![
            ("{v}", volume),
            ("{s}", snapshot),
            ("{a}", attachment),
            ("{g}", grant),
            ("{c}", chain),
            ("{n}", format!("new-{number}")),
        ]
    }

    /// Lets h2 report, since no attachment is moved to an unresponsive host.
    pub async fn let_h2_report(&self) {
        let heard = self.scene.control.host(self.h2).note_heard().await;
        heard.expect("kept");
    }

    pub fn caller(&self, column: usize) -> Option<&Party> {
        match column {
            0 => None,
            1 => Some(&self.host),
            7 => Some(&self.alice),
            8 => Some(&self.scene.root),
            _ => Some(&self.bob),
        }
    }
}

pub fn filled(text: &str, things: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (letter, thing) in things {
        text = text.replace(letter, thing);
    }
    text
}
