//! The terminal as the lab's commands see it.

use std::io;

use lab::commands::{CommandOutput, Console, Failure as LabFailure};
use lab::measure::Stop;

use crate::commands::Failure;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::signals::EndSignals;

/// Runs a command of the lab on the terminal.
pub fn run(
    format: Format,
    command: impl FnOnce(&dyn Console) -> Result<(), LabFailure>,
) -> Result<(), Failure> {
    Ok(command(&Terminal(format))?)
}

/// Standard output and standard error, in the format that the user chose.
struct Terminal(Format);

impl Console for Terminal {
    fn notice(&self, text: &str) {
        output::print_notice(self.0, text);
    }

    fn progress(&self, doing: &str) -> Box<dyn lab::commands::Progress> {
        Box::new(Progress::start(doing))
    }

    fn progress_of(&self, doing: &str, count: u64) -> Box<dyn lab::commands::Progress> {
        Box::new(Progress::bar(doing, count))
    }

    fn print(&self, result: &CommandOutput) -> io::Result<()> {
        output::print_lab_output(self.0, result)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "signals are those of this machine, and a thread has to wait for them"
    )]
    fn stop_on_signal(&self) -> Result<Stop, LabFailure> {
        let failed = |error: io::Error| LabFailure::new(format!("cannot receive signals: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(failed)?;
        let ends = runtime.block_on(async { EndSignals::of_command() });
        let mut ends = ends.map_err(|failure| LabFailure::new(failure.to_string()))?;
        let stop = Stop::default();
        let stopped = stop.clone();
        let wait = move || {
            runtime.block_on(ends.received());
            stopped.stop();
            runtime.block_on(ends.received());
            std::process::exit(1);
        };
        // The thread ends with the process.
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(wait).map(|_| stop).map_err(failed)
    }
}

impl lab::commands::Progress for Progress {
    fn say(&self, doing: String) {
        Self::say(self, doing);
    }

    fn add(&self, count: u64) {
        self.more(count);
    }
}
