//! `scree user`, `scree host`, `scree whoami`, `scree audit`, `scree login`; and
//! how hosts and unit daemons join.

use std::path::{Path, PathBuf};

use api::types::{AddParty, AuditEntry, Party, Token};
use api::{CertificateFiles, Profile};
use auth::Kind;
use serde::Serialize;
use world::{World, host};

use super::{Failure, Session, or_dash, segment};
use crate::args::{HostCommand, JoinArguments, LoginArguments, UserCommand};
use crate::output::{Format, Table, print, print_notice};
use crate::profiles::{self, Profiles};
use crate::tls_files::read_pem;
use crate::up::identity_of;

/// A token, and the command that uses it.
#[derive(Serialize)]
struct Invitation {
    #[serde(flatten)]
    token: Token,
    /// The command to run with the token.
    command: String,
}

/// A kind of party, as the API and the command line name it.
#[derive(Clone, Copy)]
pub(super) struct PartyKind {
    /// The collection in the API.
    path: &'static str,
    /// The command with which one joins.
    join: &'static str,
    /// The options of that command after the token.
    more: &'static str,
    /// What is printed below that command.
    next: &'static str,
}

const USERS: PartyKind = PartyKind {
    path: "users",
    join: "scree login",
    more: "",
    next: "",
};

const HOSTS: PartyKind = PartyKind {
    path: "hosts",
    join: "scree host join",
    more: " --dir /var/lib/scree/agent",
    next: "\nRun it on the host, as the user who runs the agent; then start the service scree-agent, or \
           `scree agent` with the same --dir.\n",
};

pub(super) const DAEMONS: PartyKind = PartyKind {
    path: "daemons",
    join: "scree unit join",
    more: " --dir /var/lib/scree/unit",
    next: "\nRun it on the storage machine, as the user who runs the daemon; then start the service \
           scree-unit, or `scree unit --listen IP:PORT` with the same --dir.\n",
};

pub(super) async fn run_user(session: &Session, command: UserCommand) -> Result<(), Failure> {
    match command {
        UserCommand::List => list_all(session, USERS).await,
        UserCommand::Add {
            name,
            administrator,
            project,
            ..
        } => {
            let new = AddParty {
                name,
                administrator,
                project,
            };
            add(session, USERS, new).await
        }
        UserCommand::Token { name, .. } => invite(session, USERS, &name).await,
        UserCommand::Disable { name, .. } => disable(session, USERS, &name).await,
        UserCommand::Enable { name, .. } => enable(session, USERS, &name).await,
    }
}

pub(super) async fn run_host(session: &Session, command: HostCommand) -> Result<(), Failure> {
    match command {
        HostCommand::List => list_all(session, HOSTS).await,
        HostCommand::Add { name, .. } => add(session, HOSTS, named(name)).await,
        HostCommand::Token { name, .. } => invite(session, HOSTS, &name).await,
        HostCommand::Disable { name, .. } => disable(session, HOSTS, &name).await,
        HostCommand::Enable { name, .. } => enable(session, HOSTS, &name).await,
        HostCommand::Join { .. } => {
            Err(Failure::new("`scree host join` uses --dir, not a profile"))
        }
    }
}

/// A new host or unit daemon of this name.
pub(super) const fn named(name: String) -> AddParty {
    AddParty {
        name,
        administrator: false,
        project: None,
    }
}

async fn list_all(session: &Session, kind: PartyKind) -> Result<(), Failure> {
    let mut parties: Vec<Party> = session.client.all(&format!("/v1/{}", kind.path)).await?;
    parties.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(print(session.format, &parties, |parties| list(parties))?)
}

/// Adds a party, and prints its first join token.
pub(super) async fn add(session: &Session, kind: PartyKind, new: AddParty) -> Result<(), Failure> {
    let path = format!("/v1/{}", kind.path);
    let party: Party = session.client.post(&path, &new).await?;
    if session.is_dry_run {
        return print_party(session, &party);
    }
    invite(session, kind, &new.name).await
}

/// Refuses all requests of a party from now on.
pub(super) async fn disable(session: &Session, kind: PartyKind, name: &str) -> Result<(), Failure> {
    let path = format!("/v1/{}/{}/disable", kind.path, segment(name)?);
    print_party(session, &session.client.post(&path, &()).await?)
}

