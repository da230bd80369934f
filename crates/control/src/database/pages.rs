//! Paged lists of what a principal may see.
//!
//! Every list is ordered by id. Ids neither change nor repeat, so a page starts exactly where the
//! previous one ended, whatever was created or deleted in between.

use std::collections::{BTreeMap, BTreeSet};

use api::host::AttachmentState;
use base::{PartyId, VolumeId};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use crate::database::attach::attachments::{AttachmentRow, attachment_row};
use crate::database::tenancy::projects;
use crate::database::volumes::tags::{self, Tags};
use crate::database::volumes::volumes_of;
use crate::database::{
    Attachments, Chains, DatabaseError, Principal, SnapshotRow, Snapshots, VolumeRows, Volumes,
    rows,
};

/// The page to read.
#[derive(Debug, Clone)]
pub struct Page {
    /// Ids after this one; empty: from the beginning.
    pub after: String,
    /// The largest number of items.
    pub count_max: u32,
}

impl Default for Page {
    /// The first page.
    fn default() -> Self {
        Self {
            after: String::new(),
            count_max: 100,
        }
    }
}

/// A filter for volumes or snapshots. All conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The name.
    pub name: Option<String>,
    /// The owner's name.
    pub owner: Option<String>,
    /// The name of the project that it is charged to. (Volumes.)
    pub project: Option<String>,
    /// The state, which the caller has validated.
    pub state: Option<String>,
    /// The volume. (Snapshots.)
    pub volume: Option<VolumeId>,
    /// Tags, all of which it must have.
    pub tags: Vec<(String, String)>,
    /// Only base images. (Volumes.)
    pub is_image: bool,
}

/// A page of volumes with their attachments and tags.
#[derive(Debug, Clone, Default)]
pub struct VolumePage {
    /// The volumes.
    pub volumes: VolumeRows,
    /// The volumes that are attached, or not detached yet.
    pub attached: BTreeSet<VolumeId>,
    /// Their attachments that are not detached and that the principal may see.
    pub attachments: Vec<AttachmentRow>,
    /// Their tags, by id.
    pub tags: BTreeMap<String, Tags>,
    /// The value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// A page of snapshots.
#[derive(Debug, Clone, Default)]
pub struct SnapshotPage {
    /// The snapshots.
    pub snapshots: Vec<SnapshotRow>,
    /// Their tags, by id.
    pub tags: BTreeMap<String, Tags>,
    /// The value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// An SQL condition that grows, and its values. The first three are the page's
/// beginning, the principal, and whether that is an administrator.
struct Condition {
    text: String,
    values: Vec<String>,
}

impl Condition {
    /// `{}` in `text` stands for `value`.
    fn and(&mut self, text: &str, value: impl Into<String>) {
        self.values.push(value.into());
        let place = format!("${}", self.values.len() + 3);
        self.text.push_str(" AND ");
        self.text.push_str(&text.replace("{}", &place));
    }

    fn and_tags(&mut self, column: &str, tags: &[(String, String)]) {
        for (key, value) in tags {
            self.and(
                &format!(
                    "EXISTS (SELECT 1 FROM tags t WHERE t.object = {column} AND t.key = {{}} "
                ),
                key.as_str(),
            );
            self.and("t.value = {})", value.as_str());
        }
    }

