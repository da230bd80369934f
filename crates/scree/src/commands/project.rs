//! `scree project`.

use api::types::{AddProject, Project, Quota};
use base::size::about_bytes as bytes;

use super::{Failure, Session, segment};
use crate::args::{ProjectCommand, QuotaArguments};
use crate::output::{Table, print};

pub(super) async fn run(session: &Session, command: ProjectCommand) -> Result<(), Failure> {
    match command {
        ProjectCommand::Add { name, quota, .. } => {
            let quota = quota_of(&quota);
            let new = AddProject { name, quota };
            print_project(session, &session.client.post("/v1/projects", &new).await?)
        }
        ProjectCommand::List => {
            let mut projects: Vec<Project> = session.client.all("/v1/projects").await?;
            projects.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(print(session.format, &projects, |projects| list(projects))?)
        }
        ProjectCommand::Show { name } => {
            let path = format!("/v1/projects/{}", segment(&name)?);
            print_project(session, &session.client.get(&path).await?)
        }
        ProjectCommand::Quota { name, quota, .. } => {
            let path = format!("/v1/projects/{}/quota", segment(&name)?);
            print_project(
                session,
                &session.client.put(&path, &quota_of(&quota)).await?,
            )
        }
        ProjectCommand::Join { name, user, .. } => {
            let path = member(&name, &user)?;
            print_project(session, &session.client.put(&path, &()).await?)
        }
        ProjectCommand::Leave { name, user, .. } => {
            let path = member(&name, &user)?;
            print_project(session, &session.client.delete(&path).await?)
        }
        ProjectCommand::Delete { name, .. } => {
            let path = format!("/v1/projects/{}", segment(&name)?);
            let project: Project = session.client.delete(&path).await?;
            Ok(print(session.format, &project, |project| {
                format!("project {} ({}) is deleted\n", project.name, project.id)
            })?)
        }
    }
}

fn print_project(session: &Session, project: &Project) -> Result<(), Failure> {
    Ok(print(session.format, project, |project| {
        list(std::slice::from_ref(project))
    })?)
}

fn member(project: &str, user: &str) -> Result<String, Failure> {
    Ok(format!(
        "/v1/projects/{}/members/{}",
        segment(project)?,
        segment(user)?
    ))
}

fn quota_of(arguments: &QuotaArguments) -> Quota {
    Quota {
        volumes: arguments.volumes,
        snapshots: arguments.snapshots,
        bytes: arguments.size,
    }
}

fn list(projects: &[Project]) -> String {
    let mut table = Table::new(&["NAME", "ID", "VOLUMES", "SNAPSHOTS", "SIZE", "MEMBERS"]);
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    for project in projects {
        let quota = &project.quota;
        let number = |used: u64, limit: Option<u64>| {
            of(used.to_string(), limit.map(|limit| limit.to_string()))
        };
        table.row(vec![
            project.name.clone(),
            project.id.clone(),
            number(project.volumes, quota.volumes),
            number(project.snapshots, quota.snapshots),
            of(bytes(project.bytes), quota.bytes.map(bytes)),
            project.members.join(", "),
        ]);
    }
    table.to_string()
}
