//! Running other programs.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure::MeasureError;
use crate::measure::error::PathContext as _;

/// The pause between checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The package of a missing program.
fn hint(program: &str) -> &'static str {
    match program {
        "gocryptfs" => "install the package gocryptfs",
        "cryptsetup" => "install the package cryptsetup-bin",
        "fusermount3" | "fusermount" => "install the package fuse3",
        "setpriv" => "install the package util-linux",
        "mkfs.ext4" => "install the package e2fsprogs",
        _ => "is it in the search path?",
    }
}

/// A command from its words.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The longest part of a program's output in an error, in bytes; the last bytes are shown.
const SAID_BYTES: usize = 2000;

fn last(message: &[u8]) -> String {
    let from = message.len().saturating_sub(SAID_BYTES);
    String::from_utf8_lossy(&message[from..]).trim().to_owned()
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

/// Runs a program with this input; returns its output.
///
/// # Errors
/// If it cannot be started, its output cannot be read, or it fails.
pub fn run(mut command: Command, input: &[u8]) -> Result<String, MeasureError> {
    // A signal to the foreground group of a terminal is for this process only, which ends the
    // others.
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| unstarted(&command, error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading reports why itself.
        let _ = stdin.write_all(input);
    }
    let ended = child.wait_with_output();
    let ended = ended.map_err(|error| MeasureError::Output {
        command: shown(&command),
        error,
    })?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    Err(MeasureError::Failed {
        command: shown(&command),
        message: described(&ended.stderr, &ended.status),
    })
}

fn described(message: &[u8], status: &std::process::ExitStatus) -> String {
    match &last(message)[..] {
        "" => status.to_string(),
        message => format!("{status}: {message}"),
    }
}

/// The same program and arguments, started so that the program gets SIGTERM when the thread that
/// starts it ends, even if this process is killed. Other settings of `command`, such as variables
/// of the environment, are not kept.
fn ends_with_us(command: &Command) -> Command {
    let mut ends = Command::new("setpriv");
    ends.args(["--pdeathsig", "TERM", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    ends
}

/// Starts a program with the arguments of `command`, and without its other settings. The program
/// is killed when the returned value is dropped, and gets SIGTERM when the thread that calls this
/// ends. Its standard error goes to the file `output`; its standard output is discarded.
///
/// # Errors
/// If it cannot be started.
pub fn start(command: &Command, output: PathBuf) -> Result<Running, MeasureError> {
    let file = File::create(&output).at(&output)?;
    let mut started = ends_with_us(command);
    let child = started
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(|error| unstarted(&started, error))?;
    Ok(Running {
        child,
        what: shown(command),
        output,
    })
}

/// A program that runs until this is dropped.
pub struct Running {
    child: Child,
    what: String,
    output: PathBuf,
}

fn read(path: &Path) -> Result<Vec<u8>, MeasureError> {
    std::fs::read(path).at(path)
}

impl Running {
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a condition is true while the program runs.
    ///
    /// # Errors
    /// If the program ends, or after the timeout; with its output.
    pub fn wait_until(
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
                    message: described(&read(&self.output)?, &status),
                });
            }
            if begun.elapsed() > within {
                return Err(MeasureError::Late {
                    what: format!("{what} ({})", last(&read(&self.output)?)),
                    seconds: within.as_secs(),
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until the program ends.
    ///
    /// # Errors
    /// After the timeout; it is killed then.
    pub fn wait_for_end(mut self, within: Duration) -> Result<(), MeasureError> {
        let begun = Instant::now();
        while self.is_running() {
            if begun.elapsed() > within {
                return Err(MeasureError::Late {
                    what: format!("`{}` has not ended", self.what),
                    seconds: within.as_secs(),
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If the program has ended already, this has no effect.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_reported_with_its_last_output() {
        let folder = tempfile::tempdir().expect("a folder");
        let words = ["sh", "-c", "echo why >&2; exit 3"];
        let failed = run(command(&words), b"").expect_err("it fails").to_string();
        assert!(failed.contains("3: why"), "{failed}");
        let mut running = start(&command(&words), folder.path().join("output")).expect("started");
        let never = running.wait_until("nothing", Duration::from_secs(60), || false);
        let failed = never.expect_err("it ends").to_string();
        assert!(failed.contains("3: why"), "{failed}");
        let missing = run(command(&["scree-has-no-such"]), b"").expect_err("it is not there");
        assert!(missing.to_string().contains("search path"), "{missing}");
    }

    #[test]
    fn a_program_that_keeps_running_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let cat = || {
            start(
                &command(&["tail", "-f", "/dev/null"]),
                folder.path().join("output"),
            )
        };
        let mut one = cat().expect("started");
        one.wait_until("nothing", Duration::ZERO, || true)
            .expect("true");
        let late = one
            .wait_for_end(Duration::ZERO)
            .expect_err("it does not end");
        assert!(late.to_string().contains("has not ended"), "{late}");
        let (id, one) = cat().map(|one| (one.id(), one)).expect("started");
        drop(one);
        assert!(!Path::new("/proc").join(id.to_string()).exists());
    }
}
