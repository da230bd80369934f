//! `scree attach`, `scree detach` and `scree attachment`.

use api::types::{Attachment, CreateAttachment, MoveAttachment};

use super::{Failure, Session, or_dash, qualified, query, segment};
use crate::args::{AttachArguments, AttachmentCommand, DetachArguments};
use crate::output::{Table, print, time};
use crate::progress::Progress;

/// The longest wait for the host, in seconds: longer than a guest may take, and than the lease of a
/// dead host.
const WAIT_SECONDS: u64 = 60;

pub(super) async fn attach(session: &Session, arguments: AttachArguments) -> Result<(), Failure> {
    let AttachArguments {
        volume,
        vm,
        host,
        read_only,
        no_wait,
        ..
    } = arguments;
    let progress = Progress::start(format!("attaching {volume}"));
    let wait = if no_wait { 0 } else { WAIT_SECONDS };
    let new = CreateAttachment {
        volume: volume.clone(),
        host,
        vm: Some(vm),
        read_only,
    };
    let path = format!("/v1/attachments?wait={wait}");
    let attachment: Attachment = session.client.post(&path, &new).await?;
    drop(progress);
    print_attachment(session, &attachment)?;
    match attachment.state.as_str() {
        "attached" => Ok(()),
        _ if no_wait || session.is_dry_run => Ok(()),
        _ => {
            let why = why_waiting(&attachment);
            Err(Failure::new(format!(
                "volume {volume} is not attached yet: {why}; the host retries until you run `scree \
                 detach {volume}`"
            )))
        }
    }
}

/// Why an attachment has not reached the desired state yet.
fn why_waiting(attachment: &Attachment) -> String {
    match &attachment.message {
        Some(message) => message.text.clone(),
        None => format!("it is {} after {WAIT_SECONDS} s", attachment.state),
    }
}

pub(super) async fn detach(session: &Session, arguments: DetachArguments) -> Result<(), Failure> {
    let found = attachment_of(session, &arguments).await?;
    let wait = if arguments.no_wait { 0 } else { WAIT_SECONDS };
    let path = format!(
        "/v1/attachments/{}?force={}&wait={wait}",
        found.id, arguments.force
    );
    let progress = Progress::start(format!("detaching {}", found.volume));
    let attachment: Attachment = session.client.delete(&path).await?;
    drop(progress);
    print_attachment(session, &attachment)?;
    match attachment.state.as_str() {
        "detached" => Ok(()),
        _ if arguments.no_wait || session.is_dry_run => Ok(()),
        _ => {
            let why = why_waiting(&attachment);
            Err(Failure::new(format!(
                "volume {} is not detached yet: {why}; the host retries",
                attachment.volume
            )))
        }
    }
}

/// The attachment that the arguments select.
async fn attachment_of(
    session: &Session,
    arguments: &DetachArguments,
) -> Result<Attachment, Failure> {
    let volume = &arguments.volume;
    let mut path = format!("/v1/attachments?volume={}", segment(volume)?);
    if let Some(host) = &arguments.host {
        path += &format!("&host={}", segment(host)?);
    }
    let mut all: Vec<Attachment> = session.client.all(&path).await?;
    if arguments.vm.is_some() {
        all.retain(|one| one.vm == arguments.vm);
    }
    refuse_foreign(session, volume, &all).await?;
    let one = all.pop().ok_or_else(|| {
        Failure::new(match &arguments.vm {
            Some(vm) => format!(
                "volume {volume:?} is not attached to {vm}: see `scree attachment list --volume \
                 {volume}`"
            ),
            None => format!("volume {volume:?} is not attached: there is nothing to detach"),
        })
    })?;
    if all.is_empty() {
        return Ok(one);
    }
    Err(Failure::new(format!(
        "volume {volume:?} is attached {} times: add --vm or --host, as `scree attachment list \
         --volume {volume}` shows them",
        all.len() + 1
    )))
}

/// A bare name means the caller's own volume, as it does for the server.
async fn refuse_foreign(
    session: &Session,
    volume: &str,
    all: &[Attachment],
) -> Result<(), Failure> {
    let Some(owner) = all
        .iter()
        .find(|one| one.volume == volume)
        .and_then(|one| one.owner.as_ref())
    else {
        return Ok(());
    };
    if session.are_own(std::iter::once(Some(owner))).await? {
        return Ok(());
    }
    Err(Failure::new(format!(
        "you have no volume {volume:?}; name {owner}'s as {owner}/{volume}"
    )))
}