/// Accepts requests of a disabled party again.
pub(super) async fn enable(session: &Session, kind: PartyKind, name: &str) -> Result<(), Failure> {
    let path = format!("/v1/{}/{}/enable", kind.path, segment(name)?);
    print_party(session, &session.client.post(&path, &()).await?)
}

fn print_party(session: &Session, party: &Party) -> Result<(), Failure> {
    Ok(print(session.format, party, |party| {
        list(std::slice::from_ref(party))
    })?)
}

/// Prints a new join token, and the command that uses it.
pub(super) async fn invite(session: &Session, kind: PartyKind, name: &str) -> Result<(), Failure> {
    let path = format!("/v1/{}/{}/token", kind.path, segment(name)?);
    let token: Token = session.client.post(&path, &()).await?;
    let urls = session.client.urls();
    let urls = urls.unwrap_or_else(|| "https://CONTROLLER:PORT".to_owned());
    let invitation = Invitation {
        command: format!(
            "{} {urls} --token {} --authority {}{}",
            kind.join, token.token, token.authority, kind.more
        ),
        token,
    };
    Ok(print(session.format, &invitation, |invitation| {
        format!(
            "Valid for one use until {}:\n\n{}\n{}",
            invitation.token.expires, invitation.command, kind.next
        )
    })?)
}

pub(super) async fn whoami(session: &Session) -> Result<(), Failure> {
    print_party(session, &session.client.get("/v1/me").await?)
}

pub(super) async fn print_log(session: &Session, limit: u32) -> Result<(), Failure> {
    let lines: Vec<AuditEntry> = session
        .client
        .get(&format!("/v1/audit?limit={limit}"))
        .await?;
    Ok(print(session.format, &lines, |lines| audit(lines))?)
}

/// `scree login`. `folder` is the data directory that other commands in this shell would use.
pub fn login(
    profile: Option<&str>,
    folder: Option<&Path>,
    format: Format,
    arguments: &LoginArguments,
) -> Result<(), Failure> {
    let profiles = Profiles::of_user()?;
    let made = joined(Kind::User, &arguments.join)?;
    check_kind(&made, Kind::User)?;
    let path = profiles.store(profile, &made)?;
    print_joined(format, &made, &path, "")?;
    let is_chosen =
        std::env::var_os(crate::environment::PROFILE.name).is_some_and(|name| !name.is_empty());
    if let Some(folder) = folder.filter(|_| !is_chosen) {
        let name = profile.unwrap_or(profiles::FIRST);
        let notice = format!(
            "as long as SCREE_DIR or --dir names {}, commands use the process that serves it, and not \
             {}: unset SCREE_DIR, or add `--profile {name}`",
            folder.display(),
            made.subject
        );
        print_notice(format, &notice);
    }
    Ok(())
}

/// `scree host join`.
pub fn join_host(folder: &Path, format: Format, arguments: &JoinArguments) -> Result<(), Failure> {
    join_as(Kind::Host, folder, format, arguments)
}

/// `scree unit join`.
pub fn join_unit(folder: &Path, format: Format, arguments: &JoinArguments) -> Result<(), Failure> {
    if arguments.cert.is_some() {
        return Err(Failure::new(
            "a unit daemon needs a certificate of the cluster's own authority: join it with --token \
             (`scree unit token NAME` prints one)",
        ));
    }
    join_as(Kind::Unit, folder, format, arguments)
}

/// Joins this machine as a host or unit daemon, whose identity is kept in `folder`. Fails if the
/// folder has an identity of another kind.
fn join_as(
    kind: Kind,
    folder: &Path,
    format: Format,
    arguments: &JoinArguments,
) -> Result<(), Failure> {
    let world = World::real(1);
    host::make_folders(&*world.disk, folder)?;
    let path = identity_of(folder);
    // Checked before the token is used up. An unreadable identity is replaced.
    if let Ok(there) = Profile::read(&world, &path)
        && there.kind() != Some(kind)
    {
        return Err(Failure::new(format!(
            "{} is the identity of {}: use another folder (--dir)",
            path.display(),
            there.subject
        )));
    }
    let made = joined(kind, arguments)?;
    check_kind(&made, kind)?;
    if kind == Kind::Unit
        && let Ok(there) = Profile::read(&world, &path)
    {
        check_unit(&path, &there.subject, &made.subject)?;
    }
    made.write(&world, &path)
        .map_err(|error| Failure::of(&error))?;
    let folder = folder.display();
    let next = match kind {
        Kind::Unit => format!(
            "start (or restart) the service scree-unit, or `scree unit --dir {folder} --listen \
             IP:PORT`\n"
        ),
        _ => {
            format!("start (or restart) the service scree-agent, or `scree agent --dir {folder}`\n")
        }
    };
    print_joined(format, &made, &path, &next)
}

