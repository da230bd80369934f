//! `scree unit`, except for the daemon itself.

use api::types::{
    AddUnit, DrainUnits, QueuedCopysets, RemoveUnit, RepairJob, Scrub, SetZone, Unit, UnitChange,
    UnitZone,
};
use base::counted;
use base::size::about_bytes as bytes;

use super::party::{self, DAEMONS};
use super::{Failure, Session, or_dash, segment};
use crate::args::UnitCommand;
use crate::output::{Table, print};

pub(super) async fn run(session: &Session, command: Option<UnitCommand>) -> Result<(), Failure> {
    match command {
        None | Some(UnitCommand::Join { .. } | UnitCommand::Restore(_)) => Err(Failure::new(
            "run this command on the daemon's machine, with --dir DIR in place of --profile",
        )),
        Some(UnitCommand::Create { name, zone, .. }) => create_daemon(session, name, zone).await,
        Some(UnitCommand::SetZone { unit, zone, .. }) => {
            let zone = put_zone(session, &unit, zone).await?;
            Ok(print(session.format, &zone, zone_text)?)
        }
        Some(UnitCommand::Show { unit }) => {
            let path = format!("/v1/units/{}", segment(&unit)?);
            let unit: Unit = session.client.get(&path).await?;
            Ok(print(session.format, &unit, show)?)
        }
        Some(UnitCommand::Token { name, .. }) => party::invite(session, DAEMONS, &name).await,
        Some(UnitCommand::Disable { name, .. }) => party::disable(session, DAEMONS, &name).await,
        Some(UnitCommand::Enable { name, .. }) => party::enable(session, DAEMONS, &name).await,
        Some(UnitCommand::Drain { units, cancel, .. }) => {
            drain(session, DrainUnits { units, cancel }).await
        }
        Some(UnitCommand::Remove {
            unit,
            lost,
            accept_data_loss,
            ..
        }) => {
            let how = RemoveUnit {
                lost,
                accept_data_loss,
            };
            remove_unit(session, &unit, how).await
        }
        Some(UnitCommand::Repair { .. }) => begin(session, "/v1/units/repair", &()).await,
        Some(UnitCommand::Scrub { unit, .. }) => {
            begin(session, "/v1/units/scrub", &Scrub { unit }).await
        }
        Some(UnitCommand::Rebalance { .. }) => begin(session, "/v1/units/rebalance", &()).await,
        Some(UnitCommand::Jobs) => {
            let jobs: Vec<RepairJob> = session.client.get("/v1/units/jobs").await?;
            Ok(print(session.format, &jobs, |jobs| list_jobs(jobs))?)
        }
        Some(UnitCommand::List) => {
            let units: Vec<Unit> = session.client.get("/v1/units").await?;
            Ok(print(session.format, &units, |units| list(units))?)
        }
        Some(UnitCommand::Add {
            url, zone, host, ..
        }) => {
            let add = AddUnit { url, host, zone };
            let unit: Unit = session.client.post("/v1/units", &add).await?;
            Ok(print(session.format, &unit, |unit| {
                list(std::slice::from_ref(unit))
            })?)
        }
    }
}

/// Registers a unit daemon, prints its token, and sets its zone.
async fn create_daemon(
    session: &Session,
    name: String,
    zone: Option<String>,
) -> Result<(), Failure> {
    // Checked first: otherwise the daemon would be registered before the refusal.
    if let Some(zone) = &zone {
        control::parse::zone(zone).map_err(|error| Failure::new(error.to_string()))?;
    }
    party::add(session, DAEMONS, party::named(name.clone())).await?;
    match zone.filter(|_| !session.is_dry_run) {
        None => Ok(()),
        Some(zone) => put_zone(session, &name, Some(zone)).await.map(drop),
    }
}

async fn remove_unit(session: &Session, unit: &str, how: RemoveUnit) -> Result<(), Failure> {
    let path = format!("/v1/units/{}/remove", segment(unit)?);
    let moved: UnitChange = session.client.post(&path, &how).await?;
    Ok(print(session.format, &moved, moved_text)?)
}

async fn drain(session: &Session, which: DrainUnits) -> Result<(), Failure> {
    let moved: Vec<UnitChange> = session.client.post("/v1/units/drain", &which).await?;
    Ok(print(session.format, &moved, |moved| {
        let text = match which.cancel {
            true => kept_text,
            false => moved_text,
        };
        moved.iter().map(text).collect::<String>()
    })?)
}

async fn put_zone(
    session: &Session,
    unit: &str,
    zone: Option<String>,
) -> Result<UnitZone, Failure> {
    let path = format!("/v1/units/{}/zone", segment(unit)?);
    Ok(session.client.put(&path, &SetZone { zone }).await?)
}

async fn begin(
    session: &Session,
    path: &str,
    what: &(impl serde::Serialize + Sync),
) -> Result<(), Failure> {
    let wanted: QueuedCopysets = session.client.post(path, what).await?;
    Ok(print(session.format, &wanted, |wanted| {
        format!(
            "started in {}; `scree unit jobs` shows the progress\n",
            counted(wanted.copysets, "copyset")
        )
    })?)
}

fn zone_text(zone: &UnitZone) -> String {
    let name = zone.zone.as_deref().unwrap_or("a zone of its own");
    let message = zone.message.as_ref();
    let message = message.map_or_else(String::new, |text| format!("{text}\n"));
    format!("{} is in {name}\n{message}", zone.unit)
}

