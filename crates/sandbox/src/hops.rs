//! [`Hops`]: what makes the programs of a chain's filters.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use chain::{Door, Program, Programs, Surroundings};
use chain_policy::{FilterKind, FilterPolicy, Hop, Limits, MachineConfig};
use nbd::Watcher;
use net::Channel;
use world::real::{Listener as SocketListener, Stream};
use world::{Disk, Endpoint};

use crate::confine::gives_users;
use crate::events::Listener;
use crate::launch::{self, Child, Start};
use crate::machine::call;
use crate::program::{Asks, EXPORT, FilterProgram, Launch, Launched, Requests};
use crate::sockets::SocketFolder;
use crate::users::{FilterUser, FilterUsers};
use crate::{Foreign, HostIdentity, Spec};

/// What all processes of a host share.
#[derive(Clone)]
pub struct HopsOptions {
    /// This program, which becomes a filter when it is told to.
    pub program: PathBuf,
    /// Where the operator says which other programs there are; none: there are none.
    pub foreign: Option<PathBuf>,
    /// For sockets of such programs.
    pub sockets: Option<PathBuf>,
    /// Its disk.
    pub disk: Arc<dyn Disk>,
    /// As whom it shows itself to machines of filters; none: there are none.
    pub host: Option<Arc<dyn HostIdentity>>,
    /// Whether filters may reach an address; if not, why.
    pub may_reach: Arc<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>,
}

/// See the module's head.
pub struct Hops {
    options: HopsOptions,
    watcher: Watcher,
}

impl Hops {
    /// Programs of the filters of one disk, whose thread has `watcher`.
    #[must_use]
    pub fn new(options: HopsOptions, watcher: Watcher) -> Self {
        Self { options, watcher }
    }
}

impl Programs for Hops {
    fn program(
        &self,
        of: &FilterPolicy,
        surroundings: &Surroundings,
        door: Door,
    ) -> Result<Box<dyn Program>, String> {
        let Some(hop) = &of.hop else {
            return Err(format!("the filter {} runs inline", of.name));
        };
        let common = Common {
            options: self.options.clone(),
            name: of.name.as_str().into(),
            hop: hop.clone(),
            surroundings: surroundings.clone(),
        };
        let mut export = EXPORT.to_owned();
        let launch: Box<dyn Launch> = match &of.kind {
            FilterKind::Machine(config) => {
                let host = self.options.host.clone();
                let host = host.ok_or("nobody knows this host, so filters run on it only")?;
                (self.options.may_reach)(config.at)?;
                Box::new(OthersMachine {
                    common,
                    config: config.clone(),
                    host,
                })
            }
            FilterKind::Program(config) => {
                let folder = self.options.foreign.as_deref();
                let folder = folder.ok_or("there are no programs for filters here")?;
                if !gives_users() {
                    // Of the agent's own user it would have the agent's files.
                    return Err(
                        "a program needs a user of its own, which only an agent can give it that \
                         is root or may (see \"Filters\" in the operations manual)"
                            .to_owned(),
                    );
                }
                let program = Foreign::read(&*self.options.disk, folder, &config.program);
                let program = program.map_err(|error| base::with_causes(&error))?;
                program.export.clone_into(&mut export);
                Box::new(OthersProcess { common, program })
            }
            kind => Box::new(OwnProcess {
                key: match kind {
                    FilterKind::Encrypt(config) => Some(config.key.clone()),
                    _ => None,
                },
                common,
            }),
        };
        let clock = Arc::clone(&surroundings.clock);
        let watcher = self.watcher.clone();
        let program = FilterProgram::new(door, launch, &export, clock, watcher);
        Ok(Box::new(program))
    }
}

/// What every process needs.
#[derive(Clone)]
struct Common {
    options: HopsOptions,
    name: Arc<str>,
    hop: Hop,
    surroundings: Surroundings,
}

impl Common {
    /// Runs `launch` where it may wait.
    fn run(
        &self,
        launch: impl FnOnce() -> io::Result<Launched> + Send + 'static,
    ) -> Receiver<io::Result<Launched>> {
        let (tell, told) = mpsc::channel();
        let wake = self.surroundings.wake.clone();
        self.surroundings.pool.run(Box::new(move || {
            // Who has given it up needs none.
            let _ = tell.send(launch());
            wake.wake();
        }));
        told
    }

