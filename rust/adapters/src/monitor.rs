//! Readings of the machine, once a second while measuring: CPU time by state, memory that waits to be
//! written, and what the volume's devices have done.

use std::fs;
use std::path::Path;

use bedplate_core::sampler::{DeviceCounts, Monitor, Reading, ReadingValue};

/// Reads `/proc/stat`, `/proc/meminfo` and `/sys/class/block`.
pub struct HostMonitor;

impl Monitor for HostMonitor {
    fn read(&self) -> Vec<Reading> {
        let mut readings = Vec::new();
        if let Ok(stat) = fs::read_to_string("/proc/stat") {
            readings.extend(cpu_readings(&stat));
        }
        if let Ok(meminfo) = fs::read_to_string("/proc/meminfo") {
            readings.extend(memory_readings(&meminfo));
        }
        readings
    }

    fn devices(&self, names: &[String]) -> Option<DeviceCounts> {
        let mut all = DeviceCounts::default();
        for name in names {
            let stat = Path::new("/sys/class/block").join(name).join("stat");
            let one = device_counts(&fs::read_to_string(stat).ok()?)?;
            all = DeviceCounts {
                reads: all.reads + one.reads,
                read_bytes: all.read_bytes + one.read_bytes,
                writes: all.writes + one.writes,
                written_bytes: all.written_bytes + one.written_bytes,
                flushes: all.flushes.max(one.flushes),
                in_flight: all.in_flight + one.in_flight,
            };
        }
        (!names.is_empty()).then_some(all)
    }
}

/// The fields of a device's `stat` (the kernel's Documentation/block/stat.rst); flushes are there since
/// Linux 5.5.
fn device_counts(stat: &str) -> Option<DeviceCounts> {
    const SECTOR_BYTES: u64 = 512;
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number).copied();
    Some(DeviceCounts {
        reads: field(0)?,
        read_bytes: field(2)? * SECTOR_BYTES,
        writes: field(4)?,
        written_bytes: field(6)? * SECTOR_BYTES,
        in_flight: field(8)?,
        flushes: field(15)?,
    })
}

/// CPU seconds by state since boot, summed over all CPUs: their growth per second is the number of
/// CPUs that were in that state.
fn cpu_readings(stat: &str) -> Vec<Reading> {
    // The unit of these counts is fixed at 1/100 s for programs, whatever the kernel uses inside.
    const TICKS_PER_S: f64 = 100.0;
    // Columns of the line `cpu`: user nice system idle iowait irq softirq steal (proc(5)).
    const METRICS: [(usize, &str); 5] = [
        (0, "host_cpu_user_cpus"),
        (2, "host_cpu_system_cpus"),
        (3, "host_cpu_idle_cpus"),
        (4, "host_cpu_iowait_cpus"),
        (7, "host_cpu_steal_cpus"),
    ];
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else {
        return Vec::new();
    };
    let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    METRICS
        .iter()
        .filter_map(|&(column, metric)| {
            let value = ReadingValue::Counter(ticks.get(column)? / TICKS_PER_S);
            Some(Reading { metric, value })
        })
        .collect()
}

fn memory_readings(meminfo: &str) -> Vec<Reading> {
    const METRICS: [(&str, &str); 2] =
        [("Dirty:", "host_memory_dirty_bytes"), ("Writeback:", "host_memory_writeback_bytes")];
    METRICS
        .iter()
        .filter_map(|&(key, metric)| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(Reading { metric, value: ReadingValue::Gauge(kib * 1024.0) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_units_are_those_of_proc() {
        let stat = "cpu  200 7 50 1000 30 1 2 4 0 0\ncpu0 100 0 0 0 0 0 0 0 0 0\n";
        let values: Vec<_> =
            cpu_readings(stat).iter().map(|reading| (reading.metric, reading.value)).collect();
        assert_eq!(
            values,
            [
                ("host_cpu_user_cpus", ReadingValue::Counter(2.0)),
                ("host_cpu_system_cpus", ReadingValue::Counter(0.5)),
                ("host_cpu_idle_cpus", ReadingValue::Counter(10.0)),
                ("host_cpu_iowait_cpus", ReadingValue::Counter(0.3)),
                ("host_cpu_steal_cpus", ReadingValue::Counter(0.04)),
            ]
        );
        let stat = "  100 1 2000 7   50 3 400 9   2 30 40   5 0 60 1   77 8\n";
        let counts = DeviceCounts {
            reads: 100,
            read_bytes: 1_024_000,
            writes: 50,
            written_bytes: 204_800,
            flushes: 77,
            in_flight: 2,
        };
        assert_eq!(device_counts(stat), Some(counts));
        // A kernel that does not count flushes.
        assert_eq!(device_counts("1 2 3 4 5 6 7 8 9 10 11\n"), None);
        assert_eq!(HostMonitor.devices(&[]), None);
        let meminfo = "MemTotal:       100 kB\nDirty:             12 kB\nWriteback:         0 kB\n";
        let values: Vec<_> = memory_readings(meminfo).iter().map(|reading| reading.value).collect();
        assert_eq!(values, [ReadingValue::Gauge(12_288.0), ReadingValue::Gauge(0.0)]);
    }
}
