//! What tests of filters share: a context of a simulated world, a sink that keeps events, and
//! [`Rig`], a chain over a device in memory.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{BlockDevice as _, Completion};
use chain_policy::Policy;
use parking_lot::Mutex;
use testkit::memory_device::MemoryDevice;
use world::simulated::Simulation;
use world::{Wake, World};

use crate::filters::{Event, EventKind};
use crate::{
    AttachmentContext, Attribution, Chain, ChainHistory, DiskLimits, EventSink, FilterContext,
    HostContext, HotSwap, HotSwapError, KeyDerivations, NoBackends, NoKeys, NoTargets, SizeRule,
    StateFolder, UnlimitedLease, build_filters,
};

/// A sink that keeps the events of filters.
#[derive(Default)]
pub(crate) struct EventRecorder(Mutex<Vec<Event>>);

impl EventSink for EventRecorder {
    fn report(&self, events: Vec<Event>) {
        self.0.lock().extend(events);
    }
}

impl EventRecorder {
    /// The events that it keeps.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().clone()
    }

    /// The events that it keeps, which it then forgets.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The messages among the events that it keeps.
    pub fn messages(&self) -> Vec<String> {
        let events = self.events().into_iter();
        let messages = events.filter_map(|event| match event.kind {
            EventKind::Message(message) => Some(message),
            _ => None,
        });
        messages.collect()
    }

    /// Whether a message contains this text.
    pub fn has_message(&self, text: &str) -> bool {
        self.messages().iter().any(|one| one.contains(text))
    }
}

impl FilterContext {
    /// The context of a simulated world, without keys, and with a sink that no one reads.
    pub(crate) fn simulated(world: World) -> Self {
        Self {
            host: HostContext {
                clock: world.clock,
                key_derivations: Arc::new(KeyDerivations::new(Arc::clone(&world.pool))),
                pool: world.pool,
                random: world.random,
                backends: Arc::new(NoBackends),
            },
            attachment: AttachmentContext {
                memory_max: 1 << 30,
                wake: Wake::noop(),
                attribution: Arc::new(Attribution {
                    tenant: "alice".to_owned(),
                    vm: None,
                    volume: "disk".to_owned(),
                    volume_id: None,
                }),
                events: Arc::new(EventRecorder::default()),
                keys: Arc::new(NoKeys),
                targets: Arc::new(NoTargets),
                history: ChainHistory::default(),
                lease: Arc::new(UnlimitedLease),
                disk_limits: DiskLimits::UNLIMITED,
                state: None,
            },
        }
    }
}

/// The filters of a policy over a device in memory, in a simulated world. Filters that need
/// another world have a rig of their own.
pub(crate) struct Rig {
    pub simulation: Simulation,
    pub chain: Chain<MemoryDevice>,
    pub events: Arc<EventRecorder>,
}

impl Rig {
    /// Opens the filter that has these lines in a policy. `change` changes its context, in which
    /// `/state` is the folder for state.
    pub fn open(
        lines: &str,
        device: MemoryDevice,
        change: impl FnOnce(&mut AttachmentContext),
    ) -> Result<Self, HotSwapError> {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let folder = Path::new("/state");
        world.disk.create_directory(folder).expect("made");
        let events = Arc::<EventRecorder>::default();
        let mut context = FilterContext::simulated(world.clone());
        context.attachment.events = Arc::clone(&events) as _;
        context.attachment.state = Some(StateFolder {
            disk: world.disk,
            path: folder.to_owned(),
        });
        change(&mut context.attachment);
        let text = format!("volume = 'disk'\n[[filter]]\n{lines}");
        let policy = Policy::parse(&text).expect("a policy");
        let mut rig = Self {
            chain: Chain::new(device, world.clock, Wake::noop()),
            simulation,
            events,
        };
        let (sender, ended) = mpsc::channel();
        rig.chain.hot_swap(HotSwap {
            filters: build_filters(&policy, &context),
            rule: SizeRule::MayChange,
            on_swapped: Box::new(move |result| sender.send(result).expect("a receiver")),
        });
        loop {
            assert_eq!(rig.poll(), []);
            if let Ok(ended) = ended.try_recv() {
                return ended.map(|()| rig);
            }
        }
    }

    /// Carries out the jobs, lets a millisecond pass, polls the chain and ends the batch.
    pub fn poll(&mut self) -> Vec<Completion> {
        self.simulation.pool.run_all(&self.simulation.random);
        self.simulation.clock.advance(Duration::from_millis(1));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.end_batch().expect("the batch ends");
        completions
    }
}