    fn start(
        &self,
        user: Option<FilterUser>,
        arguments: Vec<String>,
        (stdin, stdout): (Stdio, Stdio),
    ) -> io::Result<Child> {
        let given = &self.surroundings;
        // What the policy says, as far as the host's operator gives it.
        let memory_bytes = self.hop.limits.memory_bytes.min(given.memory_max);
        let start = Start {
            program: &self.options.program,
            user,
            limits: Limits {
                memory_bytes,
                ..self.hop.limits
            },
            arguments,
            stdin,
            stdout,
        };
        let (child, said) = Child::start(start, &given.pool, &given.clock)?;
        let listener = Listener {
            whose: Arc::clone(&given.whose),
            name: Arc::clone(&self.name),
            events: Arc::clone(&given.events),
            clock: Arc::clone(&given.clock),
        };
        listener.listen(said)?;
        Ok(child)
    }
}

/// A user that no other filter of the machine has, if one may be given away.
fn user() -> io::Result<Option<FilterUser>> {
    static USERS: FilterUsers = FilterUsers::new();
    gives_users().then(|| USERS.take()).transpose()
}

/// A process of Scree's own.
struct OwnProcess {
    common: Common,
    key: Option<String>,
}

impl Launch for OwnProcess {
    fn launch(&self) -> Receiver<io::Result<Launched>> {
        let (common, key) = (self.common.clone(), self.key.clone());
        self.common.run(move || {
            let given = &common.surroundings;
            let mut spec = Spec::new(&common.hop.alone, &given.whose);
            if let Some(name) = key {
                let passphrase = given.keys.passphrase(&name).map_err(io::Error::other)?;
                spec.add_key(&name, &passphrase);
            }
            let (requests, to) = launch::raw_pair()?;
            let (asks, from) = launch::raw_pair()?;
            let child = common.start(user()?, Vec::new(), (to.into(), from.into()))?;
            let mut requests = Stream::from(requests);
            spec.send(&mut requests).map_err(io::Error::other)?;
            Ok(Launched {
                requests: Requests::Over(Channel::new(requests)),
                asks: Asks::Over(Channel::new(asks.into())),
                child: Some(child),
            })
        })
    }
}

/// A program of the operator's.
struct OthersProcess {
    common: Common,
    program: Foreign,
}

impl Launch for OthersProcess {
    fn launch(&self) -> Receiver<io::Result<Launched>> {
        let (common, program) = (self.common.clone(), self.program.clone());
        self.common.run(move || {
            let folder = common.options.sockets.as_deref();
            let folder = folder.ok_or_else(|| io::Error::other("there is no place for sockets"))?;
            let user = user()?;
            let own = SocketFolder::make(folder, user.as_ref().map(FilterUser::number))?;
            let (socket, below) = (own.path().join("filter"), own.path().join("below"));
            let listener = SocketListener::bind(&Endpoint::Unix(below.clone()), 0o666)?;
            let mut arguments = vec!["--".to_owned()];
            arguments.extend(program.command(&socket, &below));
            let mut child = common.start(user, arguments, (Stdio::null(), Stdio::null()))?;
            child.keep(own);
            Ok(Launched {
                requests: Requests::At(Endpoint::Unix(socket)),
                asks: Asks::By(listener),
                child: Some(child),
            })
        })
    }
}

/// A machine of the tenant's.
struct OthersMachine {
    common: Common,
    config: MachineConfig,
    host: Arc<dyn HostIdentity>,
}

impl Launch for OthersMachine {
    fn launch(&self) -> Receiver<io::Result<Launched>> {
        let (common, config) = (self.common.clone(), self.config.clone());
        let host = Arc::clone(&self.host);
        self.common.run(move || {
            let given = &common.surroundings;
            let place = (config.at, config.key.as_str());
            call(place, &common.name, &given.whose, &*host, &*given.random)
        })
    }
}