pub(super) async fn run(session: &Session, command: AttachmentCommand) -> Result<(), Failure> {
    match command {
        AttachmentCommand::List {
            volume,
            host,
            state,
        } => {
            let parameters = [
                ("volume", volume.as_deref()),
                ("host", host.as_deref()),
                ("state", state.as_deref()),
            ];
            let path = query("/v1/attachments", &parameters, &[])?;
            let mut all: Vec<Attachment> = session.client.all(&path).await?;
            all.sort_by_key(|one| (one.created.parse::<jiff::Timestamp>().ok(), one.id.clone()));
            let is_own = session.are_own(all.iter().map(|one| one.owner.as_ref()));
            let is_own = is_own.await?;
            Ok(print(session.format, &all, |all| list(all, is_own))?)
        }
        AttachmentCommand::Show { id } => {
            let path = format!("/v1/attachments/{}", segment(&id)?);
            print_attachment(session, &session.client.get(&path).await?)
        }
        AttachmentCommand::Move {
            id,
            host,
            vm,
            cancel: _,
            no_wait,
            ..
        } => {
            let to = host.map(|host| MoveAttachment { host, vm });
            move_attachment(session, &id, to, no_wait).await
        }
    }
}

/// Moves an attachment, or cancels its move if there is no target.
async fn move_attachment(
    session: &Session,
    id: &str,
    to: Option<MoveAttachment>,
    no_wait: bool,
) -> Result<(), Failure> {
    let wait = if no_wait { 0 } else { WAIT_SECONDS };
    let path = format!("/v1/attachments/{}/move?wait={wait}", segment(id)?);
    let progress = Progress::start(format!("moving {id}"));
    let attachment: Attachment = match &to {
        Some(to) => session.client.post(&path, to).await?,
        None => session.client.delete(&path).await?,
    };
    drop(progress);
    print_attachment(session, &attachment)?;
    let is_attached = attachment.state == "attached";
    if is_attached || no_wait || session.is_dry_run {
        return Ok(());
    }
    let why = attachment
        .message
        .map(|message| message.text)
        .unwrap_or_else(|| format!("it is {} after {WAIT_SECONDS} s", attachment.state));
    let help = match to {
        // Once the old host has released the volume, the move cannot be canceled.
        Some(_) if attachment.id == id => {
            format!("; `scree attachment move {id} --cancel` cancels it")
        }
        _ => String::new(),
    };
    Err(Failure::new(format!(
        "volume {} is not attached on host {} yet: {why}; the host retries{help}",
        attachment.volume, attachment.host
    )))
}

fn print_attachment(session: &Session, attachment: &Attachment) -> Result<(), Failure> {
    Ok(print(session.format, attachment, show)?)
}

fn access(attachment: &Attachment) -> &'static str {
    match attachment.read_only {
        true => "read-only",
        false => "read-write",
    }
}

/// A table with short columns first; long texts come last or below.
fn list(attachments: &[Attachment], is_own: bool) -> String {
    let name =
        |attachment: &Attachment| qualified(attachment.owner.as_ref(), &attachment.volume, is_own);
    let mut table = Table::new(&["VOLUME", "HOST", "MODE", "STATE", "VM"]);
    for attachment in attachments {
        table.row(vec![
            name(attachment),
            attachment.host.clone(),
            access(attachment).to_owned(),
            attachment.state.clone(),
            or_dash(attachment.vm.as_ref()),
        ]);
    }
    let mut text = table.to_string();
    for attachment in attachments {
        let message = attachment.message.as_ref().map(|message| &message.text);
        for why in message.into_iter().chain(&attachment.chain_problem) {
            text += &format!("\n{} ({}): {why}\n", name(attachment), attachment.id);
        }
    }
    text
}

fn show(attachment: &Attachment) -> String {
    let mut table = Table::new(&["volume", &attachment.volume]);
    let mut row = |key: &str, value: String| table.row(vec![key.to_owned(), value]);
    row("id", attachment.id.clone());
    row("owner", or_dash(attachment.owner.as_ref()));
    row("host", attachment.host.clone());
    row("vm", or_dash(attachment.vm.as_ref()));
    row("mode", access(attachment).to_owned());
    row("state", attachment.state.clone());
    if let Some(device) = &attachment.device {
        row("device", format!("/dev/disk/by-id/virtio-{device}"));
    }
    if let Some(uri) = &attachment.uri {
        row("uri", uri.clone());
    }
    row("created", time(&attachment.created));
    if let Some(ended) = &attachment.ended {
        row("ended", time(ended));
    }
    if let Some(next) = &attachment.successor {
        let place = next.vm.as_ref().map(|vm| format!(" ({vm})"));
        row(
            "successor",
            format!("{} on {}{}", next.id, next.host, place.unwrap_or_default()),
        );
    }
    if let Some(message) = &attachment.message {
        row("message", message.text.clone());
    }
    if let Some(problem) = &attachment.chain_problem {
        row("filters", format!("different from its chain: {problem}"));
    }
    table.to_string()
}
