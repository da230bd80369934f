//! A controller and an agent in a folder of this machine, with a disk that can be blocked and a
//! clock that tests move.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::host::Access;
use api::types::CreateVolume;
use base::VolumeId;
use catalog::retention::Retention;
use control::database::AttachmentRow;
use control::folder::Leftovers;
use control::units::UnitView;
use control::volumes::VolumeView;
use control::{AuthorizedRequest, Control, ControlError, http};
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use volume::VolumeConfig;
use world::real::{RealDisk, RealRandom, ThreadPool};
use world::simulated::SimulatedClock;
use world::{DirectoryEntry, Disk, File, OpenMode, Space, World, host};

use crate::Agent;
use crate::cache::CacheSettings;
use crate::export::OpenVolume;
use crate::folder::FormerAgent;
use crate::vm::VmOptions;

/// Timeout of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The machine's disk; calls below one path block until they are released.
pub struct HeldDisk {
    disk: Arc<dyn Disk>,
    /// The folder that paths are relative to.
    folder: PathBuf,
    hold: Arc<Hold>,
}

#[derive(Default)]
struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: Option<PathBuf>,
    read_only: Option<PathBuf>,
    waiting: usize,
    synced: Vec<PathBuf>,
}

impl Default for HeldDisk {
    fn default() -> Self {
        Self {
            disk: Arc::new(RealDisk),
            folder: PathBuf::new(),
            hold: Arc::default(),
        }
    }
}

impl HeldDisk {
    /// Blocks calls below `path` from now on.
    pub fn hold(&self, path: &Path) {
        self.hold.state.lock().held = Some(path.to_owned());
    }

    /// Releases blocked calls.
    pub fn release(&self) {
        self.hold.state.lock().held = None;
        self.hold.changed.notify_all();
    }

    /// Makes everything below `path` read-only from now on.
    pub fn make_read_only(&self, path: &Path) {
        self.hold.state.lock().read_only = Some(path.to_owned());
    }

    /// Makes everything writable again.
    pub fn make_writable(&self) {
        self.hold.state.lock().read_only = None;
    }

    /// Waits until a call is blocked.
    pub fn wait_for_one(&self) {
        let mut state = self.hold.state.lock();
        let none = |state: &mut State| state.waiting == 0;
        let changed = &self.hold.changed;
        let waited = changed.wait_while_for(&mut state, none, TIMEOUT);
        let held = &state.held;
        assert!(!waited.timed_out(), "no call below {held:?}");
    }

    /// The folders that were synced.
    pub fn synced(&self) -> Vec<PathBuf> {
        self.hold.state.lock().synced.clone()
    }

    fn pass(&self, path: &Path) {
        let path = self.folder.join(path);
        let is_held = |state: &State| state.held.as_ref().is_some_and(|at| path.starts_with(at));
        let mut state = self.hold.state.lock();
        if is_held(&state) {
            state.waiting += 1;
            self.hold.changed.notify_all();
            let changed = &self.hold.changed;
            changed.wait_while(&mut state, |state| is_held(state));
            state.waiting -= 1;
        }
    }

    fn change(&self, path: &Path) -> io::Result<()> {
        self.pass(path);
        let path = self.folder.join(path);
        let read_only = self.hold.state.lock().read_only.clone();
        if read_only.is_some_and(|at| path.starts_with(at)) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        Ok(())
    }
}

impl Disk for HeldDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        match mode {
            OpenMode::Read => self.pass(path),
            OpenMode::Write | OpenMode::CreateNew => self.change(path)?,
        }
        self.disk.open(path, mode)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.pass(folder);
        self.disk.list(folder)
    }

    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        self.change(folder)?;
        self.disk.create_directory(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(from)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(path)?;
        self.disk.remove(path)
    }

    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        self.pass(folder);
        let synced = self.folder.join(folder);
        self.hold.state.lock().synced.push(synced);
        self.disk.sync_directory(folder)
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(Self {
            disk: self.disk.within(folder),
            folder: self.folder.join(folder),
            hold: Arc::clone(&self.hold),
        })
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.pass(folder);
        self.disk.space(folder)
    }
}

