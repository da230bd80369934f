//! [`Progress`]: a spinner or bar on the terminal while a command works.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::ProgressBar;
#[cfg(feature = "lab")]
use indicatif::ProgressStyle;

/// A spinner or bar on standard error, if that is a terminal; removed when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A spinner with a text.
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

    /// A bar of `count` steps with a text.
    #[cfg(feature = "lab")]
    pub fn bar(doing: impl Into<String>, count: u64) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(count)
        } else {
            ProgressBar::hidden()
        };
        bar.set_message(doing.into());
        bar.set_style(bar_style());
        Self(bar)
    }

    /// Counts `count` more steps as done.
    #[cfg(feature = "lab")]
    pub fn more(&self, count: u64) {
        self.0.inc(count);
    }

    /// Replaces the text.
    pub fn say(&self, how_far: impl Into<String>) {
        self.0.set_message(how_far.into());
    }
}

#[cfg(feature = "lab")]
fn bar_style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} {msg}, {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
