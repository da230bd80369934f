//! CPU time, by the kernel's accounts.

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::measure::MeasureError;

/// `/proc/stat` counts so often a second, for programs, whatever the kernel's own clock is.
const TICKS_A_SECOND: f64 = 100.0;

/// Whose CPU time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// This process, all of its threads, those that have ended as well: to the nanosecond.
    Own,
    /// Another one, the same.
    Process(u32),
    /// All of the machine, the kernel's own threads as well: to 10 ms. Only for a machine that
    /// does nothing else.
    Machine,
}

/// Several accounts in one.
#[derive(Debug, Clone)]
pub struct Meter(Vec<Account>);

impl Meter {
    /// Their sum.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        Self(accounts)
    }

    /// CPU time since some moment.
    ///
    /// # Errors
    /// If a process is not there any more.
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
                    idle(&stat).ok_or_else(|| io::Error::other("/proc/stat makes no sense"))?;
                Ok((clock(ClockId::CLOCK_BOOTTIME)? * cpus).saturating_sub(idle))
            }
        }
    }
}

fn clock(clock: ClockId) -> io::Result<Duration> {
    Ok(clock.now()?.into())
}

/// How many CPUs there are, and how long they were idle or waited for a disk, together. What
/// the kernel tells of idle time it has measured; of work, only what its ticks have met.
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
    fn waiting_costs_nothing_and_work_does() {
        let meter = Meter::new(vec![Account::Own]);
        let before = meter.read().expect("read");
        let mut sum = 0_u64;
        while meter.read().expect("read") < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
        let own = Meter::new(vec![Account::Process(std::process::id())]);
        assert!(own.read().expect("read") >= before + Duration::from_millis(5));
        // More than Linux numbers processes by.
        let gone = Meter::new(vec![Account::Process(1 << 23)]);
        assert!(gone.read().is_err());
    }

    #[test]
    fn idle_time_is_that_of_all_cpus_and_of_waiting_for_disks() {
        let stat = "cpu  100 20 30 9000 400 5 6\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        assert_eq!(idle(stat), Some((2, Duration::from_secs(94))));
        for bad in ["", "cpu x", "cpu  1 2 3"] {
            assert_eq!(idle(bad), None, "{bad}");
        }
        Meter::new(vec![Account::Machine]).read().expect("Linux");
    }
}
