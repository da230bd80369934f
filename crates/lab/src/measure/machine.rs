//! [`Machine`]: identity and properties of the measured machine.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The time after which a CPU runs at the rate of a loaded one.
const BUSY: Duration = Duration::from_millis(50);

/// The machine of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name, for people.
    pub name: String,
    /// The processor, as the kernel names it.
    pub processor: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// Clock rate of a working CPU in Hz, if the kernel reports it; converts seconds to cycles.
    pub cycles_per_s: Option<f64>,
    /// Memory in bytes, as reported by the kernel.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// The machine that this program runs on.
    #[must_use]
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let of_cpu = |name| field(&read("/proc/cpuinfo"), name);
        let names = rustix::system::uname();
        Self {
            name: world::host::machine_name(),
            processor: of_cpu("model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cycles_per_s: fastest(&read("/proc/cpuinfo")),
            memory_bytes: memory_bytes(&read("/proc/meminfo")).unwrap_or(0),
            kernel: names.release().to_string_lossy().into_owned(),
        }
    }

    /// The same, measured with a busy CPU: an idle CPU may have a lower clock rate.
    #[must_use]
    pub fn busy() -> Self {
        let begun = Instant::now();
        let mut count = 0_u64;
        while begun.elapsed() < BUSY {
            count = std::hint::black_box(count.wrapping_add(1));
        }
        Self::here()
    }

    /// How the machine differs from another one so that measurements are not comparable; `None` if
    /// it does not. Memory may differ, because predictions take it as a parameter.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Option<String> {
        if self.name != other.name {
            return Some(format!(
                "it is from {}, but this machine is {}",
                self.name, other.name
            ));
        }
        let processors = (&self.processor, self.cpus) == (&other.processor, other.cpus);
        (!processors).then(|| {
            format!(
                "it is from {} × {}, but this machine has {} × {}",
                self.cpus, self.processor, other.cpus, other.processor
            )
        })
    }
}

/// The highest clock rate of all CPUs, in Hz.
fn fastest(cpuinfo: &str) -> Option<f64> {
    let rates = cpuinfo.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        let rate = value.trim().parse::<f64>().ok()?;
        (key.trim() == "cpu MHz" && rate.is_finite() && rate > 0.0).then_some(rate * 1e6)
    });
    rates.max_by(f64::total_cmp)
}

/// The first value of a line `NAME : VALUE`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let value = field(meminfo, "MemTotal")?;
    let kib = value.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_comparable_with_itself_only() {
        let here = Machine::here();
        assert!(here.memory_bytes > 0 && here.cpus > 0, "{here:?}");
        assert_eq!(here.differs(&Machine::here()), None);
        let mut other = here.clone();
        other.processor = "another".to_owned();
        assert!(here.differs(&other).is_some());
        other = here.clone();
        other.name.push('2');
        assert!(here.differs(&other).is_some());
        other = here.clone();
        other.memory_bytes *= 2;
        assert_eq!(here.differs(&other), None);
    }

    #[test]
    fn the_kernels_tables_are_read() {
        assert_eq!(
            memory_bytes("MemFree: 1 kB\nMemTotal:  2048 kB\n"),
            Some(2_097_152)
        );
        assert_eq!(memory_bytes("MemTotal: much\n"), None);
        let rates = "cpu MHz\t: 800.0\ncpu MHz\t: 3000.5\ncpu MHz\t: x\n";
        assert_eq!(fastest(rates), Some(3000.5e6));
        assert_eq!(fastest("model name: x\n"), None);
    }
}
