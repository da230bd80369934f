//! What the boxes of a relay are given: keys and a place for what they have to know from
//! `--box-dir`, servers by any URI, and standard output for their events.
//!
//! ```text
//!   DIR/keys/NAME      private to this user; the passphrase is its first line
//!   DIR/state/         what boxes have to know after a crash
//!   DIR/programs/      programs that boxes may be
//! ```

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use agent::{BoxKeys, Connected};
use chain::boxes::{Event, What};
use chain::{
    Attribution, DERIVATIONS_MAX, Derivations, EventSink, KeySource, NoKeys, Programs, Remote,
    StateFolder, Surroundings, Targets, Tenure,
};
use frontend::nbd::Watcher;
use frontend::nbd::client::{ClientOptions, NbdClient, Target};
use hop::{Hops, HopsOptions};
use world::real::ThreadPool;
use world::{Clock, Wake, World, host};

use crate::args::{RelayTarget, relay_target};
use crate::commands::Failure;

/// So many batches of events wait for whoever reads them; what is more is lost.
const BATCHES_MAX: usize = 256;

/// What does not depend on the thread that will serve.
pub(super) struct Boxes {
    world: World,
    folder: Option<PathBuf>,
    state: Option<PathBuf>,
    whose: Arc<Attribution>,
    events: Arc<Printer>,
    /// This program.
    program: PathBuf,
}

impl Boxes {
    /// Of a disk of `whose`, whose boxes' state is in `state` below the folder.
    pub fn new(
        world: &World,
        folder: Option<&Path>,
        state: &Path,
        whose: Attribution,
    ) -> Result<Self, Failure> {
        let state = folder.map(|folder| folder.join("state").join(state));
        if let Some(state) = &state {
            let made = host::make_folders(&*world.disk, state);
            made.map_err(|error| Failure::new(format!("{}: {error}", state.display())))?;
        }
        Ok(Self {
            state,
            world: world.clone(),
            folder: folder.map(Path::to_owned),
            whose: Arc::new(whose),
            events: Arc::new(Printer::start()?),
            program: super::this_program()?,
        })
    }

    /// All that they are given.
    pub fn surroundings(&self, wake: Wake, watcher: &Watcher) -> Surroundings {
        let state = self.state.as_ref().map(|path| StateFolder {
            disk: Arc::clone(&self.world.disk),
            path: path.clone(),
        });
        let keys: Arc<dyn KeySource> = match &self.folder {
            None => Arc::new(NoKeys),
            Some(folder) => Arc::new(BoxKeys::in_folder(&self.world, &folder.join("keys"))),
        };
        Surroundings {
            clock: Arc::clone(&self.world.clock),
            pool: Arc::clone(&self.world.pool),
            derivations: Arc::new(Derivations::new(Arc::new(ThreadPool::new(DERIVATIONS_MAX)))),
            // Whoever runs a relay has written its policy.
            memory_max: u64::MAX,
            random: Arc::clone(&self.world.random),
            wake,
            whose: Arc::clone(&self.whose),
            events: Arc::clone(&self.events) as _,
            keys,
            targets: Arc::new(Anywhere {
                watcher: watcher.clone(),
                clock: Arc::clone(&self.world.clock),
            }),
            // Nobody says who else has written the server's disk meanwhile.
            tenure: Tenure::default(),
            state,
            programs: self.programs(watcher),
        }
    }

    /// What makes the programs of boxes that do not run inline.
    fn programs(&self, watcher: &Watcher) -> Arc<dyn Programs> {
        let options = HopsOptions {
            program: self.program.clone(),
            foreign: self.folder.as_ref().map(|folder| folder.join("programs")),
            sockets: self
                .folder
                .as_ref()
                .map(|folder| hop::sockets_folder(folder)),
            disk: Arc::clone(&self.world.disk),
            host: None,
            may_reach: Arc::new(|_| true),
        };
        Arc::new(Hops::new(options, watcher.clone()))
    }
}

/// Whoever runs a relay may connect to what they can connect to.
struct Anywhere {
    watcher: Watcher,
    clock: Arc<dyn Clock>,
}

impl Targets for Anywhere {
    fn open(&self, uri: &str) -> Result<Box<dyn Remote>, String> {
        let RelayTarget::Nbd { at, export, tls } = relay_target(uri)?;
        if tls.is_some() {
            return Err(format!("{uri}: boxes speak to servers without TLS so far"));
        }
        let options = ClientOptions::new(export, Arc::clone(&self.clock));
        let client = NbdClient::new(Target::Endpoint(at), options, self.watcher.clone());
        Ok(Box::new(Connected(client)))
    }
}

/// Prints events as lines of JSON, in a thread: a disk waits for nobody who reads them.
struct Printer {
    batches: SyncSender<Vec<Event>>,
    lost: Arc<AtomicU64>,
}

impl Printer {
    fn start() -> io::Result<Self> {
        let (batches, received) = mpsc::sync_channel::<Vec<Event>>(BATCHES_MAX);
        let lost = Arc::<AtomicU64>::default();
        let missing = Arc::clone(&lost);
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the relay, and waits for a reader"
        )]
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || {
                while let Ok(batch) = received.recv() {
                    // Who reads no more wants no more.
                    if print(&batch, missing.swap(0, Ordering::Relaxed)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { batches, lost })
    }
}

impl EventSink for Printer {
    fn tell(&self, events: Vec<Event>) {
        let count = events.len() as u64;
        if self.batches.try_send(events).is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }
}

fn print(batch: &[Event], lost: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if let (Some(first), 1..) = (batch.first(), lost) {
        let mut note = first.clone();
        note.what = What::Note(format!("{lost} events are lost: nobody read them in time"));
        note.rule = None;
        serde_json::to_writer(&mut out, &note)?;
        out.write_all(b"\n")?;
    }
    for event in batch {
        serde_json::to_writer(&mut out, event)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
