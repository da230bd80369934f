//! CPU time, as the kernel accounts it.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::measure::MeasureError;

/// Ticks of `/proc/stat` a second; they do not depend on the kernel's own clock rate.
const TICKS_A_SECOND: f64 = 100.0;

/// The owner of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// This process with all of its threads, ended ones included; precise to the nanosecond.
    Own,
    /// Another process, in the same way.
    Process(u32),
    /// The whole machine with the kernel's own threads, precise to 10 ms; only for an otherwise
    /// idle machine.
    Machine,
}

/// The sum of several accounts.
#[derive(Debug, Clone)]
pub struct Meter(Vec<Account>);

impl Meter {
    /// A meter of the sum of `accounts`.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        Self(accounts)
    }

    /// CPU time since an arbitrary moment.
    ///
    /// # Errors
    /// If a process does not exist any more.
    pub fn read(&self) -> Result<Duration, MeasureError> {
        let mut all = Duration::ZERO;
        for account in &self.0 {
            let read = account.read();
            all += read.map_err(|error| MeasureError::Account {
                whose: format!("{account:?}"),
                error,
            })?;
        }
        Ok(all)
    }
}

impl Account {
    fn read(self) -> io::Result<Duration> {
        match self {
            Self::Own => clock(ClockId::CLOCK_PROCESS_CPUTIME_ID),
            Self::Process(process) => {
                let process = i32::try_from(process).map_err(io::Error::other)?;
                clock(clock_getcpuclockid(Pid::from_raw(process))?)
            }
            Self::Machine => {
                let stat = std::fs::read_to_string("/proc/stat")?;
                let (cpus, idle) =
                    idle(&stat).ok_or_else(|| io::Error::other("/proc/stat is malformed"))?;
                Ok((clock(ClockId::CLOCK_BOOTTIME)? * cpus).saturating_sub(idle))
            }
        }
    }
}

fn clock(clock: ClockId) -> io::Result<Duration> {
    Ok(clock.now()?.into())
}

/// The number of CPUs, and the time that they were idle or waited for a disk together. The kernel
/// measures idle time, but samples busy time at its ticks.
fn idle(stat: &str) -> Option<(u32, Duration)> {
    let cpus = stat.lines().filter(|line| is_of_one_cpu(line)).count();
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut fields = line.split_ascii_whitespace().skip(3).map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let ticks = next()? + next()?;
    let idle = Duration::from_secs_f64(ticks as f64 / TICKS_A_SECOND);
    Some((u32::try_from(cpus).ok()?, idle))
}

fn is_of_one_cpu(line: &str) -> bool {
    let number = line.strip_prefix("cpu");
    number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_cpu_time() {
        let meter = Meter::new(vec![Account::Own]);
        let before = meter.read().expect("read");
        let mut sum = 0_u64;
        while meter.read().expect("read") < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
        let own = Meter::new(vec![Account::Process(std::process::id())]);
        assert!(own.read().expect("read") >= before + Duration::from_millis(5));
        // Process ids of Linux are smaller.
        let missing = Meter::new(vec![Account::Process(1 << 23)]);
        assert!(missing.read().is_err());
    }

    #[test]
    fn idle_time_sums_all_cpus_and_waiting_for_disks() {
        let stat = "cpu  100 20 30 9000 400 5 6\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        assert_eq!(idle(stat), Some((2, Duration::from_secs(94))));
        for bad in ["", "cpu x", "cpu  1 2 3"] {
            assert_eq!(idle(bad), None, "{bad}");
        }
        Meter::new(vec![Account::Machine]).read().expect("Linux");
    }
}
