//! `scree grant`.

use api::types::{AddGrant, Grant};

use super::{Failure, Session, qualified, query, segment};
use crate::args::GrantCommand;
use crate::output::{Table, print, time};

pub(super) async fn run(session: &Session, command: GrantCommand) -> Result<(), Failure> {
    match command {
        GrantCommand::Add {
            user,
            right,
            on,
            vm,
            ..
        } => {
            let new = AddGrant {
                user,
                right,
                volume: on.volume,
                snapshot: on.snapshot,
                host: on.host,
                vm,
            };
            let grant: Grant = session.client.post("/v1/grants", &new).await?;
            let is_own = session
                .are_own(std::iter::once(grant.owner.as_ref()))
                .await?;
            Ok(print(session.format, &grant, |grant| {
                list(std::slice::from_ref(grant), is_own)
            })?)
        }
        GrantCommand::List { on } => {
            let parameters = [
                ("volume", on.volume.as_deref()),
                ("snapshot", on.snapshot.as_deref()),
                ("host", on.host.as_deref()),
            ];
            let path = query("/v1/grants", &parameters, &[])?;
            let grants: Vec<Grant> = session.client.all(&path).await?;
            let is_own = session.are_own(grants.iter().map(|grant| grant.owner.as_ref()));
            let is_own = is_own.await?;
            Ok(print(session.format, &grants, |grants| {
                list(grants, is_own)
            })?)
        }
        GrantCommand::Delete { id, .. } => {
            let path = format!("/v1/grants/{}", segment(&id)?);
            let grant: Grant = session.client.delete(&path).await?;
            let is_own = session
                .are_own(std::iter::once(grant.owner.as_ref()))
                .await?;
            Ok(print(session.format, &grant, |grant| {
                let name = name(grant, is_own);
                format!("{} may no longer {} {name}\n", grant.user, grant.right)
            })?)
        }
    }
}

fn name(grant: &Grant, is_own: bool) -> String {
    match &grant.name {
        Some(name) => qualified(grant.owner.as_ref(), name, is_own),
        None => grant.object.clone(),
    }
}

fn list(grants: &[Grant], is_own: bool) -> String {
    let mut table = Table::new(&["ID", "USER", "RIGHT", "ON", "SINCE"]);
    for grant in grants {
        let name = name(grant, is_own);
        let kind = match grant.object.split_once('-') {
            Some(("vol", _)) => "volume",
            Some(("snap", _)) => "snapshot",
            _ => "host",
        };
        let on = match &grant.vm {
            Some(vm) => format!("{kind} {name}, VMs {vm}…"),
            None => format!("{kind} {name}"),
        };
        table.row(vec![
            grant.id.clone(),
            grant.user.clone(),
            grant.right.clone(),
            on,
            time(&grant.created),
        ]);
    }
    table.to_string()
}
