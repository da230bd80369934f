//! Other programs, and what they say.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::MeasureError;

/// How often it is looked whether something has come true.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Where the program comes from, if it is not there.
fn hint(program: &str) -> &'static str {
    match program {
        "gocryptfs" => "install the package gocryptfs",
        "cryptsetup" => "install the package cryptsetup-bin",
        "fusermount3" | "fusermount" => "install the package fuse3",
        "mkfs.ext4" => "install the package e2fsprogs",
        _ => "is it in the search path?",
    }
}

/// A command of words.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn unstarted(command: &Command, error: std::io::Error) -> MeasureError {
    let program = command.get_program().to_string_lossy().into_owned();
    MeasureError::Program {
        hint: hint(&program),
        program,
        error,
    }
}

/// Runs it to its end, with this as its input; what it prints.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn run(mut command: Command, input: &[u8]) -> Result<String, MeasureError> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| unstarted(&command, error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who ends without reading says why itself.
        let _ = stdin.write_all(input);
    }
    let ended = child.wait_with_output();
    let ended = ended.map_err(|error| unstarted(&command, error))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = match said.trim() {
        "" => ended.status.to_string(),
        said => said.to_owned(),
    };
    Err(MeasureError::Failed {
        command: shown(&command),
        said,
    })
}

/// Starts it; its end is that of what is returned.
///
/// # Errors
/// If it cannot be started.
pub fn start(mut command: Command) -> Result<Running, MeasureError> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| unstarted(&command, error))?;
    Ok(Running {
        child,
        what: shown(&command),
    })
}

/// A program that runs until this is dropped.
pub struct Running {
    child: Child,
    what: String,
}

impl Running {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something is true while it runs.
    ///
    /// # Errors
    /// If it ends, or that takes too long.
    pub fn until(
        &mut self,
        what: &str,
        within: Duration,
        mut is_true: impl FnMut() -> bool,
    ) -> Result<(), MeasureError> {
        let begun = Instant::now();
        while !is_true() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(MeasureError::Failed {
                    command: self.what.clone(),
                    said: format!("it has ended: {status}"),
                });
            }
            if begun.elapsed() > within {
                return Err(MeasureError::Late {
                    what: what.to_owned(),
                    seconds: within.as_secs(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If that takes too long; it is killed then.
    pub fn ended(mut self, within: Duration) -> Result<(), MeasureError> {
        let begun = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if begun.elapsed() > within {
                return Err(MeasureError::Late {
                    what: format!("`{}` has not ended", self.what),
                    seconds: within.as_secs(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or is to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
