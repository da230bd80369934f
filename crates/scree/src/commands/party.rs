//! `scree user`, `scree host`, `scree whoami`, `scree audit`, `scree login`; and
//! how hosts and unit daemons join.

use std::path::{Path, PathBuf};

use api::types::{AddParty, AuditEntry, Party, Token};
use api::{CertificateFiles, Profile};
use auth::Kind;
use serde::Serialize;
use world::{World, host};

use super::{Failure, Session, or_dash, segment};
use crate::args::{HostCommand, JoinArguments, LoginArguments, PartyCommand};
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

pub(super) async fn run_user(session: &Session, command: PartyCommand) -> Result<(), Failure> {
    run(session, "users", "scree login", command).await
}

pub(super) async fn run_host(session: &Session, command: HostCommand) -> Result<(), Failure> {
    match command {
        HostCommand::Party(command) => run(session, "hosts", "scree host join", command).await,
        HostCommand::Join { .. } => {
            Err(Failure::new("`scree host join` uses --dir, not a profile"))
        }
    }
}

pub(super) async fn run(
    session: &Session,
    kind: &str,
    join: &str,
    command: PartyCommand,
) -> Result<(), Failure> {
    let shown = |party: &Party| list(std::slice::from_ref(party));
    match command {
        PartyCommand::List => {
            let mut parties: Vec<Party> = session.client.all(&format!("/v1/{kind}")).await?;
            parties.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(print(session.format, &parties, |parties| list(parties))?)
        }
        PartyCommand::Add {
            name,
            administrator,
            project,
            ..
        } => {
            let new = AddParty {
                name: name.clone(),
                administrator,
                project,
            };
            let party: Party = session.client.post(&format!("/v1/{kind}"), &new).await?;
            if session.is_dry_run {
                return Ok(print(session.format, &party, shown)?);
            }
            invite(session, kind, join, &name).await
        }
        PartyCommand::Token { name, .. } => invite(session, kind, join, &name).await,
        PartyCommand::Disable { name, .. } => {
            let path = format!("/v1/{kind}/{}/disable", segment(&name)?);
            let party: Party = session.client.post(&path, &()).await?;
            Ok(print(session.format, &party, shown)?)
        }
        PartyCommand::Enable { name, .. } => {
            let path = format!("/v1/{kind}/{}/enable", segment(&name)?);
            let party: Party = session.client.post(&path, &()).await?;
            Ok(print(session.format, &party, shown)?)
        }
    }
}

async fn invite(session: &Session, kind: &str, join: &str, name: &str) -> Result<(), Failure> {
    let path = format!("/v1/{kind}/{}/token", segment(name)?);
    let token: Token = session.client.post(&path, &()).await?;
    let urls = session.client.urls();
    let urls = urls.unwrap_or_else(|| "https://CONTROLLER:PORT".to_owned());
    let invitation = Invitation {
        command: format!(
            "{join} {urls} --token {} --authority {}",
            token.token, token.authority
        ),
        token,
    };
    Ok(print(session.format, &invitation, |invitation| {
        format!(
            "Valid for one use until {}:\n\n{}\n",
            invitation.token.expires, invitation.command
        )
    })?)
}

pub(super) async fn whoami(session: &Session) -> Result<(), Failure> {
    let me: Party = session.client.get("/v1/me").await?;
    Ok(print(session.format, &me, |me| {
        list(std::slice::from_ref(me))
    })?)
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
    print_joined(format, &made, &path)?;
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
    print_joined(format, &made, &path)
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

fn print_joined(format: Format, profile: &Profile, path: &Path) -> Result<(), Failure> {
    let joined = Joined {
        subject: &profile.subject,
        urls: &profile.urls,
        expires: &profile.expires,
        file: path.display().to_string(),
    };
    Ok(print(format, &joined, |joined| {
        format!(
            "{} at {}, stored in {}\n",
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
