//! `scree grant`.

use api::types::{AddGrant, Grant};

use super::{Failure, Session, query, segment};
use crate::args::GrantCommand;
use crate::output::{Table, print, time};

impl Session {
    pub(super) async fn grant(&self, command: GrantCommand) -> Result<(), Failure> {
        match command {
            GrantCommand::Add {
                user,
                right,
                on,
                vm,
            } => {
                let new = AddGrant {
                    user,
                    right,
                    volume: on.volume,
                    snapshot: on.snapshot,
                    host: on.host,
                    vm,
                };
                let grant: Grant = self.client.post("/v1/grants", &new).await?;
                Ok(print(self.format, &grant, |grant| {
                    list(std::slice::from_ref(grant))
                })?)
            }
            GrantCommand::List { on } => {
                let said = [
                    ("volume", on.volume.as_deref()),
                    ("snapshot", on.snapshot.as_deref()),
                    ("host", on.host.as_deref()),
                ];
                let path = query("/v1/grants", &said, &[])?;
                let grants: Vec<Grant> = self.client.all(&path).await?;
                Ok(print(self.format, &grants, |grants| list(grants))?)
            }
            GrantCommand::Delete { id } => {
                let path = format!("/v1/grants/{}", segment(&id)?);
                let grant: Grant = self.client.delete(&path).await?;
                Ok(print(self.format, &grant, |grant| {
                    let name = grant.name.as_ref().unwrap_or(&grant.on);
                    format!("{} may no longer {} {name}\n", grant.user, grant.right)
                })?)
            }
        }
    }
}

fn list(grants: &[Grant]) -> String {
    let mut table = Table::new(&["ID", "USER", "RIGHT", "ON", "SINCE"]);
    for grant in grants {
        let name = grant.name.as_ref().unwrap_or(&grant.on);
        let kind = match grant.on.split_once('-') {
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
