//! The other side: a process that is one filter, between two sockets.

use std::io;
use std::sync::{Arc, mpsc};

use base::BlockDevice as _;
use chain::{
    Chain, Derivations, Exchange, ExchangeError, Filter, KeyMissing, KeySource, NoPrograms,
    NoTargets, Room, SizeRule, Surroundings, Tenure, Unlimited, build,
};
use chain_policy::{Policy, PolicyError};
use nbd::client::{Broken, ClientOptions, NbdClient, Target};
use nbd::{ExportOptions, Leg, Watcher};
use net::Channel;
use world::real::{Bell, Stream};
use world::{Interest, Wake, World};
use zeroize::Zeroizing;

use crate::program::EXPORT;
use crate::{EventLines, Spec, SpecError};

/// A filter that reads a disk anew takes up to three times its bound, and the process needs some
/// itself: so a filter's bound is such a part of the process's.
const FILTER_SHARE: u64 = 4;

/// Why a filter cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What it was told.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The policy is none to this program.
    #[error("the policy: {0}")]
    Policy(#[from] PolicyError),
    /// The disk below cannot be used.
    #[error("the disk below cannot be used: {0}")]
    Below(#[from] Broken),
    /// There are no such filters.
    #[error("{0}")]
    Filters(String),
    /// The filter cannot begin.
    #[error(transparent)]
    Filter(#[from] ExchangeError),
    /// A socket.
    #[error("a socket cannot be used: {0}")]
    Socket(#[from] io::Error),
}

struct Keys(Arc<Spec>);

impl KeySource for Keys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyMissing> {
        match self.0.key(name) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(KeyMissing::None(name.to_owned())),
            Err(error) => Err(KeyMissing::Unusable {
                name: name.to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

/// Serves the filter that `spec` tells of: takes requests by `requests`, asks by `asks`, and
/// says what happens on `events`. The process has `memory_bytes`. Returns when nobody asks any
/// more.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    world: &World,
    spec: Spec,
    (requests, asks): (Stream, Stream),
    events: impl io::Write + Send + 'static,
    memory_bytes: u64,
) -> Result<(), ServeError> {
    let policy = Policy::parse(&spec.policy)?;
    let spec = Arc::new(spec);
    let channels = (Channel::new(requests), Channel::new(asks));
    serve_filters(world, channels, |wake, _| {
        let surroundings = Surroundings {
            clock: Arc::clone(&world.clock),
            pool: Arc::clone(&world.pool),
            random: Arc::clone(&world.random),
            wake,
            whose: Arc::new(spec.whose.clone()),
            events: Arc::new(EventLines::start(events)?),
            keys: Arc::new(Keys(spec)),
            targets: Arc::new(NoTargets),
            programs: Arc::new(NoPrograms),
            derivations: Arc::new(Derivations::new(Arc::clone(&world.pool))),
            memory_max: memory_bytes / FILTER_SHARE,
            tenure: Tenure::default(),
            lease: Arc::new(Unlimited),
            room: Room::UNLIMITED,
            state: None,
        };
        Ok(build(&policy, &surroundings))
    })
}

/// Serves filters between two channels, in this thread, until nobody asks any more.
pub(crate) fn serve_filters(
    world: &World,
    (requests, asks): (Channel, Channel),
    make: impl FnOnce(Wake, &Watcher) -> Result<Vec<Box<dyn Filter>>, ServeError>,
) -> Result<(), ServeError> {
    let watcher = Watcher::new()?;
    let bell = Bell::new()?;
    let rung = watcher.watch(bell.clone(), Interest::READABLE)?;
    let options = ClientOptions::new(EXPORT, Arc::clone(&world.clock));
    let below = NbdClient::new(Target::Connected(asks), options, watcher.clone()).opened()?;
    let mut chain = Chain::new(below, Arc::clone(&world.clock), bell.wake());
    let (tell, told) = mpsc::channel();
    chain.exchange(Exchange {
        filters: make(bell.wake(), &watcher)?,
        rule: SizeRule::MayChange,
        told: Box::new(move |ended| drop(tell.send(ended))),
    });
    let mut completions = Vec::new();
    loop {
        chain.poll(&mut completions);
        if let Ok(ended) = told.try_recv() {
            ended?;
            break;
        }
        watcher.wait(chain.next_timer())?;
        if rung.take_seen().readable {
            bell.clear();
        }
    }
    let export = ExportOptions::new(EXPORT, Arc::clone(&world.clock));
    let mut leg = Leg::new(chain, export, watcher.clone());
    leg.welcome(requests)?;
    loop {
        leg.turn();
        if leg.connections() == 0 {
            return Ok(());
        }
        watcher.wait(leg.sleep())?;
        if rung.take_seen().readable {
            bell.clear();
        }
    }
}
