//! `scree key`.

use api::types::{AddKey, Key, RotateKey};

use super::{Failure, Session, or_dash, segment};
use crate::args::KeyCommand;
use crate::output::{Table, print};
use crate::progress::Progress;

/// The longest wait of `rotate --wait`, in seconds.
const WAIT_SECONDS: u64 = 300;

pub(super) async fn run(session: &Session, command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::List => {
            let keys: Vec<Key> = session.client.get("/v1/keys").await?;
            Ok(print(session.format, &keys, |keys| list(keys))?)
        }
        KeyCommand::Show { name } => {
            let path = format!("/v1/keys/{}", segment(&name)?);
            print_key(session, &session.client.get(&path).await?).await
        }
        KeyCommand::Add { name, host, .. } => {
            let progress = Progress::start(format!("creating {name}"));
            let key: Key = session
                .client
                .post("/v1/keys", &AddKey { name, host })
                .await?;
            drop(progress);
            print_key(session, &key).await
        }
        KeyCommand::Rotate { old, new, wait, .. } => rotate(session, &old, new, wait).await,
        KeyCommand::Delete { name, .. } => {
            let path = format!("/v1/keys/{}", segment(&name)?);
            let key: Key = session.client.delete(&path).await?;
            Ok(print(session.format, &key, |key| {
                format!("wrapping key {} ({}) is deleted\n", key.name, key.id)
            })?)
        }
    }
}

async fn rotate(session: &Session, old: &str, new: String, wait: bool) -> Result<(), Failure> {
    let wait_seconds = if wait { WAIT_SECONDS } else { 0 };
    let path = format!("/v1/keys/{}/rotate?wait={wait_seconds}", segment(old)?);
    let progress = Progress::start(format!("replacing {old}"));
    let key: Key = session.client.post(&path, &RotateKey { to: new }).await?;
    drop(progress);
    print_key(session, &key).await?;
    if wait && key.state == "retiring" {
        return Err(Failure::new(format!(
            "{} still wraps {} keys after {WAIT_SECONDS} s; rotation continues, and `scree status` \
             shows what blocks it",
            key.name, key.lineages
        )));
    }
    Ok(())
}

async fn print_key(session: &Session, key: &Key) -> Result<(), Failure> {
    // Names the key that replaces it.
    let known: Vec<Key> = match key.replaced_by {
        Some(_) => session.client.get("/v1/keys").await?,
        None => Vec::new(),
    };
    Ok(print(session.format, key, |key| {
        table(std::slice::from_ref(key), &known)
    })?)
}

fn list(keys: &[Key]) -> String {
    table(keys, keys)
}

/// A table of `keys`. The keys that replace them are looked for among `known`.
fn table(keys: &[Key], known: &[Key]) -> String {
    let mut table = Table::new(&["ID", "NAME", "KIND", "STATE", "WRAPS", "REPLACED BY"]);
    for key in keys {
        let replaced_by = key.replaced_by.as_ref();
        let name = |id: &String| known.iter().find(|key| key.id == *id).map(|key| &key.name);
        table.row(vec![
            key.id.clone(),
            key.name.clone(),
            key.kind.clone(),
            key.state.clone(),
            key.lineages.to_string(),
            or_dash(replaced_by.map(|id| name(id).unwrap_or(id))),
        ]);
    }
    table.to_string()
}
