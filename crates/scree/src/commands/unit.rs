//! `scree unit`.

use api::size::about_bytes as bytes;
use api::types::{AddUnit, Unit};

use super::{Failure, Session, or_dash};
use crate::args::UnitCommand;
use crate::output::{Table, print};

impl Session {
    pub(super) async fn unit(&self, command: UnitCommand) -> Result<(), Failure> {
        match command {
            UnitCommand::List => {
                let units: Vec<Unit> = self.client.get("/v1/units").await?;
                Ok(print(self.format, &units, |units| list(units))?)
            }
            UnitCommand::Add { url, host } => {
                let unit: Unit = self
                    .client
                    .post("/v1/units", &AddUnit { url, host })
                    .await?;
                Ok(print(self.format, &unit, |unit| {
                    list(std::slice::from_ref(unit))
                })?)
            }
        }
    }
}

fn list(units: &[Unit]) -> String {
    let mut table = Table::new(&["ID", "STATE", "SEGMENTS", "USED", "FREE", "URL"]);
    for unit in units {
        table.row(vec![
            unit.id.clone(),
            unit.state.clone(),
            or_dash(unit.segments),
            or_dash(unit.bytes.map(bytes)),
            or_dash(unit.free_bytes.map(bytes)),
            unit.url.clone(),
        ]);
    }
    let mut text = table.to_string();
    for unit in units {
        if let Some(reason) = &unit.reason {
            text += &format!("{} is {}: {reason}\n", unit.id, unit.state);
        }
    }
    text
}