/// Refuses to write a unit's identity into the folder of another unit.
fn check_unit(path: &Path, there: &str, made: &str) -> Result<(), Failure> {
    if there == made {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is the identity of {there}, whose unit is in this folder, and the token was for {made}: \
         use another folder (--dir) and a new token (`scree unit token`)",
        path.display()
    )))
}

/// Refuses the certificate of another kind of party. Controllers check the kind of a token.
fn check_kind(made: &Profile, kind: Kind) -> Result<(), Failure> {
    if made.kind() == Some(kind) {
        return Ok(());
    }
    let subject = &made.subject;
    Err(Failure::new(format!(
        "the certificate is that of {subject}, which is not a {kind}: name the certificate of a \
         {kind}"
    )))
}

/// Joins as a party of this kind, or reads the certificate that another authority signed.
fn joined(kind: Kind, arguments: &JoinArguments) -> Result<Profile, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (world, urls) = (World::real(1), &arguments.urls);
    // The files are read again later, from another working directory.
    let whole = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).transpose();
    let (cert, key) = (whole(&arguments.cert)?, whole(&arguments.key)?);
    let ca = match &arguments.ca {
        Some(path) => Some(read_pem(&world, path)?.to_string()),
        None => None,
    };
    let join = async {
        match (ca, &arguments.token, &arguments.authority, cert, key) {
            (Some(ca), _, _, Some(cert), Some(key)) => {
                let files = CertificateFiles {
                    certificate: &cert,
                    key: &key,
                };
                Profile::with_external_certificate(&world, urls, ca, files).await
            }
            (Some(ca), Some(token), _, _, _) => Profile::join_trusting(kind, urls, token, ca).await,
            (None, Some(token), Some(authority), _, _) => {
                Profile::join(kind, urls, token, authority).await
            }
            // clap requires one of these combinations.
            _ => unreachable!("clap requires a token or a certificate, and an authority"),
        }
    };
    let made = runtime.block_on(join);
    made.map_err(|error| Failure::of(&error))
}

/// The result of joining.
#[derive(Serialize)]
struct Joined<'a> {
    subject: &'a str,
    urls: &'a [String],
    expires: &'a str,
    file: String,
}

/// Prints who has joined, and in a table `next`.
fn print_joined(format: Format, profile: &Profile, path: &Path, next: &str) -> Result<(), Failure> {
    let joined = Joined {
        subject: &profile.subject,
        urls: &profile.urls,
        expires: &profile.expires,
        file: path.display().to_string(),
    };
    Ok(print(format, &joined, |joined| {
        format!(
            "{} at {}, stored in {}\n{next}",
            joined.subject,
            joined.urls.join(", "),
            joined.file
        )
    })?)
}

fn list(parties: &[Party]) -> String {
    let mut table = Table::new(&["NAME", "KIND", "ROLE", "STATE", "CREATED"]);
    for party in parties {
        let role = if party.administrator {
            "administrator"
        } else {
            "-"
        };
        let state = if party.disabled {
            "disabled"
        } else {
            "enabled"
        };
        table.row(vec![
            party.name.clone(),
            party.kind.clone(),
            role.to_owned(),
            state.to_owned(),
            party.created.clone(),
        ]);
    }
    table.to_string()
}

fn audit(lines: &[AuditEntry]) -> String {
    let mut table = Table::new(&["TIME", "WHO", "FROM", "ACTION", "TARGET"]);
    for line in lines {
        table.row(vec![
            line.time.clone(),
            line.principal.clone(),
            or_dash(line.address.as_deref()),
            line.action.clone(),
            line.target.clone(),
        ]);
    }
    table.to_string()
}
