//! `scree status`.

use api::types::Status;
use base::size::about_bytes as bytes;

use super::{Failure, Session};
use crate::output::{Table, print};

pub(super) async fn run(session: &Session) -> Result<(), Failure> {
    let status: Status = session.client.get("/v1/status").await?;
    Ok(print(session.format, &status, show)?)
}

fn show(status: &Status) -> String {
    let mut table = Table::new(&["state", &status.state]);
    let mut row = |key: &str, value: String| table.row(vec![key.to_owned(), value]);
    row("data directory", status.folder.clone());
    row("cluster", status.cluster.clone());
    row("version", status.version.clone());
    row("pid", status.pid.to_string());
    row(
        "volumes",
        format!("{} ({} exported)", status.volumes, status.exported),
    );
    row("snapshots", status.snapshots.to_string());
    row(
        "units",
        format!("{} ({} healthy)", status.units, status.units_healthy),
    );
    row("on units", bytes(status.bytes));
    row("in journals", bytes(status.journal_used_bytes));
    row("pending frees", status.pending_frees.to_string());
    if status.degraded_blocks > 0 {
        row(
            "degraded",
            format!("up to {} blocks", status.degraded_blocks),
        );
    }
    let mut text = table.to_string();
    for problem in &status.problems {
        text += &format!("! {problem}\n");
    }
    text
}
