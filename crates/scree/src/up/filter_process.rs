//! `scree filter-process`: the process of an out-of-process filter, started by an agent. It
//! confines itself before it does anything else.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use base::with_causes;
use sandbox::{Confinement, Spec, confine, confine_external, serve};
use world::World;
use world::real::Stream;

use crate::args::FilterProcessArguments;
use crate::commands::Failure;

/// Threads for slow work, such as deriving a key or reading a disk.
const THREADS_MAX: usize = 4;

/// Runs `scree filter-process`.
pub fn run_filter_process(arguments: &FilterProcessArguments) -> Result<(), Failure> {
    let confinement = Confinement {
        user: arguments.user,
        memory_bytes: arguments.memory,
    };
    if let Some((program, words)) = arguments.command.split_first() {
        confine_external(confinement).map_err(|error| Failure::of(&error))?;
        // `exec` returns only if the program cannot be run.
        let error = Command::new(program).args(words).exec();
        return Err(Failure::new(format!("{program}: {error}")));
    }
    let requests = io::stdin().as_fd().try_clone_to_owned()?;
    let below = io::stdout().as_fd().try_clone_to_owned()?;
    confine(confinement).map_err(|error| Failure::of(&error))?;
    let world = World::real(THREADS_MAX);
    let mut requests = Stream::from(requests);
    requests.set_blocking(true)?;
    let spec = Spec::receive(&mut requests).map_err(|error| Failure::of(&error))?;
    requests.set_blocking(false)?;
    let served = serve(
        &world,
        spec,
        requests,
        below.into(),
        io::stderr(),
        arguments.memory,
    );
    served.map_err(|error| Failure::new(with_causes(&error)))
}
