//! Requests on base images: marking, pinning, and preloading them into the caches of hosts
//! (docs/explanation/caching.md).

use api::host::PreloadReport;
use api::words::ImageMark;
use base::VolumeId;

use crate::authorized_request::AuthorizedRequest;
use crate::database::{Filter, Need, Page, PreloadRow, VolumeRow};
use crate::error::ControlError;
use crate::host_request::HostRequest;

/// A base image as it is shown.
#[derive(Debug, Clone)]
pub struct ImageView {
    /// The volume's row.
    pub row: VolumeRow,
    /// The number of volumes that descend from it, if the principal administers it.
    pub clones: Option<u64>,
    /// Its preloads into the caches of hosts, if the principal administers it.
    pub preloads: Vec<PreloadRow>,
}

impl ImageView {
    /// Whether its blocks stay in the caches.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.row.image == Some(ImageMark::Pinned)
    }
}

/// Base images, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Images<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Base images and their preloads.
    #[must_use]
    pub fn images(&self) -> Images<'_> {
        Images { request: self }
    }
}

impl Images<'_> {
    /// Marks a volume as a base image, and pins or unpins it; `None`: unchanged.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Forbidden`] if the principal does not
    /// administer the volume, or pins it without being an administrator of the cluster;
    /// [`ControlError::Conflict`] if it is being deleted, or is unpinned without being an image.
    pub async fn mark(self, name: &str, pinned: Option<bool>) -> Result<ImageView, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .images()
            .mark(self.request.principal(), name, pinned)
            .await?;
        self.view(row).await
    }

    /// Unmarks a base image. Returns it as it was.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], [`ControlError::Forbidden`] as [`Self::mark`];
    /// [`ControlError::Conflict`] if it is not an image, or is being deleted.
    pub async fn unmark(self, name: &str) -> Result<ImageView, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .images()
            .unmark(self.request.principal(), name)
            .await?;
        self.view(row).await
    }

    /// A base image.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], also if the volume is not an image.
    pub async fn get(self, name: &str) -> Result<ImageView, ControlError> {
        self.request.reconcile_jobs().await?;
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .find(self.request.principal(), name, Need::See)
            .await?;
        if row.image.is_none() {
            return Err(ControlError::NotFound {
                what: format!("base image {name:?}"),
                hint: "`scree image list` lists the images".into(),
            });
        }
        self.view(row).await
    }

    /// A page of the base images that the principal may see, and the value of `after` for the next
    /// page. Images with damaged rows are left out: they are listed with the volumes.
    ///
    /// # Errors
    /// Only those of the database.
    pub async fn list(self, page: &Page) -> Result<(Vec<ImageView>, Option<String>), ControlError> {
        self.request.reconcile_jobs().await?;
        let filter = Filter {
            is_image: true,
            ..Filter::default()
        };
        let found = self
            .request
            .inner
            .database
            .volumes()
            .page(self.request.principal(), &filter, page)
            .await?;
        let mut views = Vec::new();
        for row in found.volumes.rows {
            views.push(self.view(row).await?);
        }
        Ok((views, found.next))
    }

    /// Preloads a base image into the caches of `hosts`; if that is empty, of all responsive hosts
    /// that the principal may use.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume, a host); [`ControlError::Forbidden`] unless the
    /// principal administers the volume, may read it, and may use the hosts;
    /// [`ControlError::Conflict`] if it is not an image, is being deleted, was never destaged, or a
    /// host has never reported; [`ControlError::Unavailable`] if no host is named and none reports.
    pub async fn preload(self, name: &str, hosts: &[String]) -> Result<ImageView, ControlError> {
        let mut ids = Vec::new();
        for host in hosts {
            ids.push(self.request.host_named(host).await?);
        }
        if hosts.is_empty() {
            ids = self.request.responsive_hosts().await?;
        }
        let database = &self.request.inner.database;
        let now = self.request.now().await?;
        let begun = database
            .images()
            .begin_preloads(self.request.principal(), name, &ids, now);
        self.view(begun.await?).await
    }

    /// Cancels the preloads of a base image.
    ///
    /// # Errors
    /// As [`Images::unmark`].
    pub async fn end_preloads(self, name: &str) -> Result<ImageView, ControlError> {
        let now = self.request.now().await?;
        let database = &self.request.inner.database;
        let ended = database
            .images()
            .end_preloads(self.request.principal(), name, now);
        self.view(ended.await?).await
    }

    async fn view(self, row: VolumeRow) -> Result<ImageView, ControlError> {
        let database = &self.request.inner.database;
        if !database
            .images()
            .administers(self.request.principal(), row.id)
            .await?
        {
            return Ok(ImageView {
                row,
                clones: None,
                preloads: Vec::new(),
            });
        }
        let mut preloads = database
            .images()
            .preloads_of(std::iter::once(row.id))
            .await?;
        Ok(ImageView {
            clones: Some(database.images().clone_count(row.id).await?),
            preloads: preloads.remove(&row.id).unwrap_or_default(),
            row,
        })
    }
}

impl HostRequest<'_> {
    /// Records the progress of a preload on `host`; `false` if it was replaced or canceled.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn preload_reported(
        self,
        volume: VolumeId,
        report: &PreloadReport,
    ) -> Result<bool, ControlError> {
        let now = self.note_loss(self.now().await)?;
        let database = &self.inner.database;
        let kept = database
            .images()
            .record_preload_report(self.host, volume, report, now);
        self.note_loss(kept.await.map_err(ControlError::from))
    }
}
