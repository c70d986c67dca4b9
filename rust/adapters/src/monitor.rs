//! Readings of the machine, once a second while measuring: CPU time by state and memory that waits to
//! be written.

use std::fs;

use bedplate_core::sampler::{Monitor, Reading, ReadingValue};

/// Reads `/proc/stat` and `/proc/meminfo`.
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
        let meminfo = "MemTotal:       100 kB\nDirty:             12 kB\nWriteback:         0 kB\n";
        let values: Vec<_> = memory_readings(meminfo).iter().map(|reading| reading.value).collect();
        assert_eq!(values, [ReadingValue::Gauge(12_288.0), ReadingValue::Gauge(0.0)]);
    }
}
