//! A sign of life on the terminal while something takes long.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::ProgressBar;

/// Spins on standard error while it lives, if that is a terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// Says what is going on.
    pub fn start(doing: impl Into<String>) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            ProgressBar::hidden()
        };
        bar.set_message(doing.into());
        Self(bar)
    }

    /// Says how far it is.
    pub fn say(&self, how_far: impl Into<String>) {
        self.0.set_message(how_far.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