/// A folder and the world in which it is served.
pub struct Rig {
    pub folder: TempDir,
    pub disk: Arc<HeldDisk>,
    pub clock: Arc<SimulatedClock>,
}

impl Drop for Rig {
    /// Releases the threads of a failed test.
    fn drop(&mut self) {
        self.disk.release();
    }
}

impl Rig {
    pub fn new() -> Self {
        // Close to the root: the path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("scree-").tempdir_in("/tmp");
        Self {
            folder: folder.expect("a folder"),
            disk: Arc::default(),
            clock: Arc::default(),
        }
    }

    pub fn world(&self) -> World {
        World {
            disk: Arc::clone(&self.disk) as _,
            clock: Arc::clone(&self.clock) as _,
            random: Arc::new(RealRandom),
            pool: Arc::new(ThreadPool::new(4)),
        }
    }

    /// The data directory, which may not exist yet.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    pub fn unit(&self, number: usize) -> PathBuf {
        self.path().join("units").join(format!("u{number}"))
    }

    pub fn settings(&self) -> RigSettings {
        RigSettings {
            folder: self.path(),
            restored_database: false,
            lease: None,
            journals: None,
        }
    }

    pub async fn try_start(&self, settings: RigSettings) -> Result<Scree, String> {
        Scree::start(self.world(), settings).await
    }

    pub async fn start(&self) -> Scree {
        self.try_start(self.settings()).await.expect("starts")
    }
}

/// Settings of a test's start.
pub struct RigSettings {
    pub folder: PathBuf,
    pub restored_database: bool,
    pub lease: Option<Duration>,
    /// A shared folder of journals.
    pub journals: Option<PathBuf>,
}

/// A controller and an agent in one process, as in `scree up`, but only with those loops of the
/// agent that tests wait for.
pub struct Scree {
    /// Authorized as the local user.
    pub control: AuthorizedRequest,
    pub agent: Agent,
    folder: PathBuf,
    stop: oneshot::Sender<()>,
    api: JoinHandle<io::Result<()>>,
    follow: JoinHandle<()>,
}