    /// Reads one row more than the page holds, to know whether there is another page.
    async fn page(
        &self,
        connection: &mut AnyConnection,
        select: &str,
        order: &str,
        principal: &Principal,
        page: &Page,
    ) -> Result<(Vec<AnyRow>, Option<String>), DatabaseError> {
        let limit = page.count_max.saturating_add(1);
        let text = format!(
            "{select} WHERE {} ORDER BY {order} LIMIT {limit}",
            self.text
        );
        let mut query = sqlx::query(&text)
            .bind(&page.after)
            .bind(principal.party.id.to_string())
            .bind(i64::from(principal.party.is_administrator));
        for value in &self.values {
            query = query.bind(value);
        }
        let mut found = query.fetch_all(connection).await?;
        let more = found.len() > page.count_max as usize;
        found.truncate(page.count_max as usize);
        let next = match found.last() {
            Some(last) if more => Some(sqlx::Row::try_get(last, "id")?),
            _ => None,
        };
        Ok((found, next))
    }
}

/// A query for the attachments of volume `v` that are not detached.
const OPEN: &str = "SELECT 1 FROM attachments a WHERE a.volume = v.id AND a.state <> 'detached'";

/// An SQL condition: the principal may see attachment `a` of volume `v`, because it is their own or
/// they administer the volume. Users who may only read a volume do not see where others have
/// attached it.
const SEEN: &str = "($3 = 1 OR a.requested_by = $2 OR v.owner = $2 OR EXISTS (SELECT 1 FROM grants g \
     WHERE g.party = $2 AND g.object = a.volume AND g.right_name = 'administer'))";

impl Volumes<'_> {
    /// The volumes that `principal` may see.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn page(
        self,
        principal: &Principal,
        filter: &Filter,
        page: &Page,
    ) -> Result<VolumePage, DatabaseError> {
        let mut condition = Condition {
            text: "v.id > $1 AND ($3 = 1 OR v.id IN (SELECT id FROM volumes WHERE owner = $2 \
                   UNION SELECT object FROM grants WHERE party = $2))"
                .to_owned(),
            values: Vec::new(),
        };
        if let Some(name) = &filter.name {
            condition.and("v.name = {}", name);
        }
        if let Some(owner) = &filter.owner {
            condition.and("o.name = {}", owner);
        }
        if let Some(project) = &filter.project {
            condition.and("j.name = {}", project);
            // The project is not shown to others either (`Volumes::known`).
            condition.text.push_str(
                " AND ($3 = 1 OR v.owner = $2 OR EXISTS (SELECT 1 FROM project_members m \
                 WHERE m.project = v.project AND m.party = $2))",
            );
        }
        condition.and_tags("v.id", &filter.tags);
        if filter.is_image {
            condition.text.push_str(" AND v.image IS NOT NULL");
        }
        let state = filter.state.as_deref();
        condition.text += &match state {
            None => String::new(),
            Some("deleting") => " AND v.deleting = 1".to_owned(),
            Some("available") => format!(" AND v.deleting = 0 AND NOT EXISTS ({OPEN})"),
            Some("error") => format!(
                " AND v.deleting = 0 AND EXISTS ({OPEN} AND a.problem IS NOT NULL AND {SEEN})"
            ),
            Some("in-use") => format!(
                " AND v.deleting = 0 AND EXISTS ({OPEN}) \
                 AND NOT EXISTS ({OPEN} AND a.problem IS NOT NULL AND {SEEN})"
            ),
            // No volume is in another state.
            Some(_) => " AND 1 = 0".to_owned(),
        };
        let mut moment = self.database.moment().await?;
        let (found, next) = condition
            .page(&mut moment, volumes!(""), "v.id", principal, page)
            .await?;
        let (first, last) = projects::ends(&found)?;
        let (attached, attachments) = not_detached(&mut moment, principal, &first, &last).await?;
        Ok(VolumePage {
            volumes: volumes_of(&found),
            attached,
            attachments,
            tags: tags::between(&mut moment, &first, &last).await?,
            next,
        })
    }
}

impl Attachments<'_> {
    /// Whether a volume is attached, or not detached yet; and its attachments that `principal` may
    /// see.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn visible_of_volume(
        self,
        principal: &Principal,
        volume: VolumeId,
    ) -> Result<(bool, Vec<AttachmentRow>), DatabaseError> {
        let id = volume.to_string();
        let connection = &mut *self.database.reader.acquire().await?;
        let (attached, seen) = not_detached(connection, principal, &id, &id).await?;
        Ok((!attached.is_empty(), seen))
    }

    /// The attachments that `principal` may see: their own, and those of volumes that they
    /// administer. Detached ones only if the filter asks for that state.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn page(
        self,
        principal: &Principal,
        volume: Option<VolumeId>,
        host: Option<PartyId>,
        state: Option<AttachmentState>,
        page: &Page,
    ) -> Result<(Vec<AttachmentRow>, Option<String>), DatabaseError> {
        let mut condition = Condition {
            text: format!("a.id > $1 AND {SEEN}"),
            values: Vec::new(),
        };
        if let Some(volume) = volume {
            condition.and("a.volume = {}", volume.to_string());
        }
        if let Some(host) = host {
            condition.and("a.host = {}", host.to_string());
        }
        match state {
            Some(state) => condition.and("a.state = {}", state.as_str()),
            None => condition.text.push_str(" AND a.state <> 'detached'"),
        }
        let mut moment = self.database.moment().await?;
        let select = "SELECT a.* FROM attachments a LEFT JOIN volumes v ON v.id = a.volume";
        let (found, next) = condition
            .page(&mut moment, select, "a.id", principal, page)
            .await?;
        let rows = found.iter().map(attachment_row);
        Ok((rows.collect::<Result<_, _>>()?, next))
    }
}

