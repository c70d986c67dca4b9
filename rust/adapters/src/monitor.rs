//! Readings of the machine, once a second while measuring: CPU time by state, memory that waits to be
//! written, how long tasks wait, and what the volume's devices have done.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use bedplate_core::sampler::{DeviceCounts, Monitor, Reading, ReadingValue};
use rustix::time::{ClockId, clock_gettime};

/// The most that the kernel gives of one message of its log.
const KERNEL_RECORD_BYTES: usize = 8192;

/// Reads `/proc/stat`, `/proc/meminfo`, `/proc/pressure` and `/sys/class/block`.
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
        for (resource, who, metric) in PRESSURES {
            if let Ok(pressure) = fs::read_to_string(format!("/proc/pressure/{resource}")) {
                readings.extend(pressure_reading(&pressure, who, metric));
            }
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

    fn kernel_messages(&self, age: Duration) -> Vec<String> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        let since = now.saturating_sub(age);
        let opened =
            fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let Ok(mut log) = opened else { return Vec::new() };
        let mut messages = Vec::new();
        let mut record = vec![0; KERNEL_RECORD_BYTES];
        // Each read gives one record. It fails at the end; a record that was overwritten meanwhile is
        // passed over.
        loop {
            match log.read(&mut record) {
                Ok(count @ 1..) => {
                    messages
                        .extend(kernel_message(&String::from_utf8_lossy(&record[..count]), since));
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                _ => return messages,
            }
        }
    }
}

/// The text of a record of the kernel's log (the kernel's Documentation/ABI/testing/dev-kmsg), if it is
/// a warning or worse and not older than `since`, from boot.
fn kernel_message(record: &str, since: Duration) -> Option<String> {
    const WARNING: u32 = 4;
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let at = Duration::from_micros(fields.nth(1)?.parse().ok()?);
    // The lower bits are the level, the others who said it. Further lines are a device's properties.
    (priority & 7 <= WARNING && at >= since).then(|| text.lines().next().unwrap_or("").to_owned())
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

/// Resources, who waits for them, and the metrics that come of it. That all wait for a CPU means nothing
/// of a whole machine.
const PRESSURES: [(&str, &str, &str); 5] = [
    ("cpu", "some", "host_pressure_cpu_some_share"),
    ("io", "some", "host_pressure_io_some_share"),
    ("io", "full", "host_pressure_io_full_share"),
    ("memory", "some", "host_pressure_memory_some_share"),
    ("memory", "full", "host_pressure_memory_full_share"),
];

/// Seconds since boot in which some tasks, or all that could run, waited for a resource (the kernel's
/// Documentation/accounting/psi.rst): their growth per second is the share of the time.
fn pressure_reading(pressure: &str, who: &str, metric: &'static str) -> Option<Reading> {
    let line = pressure.lines().find_map(|line| line.strip_prefix(who))?;
    let total_us: f64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
    Some(Reading { metric, value: ReadingValue::Counter(total_us / 1e6) })
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
        let pressure = "some avg10=0.00 avg60=0.05 avg300=0.55 total=73204511\n\
                        full avg10=0.00 avg60=0.02 avg300=0.40 total=51000000\n";
        let of = |who, metric| pressure_reading(pressure, who, metric).map(|it| it.value);
        assert_eq!(of("some", "x"), Some(ReadingValue::Counter(73.204_511)));
        assert_eq!(of("full", "x"), Some(ReadingValue::Counter(51.0)));
        assert_eq!(of("none", "x"), None);
        let record = "3,1234,5000000,-;I/O error, dev loop3, sector 8\n SUBSYSTEM=block\n";
        let text = "I/O error, dev loop3, sector 8".to_owned();
        assert_eq!(kernel_message(record, Duration::from_secs(5)), Some(text));
        assert_eq!(kernel_message(record, Duration::from_secs(6)), None);
        assert_eq!(kernel_message("6,1,9000000,-;mounted", Duration::ZERO), None);
        // A kernel that does not count flushes.
        assert_eq!(device_counts("1 2 3 4 5 6 7 8 9 10 11\n"), None);
        assert_eq!(HostMonitor.devices(&[]), None);
        let meminfo = "MemTotal:       100 kB\nDirty:             12 kB\nWriteback:         0 kB\n";
        let values: Vec<_> = memory_readings(meminfo).iter().map(|reading| reading.value).collect();
        assert_eq!(values, [ReadingValue::Gauge(12_288.0), ReadingValue::Gauge(0.0)]);
    }
}
