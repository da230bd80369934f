//! [`serve`]: the side of the filter. It runs a filter between two channels: requests arrive on
//! one, and the disk below is used over the other.

use std::io;
use std::sync::{Arc, mpsc};

use base::BlockDevice as _;
use chain::{
    AttachmentContext, Chain, ChainHistory, DiskLimits, Filter, FilterContext, HostContext,
    HotSwap, HotSwapError, KeyDerivations, KeyError, KeySource, NoBackends, NoTargets, SizeRule,
    UnlimitedLease, build_filters,
};
use chain_policy::{Policy, PolicyError};
use nbd::client::{ClientOptions, ConnectionError, NbdClient, Target};
use nbd::{EmbeddedServer, ExportOptions, Watcher};
use net::Channel;
use world::real::{Stream, Waker};
use world::{Interest, Wake, World};
use zeroize::Zeroizing;

use crate::connection::EXPORT;
use crate::{EventLines, Spec, SpecError};

/// The divisor of a process's memory that is its filter's limit. A filter that reads a disk again
/// uses up to three times its limit, and the process itself needs some memory.
const FILTER_SHARE: u64 = 4;

/// Why a filter cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The spec is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The policy is invalid.
    #[error("invalid policy: {0}")]
    Policy(#[from] PolicyError),
    /// The disk below cannot be used.
    #[error("cannot use the disk below: {0}")]
    Below(#[from] ConnectionError),
    /// The filters cannot be made.
    #[error("{0}")]
    Filters(String),
    /// The filter cannot start.
    #[error(transparent)]
    Filter(#[from] HotSwapError),
    /// A socket failed.
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
}

struct Keys(Arc<Spec>);

impl KeySource for Keys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        match self.0.key(name) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(KeyError::NotFound(name.to_owned())),
            Err(error) => Err(KeyError::Unusable {
                name: name.to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

/// Serves the filter that `spec` describes: takes requests from `requests`, uses the disk below
/// over `below`, and writes events to `events`. `memory_bytes` is the memory of the process.
/// Returns when the connection of the requests has ended.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    world: &World,
    spec: Spec,
    requests: Stream,
    below: Stream,
    events: impl io::Write + Send + 'static,
    memory_bytes: u64,
) -> Result<(), ServeError> {
    let policy = Policy::parse(&spec.policy)?;
    let spec = Arc::new(spec);
    let (requests, below) = (Channel::new(requests), Channel::new(below));
    serve_filters(world, requests, below, |wake, _| {
        let context = FilterContext {
            host: HostContext {
                clock: Arc::clone(&world.clock),
                pool: Arc::clone(&world.pool),
                random: Arc::clone(&world.random),
                backends: Arc::new(NoBackends),
                key_derivations: Arc::new(KeyDerivations::new(Arc::clone(&world.pool))),
            },
            attachment: AttachmentContext {
                wake,
                attribution: Arc::new(spec.attribution.clone()),
                events: Arc::new(EventLines::start(events)?),
                keys: Arc::new(Keys(spec)),
                targets: Arc::new(NoTargets),
                memory_max: memory_bytes / FILTER_SHARE,
                history: ChainHistory::default(),
                lease: Arc::new(UnlimitedLease),
                disk_limits: DiskLimits::UNLIMITED,
                state: None,
            },
        };
        Ok(build_filters(&policy, &context))
    })
}

/// Serves filters between two channels in this thread, until the connection of the requests has
/// ended.
pub(crate) fn serve_filters(
    world: &World,
    requests: Channel,
    below: Channel,
    make: impl FnOnce(Wake, &Watcher) -> Result<Vec<Box<dyn Filter>>, ServeError>,
) -> Result<(), ServeError> {
    let watcher = Watcher::new()?;
    let waker = Waker::new()?;
    let wakeups = watcher.watch(waker.clone(), Interest::READABLE)?;
    let options = ClientOptions::new(EXPORT, Arc::clone(&world.clock));
    let below = NbdClient::new(Target::Connected(below), options, watcher.clone()).opened()?;
    let mut chain = Chain::new(below, Arc::clone(&world.clock), waker.handle());
    let (tell, told) = mpsc::channel();
    chain.hot_swap(HotSwap {
        filters: make(waker.handle(), &watcher)?,
        rule: SizeRule::MayChange,
        on_swapped: Box::new(move |ended| drop(tell.send(ended))),
    });
    let mut completions = Vec::new();
    loop {
        chain.poll(&mut completions);
        if let Ok(ended) = told.try_recv() {
            ended?;
            break;
        }
        watcher.wait(chain.next_timer())?;
        if wakeups.take_readiness().readable {
            waker.clear();
        }
    }
    let export = ExportOptions::new(EXPORT, Arc::clone(&world.clock));
    let mut server = EmbeddedServer::new(chain, export, watcher.clone());
    server.add_connection(requests)?;
    loop {
        server.turn();
        if server.connections() == 0 {
            return Ok(());
        }
        watcher.wait(server.next_timer())?;
        if wakeups.take_readiness().readable {
            waker.clear();
        }
    }
}