impl Snapshots<'_> {
    /// The snapshots that `principal` may see.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn page(
        self,
        principal: &Principal,
        filter: &Filter,
        page: &Page,
    ) -> Result<SnapshotPage, DatabaseError> {
        let mut condition = Condition {
            text: "s.id > $1 AND ($3 = 1 OR s.owner = $2 OR EXISTS (SELECT 1 FROM grants g \
                   WHERE g.party = $2 AND g.object IN (s.id, s.volume)))"
                .to_owned(),
            values: Vec::new(),
        };
        if let Some(name) = &filter.name {
            condition.and("s.name = {}", name);
        }
        if let Some(owner) = &filter.owner {
            condition.and("o.name = {}", owner);
        }
        if let Some(state) = &filter.state {
            condition.and("s.state = {}", state);
        }
        if let Some(volume) = filter.volume {
            condition.and("s.volume = {}", volume.to_string());
        }
        condition.and_tags("s.id", &filter.tags);
        let mut moment = self.database.moment().await?;
        let (found, next) = condition
            .page(&mut moment, snapshots!(""), "s.id", principal, page)
            .await?;
        let (first, last) = projects::ends(&found)?;
        Ok(SnapshotPage {
            snapshots: found
                .iter()
                .map(rows::snapshot_row)
                .collect::<Result<_, _>>()?,
            tags: tags::between(&mut moment, &first, &last).await?,
            next,
        })
    }
}

impl Chains<'_> {
    /// The rows of the chains whose volumes `principal` administers.
    pub(in crate::database) async fn page_of_chains(
        self,
        principal: &Principal,
        volume: Option<VolumeId>,
        page: &Page,
    ) -> Result<(Vec<AnyRow>, Option<String>), DatabaseError> {
        let mut condition = Condition {
            text: "c.id > $1 AND ($3 = 1 OR v.owner = $2 OR EXISTS (SELECT 1 FROM grants g \
                   WHERE g.party = $2 AND g.object = c.volume AND g.right_name = 'administer'))"
                .to_owned(),
            values: Vec::new(),
        };
        if let Some(volume) = volume {
            condition.and("c.volume = {}", volume.to_string());
        }
        let select = "SELECT c.* FROM chains c JOIN volumes v ON v.id = c.volume";
        let mut moment = self.database.moment().await?;
        condition
            .page(&mut moment, select, "c.id", principal, page)
            .await
    }
}

/// The volumes with ids from `first` to `last` that are attached, or not detached yet; and their
/// attachments that `principal` may see.
async fn not_detached(
    connection: &mut AnyConnection,
    principal: &Principal,
    first: &str,
    last: &str,
) -> Result<(BTreeSet<VolumeId>, Vec<AttachmentRow>), DatabaseError> {
    let found = sqlx::query(&format!(
        "SELECT a.*, CASE WHEN {SEEN} THEN 1 ELSE 0 END AS seen FROM attachments a \
         LEFT JOIN volumes v ON v.id = a.volume WHERE a.volume >= $1 AND a.volume <= $4 \
         AND a.state <> 'detached' ORDER BY a.created_ms, a.id"
    ))
    .bind(first)
    .bind(principal.party.id.to_string())
    .bind(i64::from(principal.party.is_administrator))
    .bind(last)
    .fetch_all(connection)
    .await?;
    let (mut attached, mut seen) = (BTreeSet::new(), Vec::new());
    for row in &found {
        let attachment = attachment_row(row)?;
        attached.insert(attachment.volume);
        if rows::flag(row, "seen")? {
            seen.push(attachment);
        }
    }
    Ok((attached, seen))
}