fn moved_text(moved: &UnitChange) -> String {
    let unit = &moved.unit;
    let copysets = counted(moved.copysets, "copyset");
    let text = match (moved.removed, moved.copysets) {
        (true, 0) => format!("{unit} is removed\n"),
        (true, _) => format!(
            "{unit} is removed; other units replace it in {copysets} (`scree unit jobs` shows the \
             progress)\n"
        ),
        (false, _) => format!(
            "other units replace {unit} in {copysets} (`scree unit jobs` shows the progress); \
             then it is removed\n"
        ),
    };
    match moved.copysets_lost {
        0 => text,
        count => format!(
            "{text}in {} no other unit had all segments: blocks that only {unit} had are lost\n",
            counted(count, "copyset")
        ),
    }
}

fn kept_text(kept: &UnitChange) -> String {
    format!(
        "draining {} is canceled; in {} it is rebuilt with the segments that it is missing \
         (`scree unit jobs` shows the progress)\n",
        kept.unit,
        counted(kept.copysets, "copyset")
    )
}

fn list_jobs(jobs: &[RepairJob]) -> String {
    let mut table = Table::new(&["COPYSET", "REBUILDING", "DRAINING", "HOST", "SEGMENTS"]);
    let mut problems = String::new();
    for job in jobs {
        let units = |units: &[String]| match units {
            [] => "-".to_owned(),
            units => units.join(","),
        };
        table.row(vec![
            job.copyset.to_string(),
            units(&job.rebuilding),
            units(&job.draining),
            or_dash(job.host.as_ref()),
            format!("{}/{}", job.segments_done, job.segments),
        ]);
        if let Some(problem) = &job.problem {
            problems += &format!("copyset {}: {problem}\n", job.copyset);
        }
        if job.damaged > 0 {
            problems += &format!(
                "copyset {}: {} slots are damaged\n",
                job.copyset, job.damaged
            );
        }
    }
    table.to_string() + &problems
}

fn list(units: &[Unit]) -> String {
    // Most clusters have no daemons.
    let has_daemons = units.iter().any(|unit| unit.daemon.is_some());
    let daemon = has_daemons.then_some("DAEMON");
    // Most clusters have no zones.
    let has_zones = units.iter().any(|unit| unit.zone.is_some());
    let mut head = vec!["ID", "STATE", "SEGMENTS", "USED", "FREE"];
    head.extend(has_zones.then_some("ZONE"));
    head.extend(daemon);
    head.push("URL");
    let mut table = Table::new(&head);
    for unit in units {
        let mut row = vec![
            unit.id.clone(),
            unit.state.clone(),
            or_dash(unit.segments),
            or_dash(unit.bytes.map(bytes)),
            or_dash(unit.free_bytes.map(bytes)),
        ];
        row.extend(has_zones.then(|| or_dash(unit.zone.as_ref())));
        row.extend(has_daemons.then(|| or_dash(unit.daemon.as_ref())));
        row.push(unit.url.clone());
        table.row(row);
    }
    let mut text = table.to_string();
    for unit in units {
        if let Some(message) = &unit.message {
            text += &format!("{} is {}: {message}\n", unit.id, unit.state);
        }
    }
    text
}

/// The fields of a unit and the properties of its backend.
fn show(unit: &Unit) -> String {
    let mut table = Table::new(&["FIELD", "VALUE"]);
    for (field, value) in [
        ("id", unit.id.clone()),
        ("url", unit.url.clone()),
        ("daemon", or_dash(unit.daemon.as_ref())),
        ("zone", or_dash(unit.zone.as_ref())),
        ("state", unit.state.clone()),
        ("message", or_dash(unit.message.as_ref())),
        ("segments", or_dash(unit.segments)),
        ("used", or_dash(unit.bytes.map(bytes))),
        ("free", or_dash(unit.free_bytes.map(bytes))),
        ("read", bytes(unit.read_bytes)),
        ("written", bytes(unit.written_bytes)),
    ] {
        table.row(vec![field.to_owned(), value]);
    }
    for fact in &unit.facts {
        let value = match fact.present {
            true => "yes".to_owned(),
            false => format!("no: {}", fact.consequence),
        };
        table.row(vec![fact.name.clone(), value]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(daemon: Option<&str>) -> Unit {
        Unit {
            id: "unit-00000000000000001".to_owned(),
            url: "file:///srv/u1".to_owned(),
            daemon: daemon.map(str::to_owned),
            state: "healthy".to_owned(),
            segments: None,
            bytes: None,
            free_bytes: None,
            read_bytes: 0,
            written_bytes: 0,
            message: None,
            zone: None,
            facts: Vec::new(),
        }
    }

    #[test]
    fn the_column_of_daemons_is_shown_if_there_are_daemons() {
        let columns = |units: &[Unit]| -> Vec<Vec<String>> {
            let text = list(units);
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            text.lines().map(words).collect()
        };
        let without = columns(&[unit(None)]);
        assert_eq!(without[0].len(), 6);
        let with = columns(&[unit(None), unit(Some("store1"))]);
        assert_eq!(with[0][5], "DAEMON");
        assert_eq!((&*with[1][5], &*with[2][5]), ("-", "store1"));
        assert_eq!(with[2][6], "file:///srv/u1");
    }
}