impl Scree {
    pub async fn start(world: World, settings: RigSettings) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| base::with_causes(error);
        let folder = settings.folder;
        let (looked_at, at) = (world.clone(), folder.clone());
        let control = control::Settings {
            folder: folder.clone(),
            remains: Arc::new(move || {
                let FormerAgent { certain, likely } = crate::folder::traces(&looked_at, &at)?;
                Ok(Leftovers { certain, likely })
            }),
            retention: Retention::default(),
            grace: Duration::ZERO,
            lease: settings.lease,
            overcommit: control::control::OVERCOMMIT,
            scatter_width: control::control::SCATTER_WIDTH,
            replace_after: std::time::Duration::ZERO,
            restored_database: settings.restored_database,
            new_authority: false,
            database: None,
        };
        let control = Control::start(world.clone(), control)
            .await
            .map_err(|error| text(&error))?;
        let socket = control.folder().api_socket();
        let listener = http::listen(&socket).map_err(|error| text(&error))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let api = tokio::spawn(http::serve(control.clone(), listener, async {
            let _ = stopped.await;
        }));
        let agent = crate::Settings {
            folder: folder.clone(),
            client: api::Client::unix(&socket),
            units: Some(2),
            units_default: 0,
            key: None,
            keys_file: None,
            allows_unencrypted: true,
            filters: crate::FilterSettings {
                networks: Arc::new([]),
                program: None,
                memory: 1 << 30,
                disk_limits: chain::DiskLimits::UNLIMITED,
            },
            listen_nbd: None,
            nbd_tls: None,
            vm: VmOptions {
                unplug_within: Duration::from_secs(2),
                ..VmOptions::default()
            },
            journals: settings.journals,
            vm_user: None,
            repair_bytes_per_second: u64::MAX,
            cache: CacheSettings {
                file: None,
                memory_bytes: 1 << 20,
            },
            map_memory_bytes: 0,
            volume: VolumeConfig {
                journal_bytes: 8 << 20,
                ..VolumeConfig::default()
            },
        };
        let agent = match Agent::start(world, agent).await {
            Ok(agent) => agent,
            Err(error) => {
                let _ = stop.send(());
                api.await.expect("no panic").expect("served");
                control.shut_down().await;
                drop(control);
                is_free(&folder).await;
                return Err(text(&error));
            }
        };
        control.set_open(true);
        let follow = tokio::spawn({
            let agent = agent.clone();
            async move {
                tokio::join!(agent.follow(), agent.parts.reporter.run());
            }
        });
        Ok(Self {
            control: control
                .local_request()
                .await
                .map_err(|error| text(&error))?,
            agent,
            folder,
            stop,
            api,
            follow,
        })
    }

    /// Creates a [`small`] volume.
    pub async fn create(&self, name: &str) -> VolumeView {
        let created = self.control.volumes().create(small(name)).await;
        created.expect("the volume is new")
    }

    pub async fn export(&self, name: &str) -> Result<AttachmentRow, ControlError> {
        let host = self.control.local_host();
        let access = Access::ReadWrite;
        self.control.volumes().export(name, host, access).await
    }

    /// Stops the reports of the host and its following of the desired state.
    pub fn cut_off(&self) {
        self.follow.abort();
    }

    /// Starts them again.
    pub fn connect(&mut self) {
        self.follow = tokio::spawn({
            let agent = self.agent.clone();
            async move {
                tokio::join!(agent.follow(), agent.parts.reporter.run());
            }
        });
    }

    pub async fn add_unit(&self, url: &str) -> Result<UnitView, ControlError> {
        self.control
            .units()
            .add(self.control.local_host(), url, None)
            .await
    }

    /// The volume, while it is open.
    pub fn open(&self, volume: VolumeId) -> Option<Arc<OpenVolume>> {
        let open = self.agent.parts.volumes.open.all();
        open.into_iter().find(|open| open.volume() == volume)
    }

    /// Ends at once, without closing volumes.
    pub async fn kill(self) {
        self.follow.abort();
        let _ = self.stop.send(());
        self.api.await.expect("no panic").expect("served");
        self.control.shut_down().await;
        drop((self.control, self.agent));
        is_free(&self.folder).await;
    }

    /// Shuts down, and waits until the last look at a unit has released the folder. Returns the
    /// number of volumes that were not closed.
    pub async fn end(self) -> usize {
        self.follow.abort();
        self.control.set_open(false);
        let unclean = self.agent.shut_down().await;
        let _ = self.stop.send(());
        self.api.await.expect("no panic").expect("served");
        self.control.shut_down().await;
        drop((self.control, self.agent));
        if unclean == 0 {
            is_free(&self.folder).await;
        }
        unclean
    }
}

/// Waits until no process serves `folder`.
pub async fn is_free(folder: &Path) {
    for name in ["lock", "agent.lock"] {
        let Ok(file) = std::fs::File::open(folder.join(name)) else {
            continue;
        };
        let freed = host::timeout(TIMEOUT, async {
            while file.try_lock().is_err() {
                tokio::task::yield_now().await;
            }
        });
        let is_freed = freed.await.is_some();
        assert!(is_freed, "{name} is held after {TIMEOUT:?}");
    }
}

/// Calls `look` until it returns something; `what` names it in the failure.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = host::timeout(TIMEOUT, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    });
    let found = found.await;
    found.unwrap_or_else(|| panic!("not within {TIMEOUT:?}: {what}"))
}

/// The request for a small volume.
pub fn small(name: &str) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        size: Some(8 << 20),
        ..CreateVolume::default()
    }
}

/// Runs blocking code on its own thread.
pub async fn aside<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(wait).await.expect("no panic")
}
