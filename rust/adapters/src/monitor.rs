//! Readings of the machine, once a second while measuring: CPU time by state, memory that waits to be
//! written, how long tasks wait, what the volume's devices have done, and what the server's processes take.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_core::sampler::{DeviceCounts, Monitor, Reading, ReadingValue};
use bedplate_core::server_metrics::SERVER_CPU;
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

    fn devices(&self, groups: &[Vec<String>]) -> Option<DeviceCounts> {
        let of = |name: &String| {
            let stat = Path::new("/sys/class/block").join(name).join("stat");
            device_counts(&fs::read_to_string(stat).ok()?)
        };
        let groups = groups.iter().map(|names| names.iter().map(of).collect());
        counts_of_all(&groups.collect::<Option<Vec<_>>>()?)
    }

    fn server(&self, process: u32) -> Vec<Reading> {
        let counter = |metric, value| Reading { metric, value: ReadingValue::Counter(value) };
        let mut readings = Vec::new();
        readings.extend(family_cpu_s(process).map(|seconds| counter(SERVER_CPU, seconds)));
        let Some(groups) = groups_of(process) else { return readings };
        readings.extend(groups.memory_bytes().map(|bytes| Reading {
            metric: "server_memory_bytes",
            value: ReadingValue::Gauge(bytes),
        }));
        readings.extend(
            groups.throttled_s().map(|seconds| counter("server_cpu_throttled_share", seconds)),
        );
        readings
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

/// Ticks in a second of the CPU times that the kernel shows programs, whatever it uses inside.
const TICKS_PER_S: f64 = 100.0;

/// CPU time of a process and all its children, those that have ended included, in seconds. A child whose
/// end falls between two looks would be counted twice or not at all, so it is looked again.
fn family_cpu_s(process: u32) -> Option<f64> {
    const LOOKS: u32 = 5;
    for _ in 0..LOOKS {
        let before = CpuTicks::of(process)?;
        let list = format!("/proc/{process}/task/{process}/children");
        let list = fs::read_to_string(list).ok()?;
        let children = list.split_whitespace().filter_map(|child| child.parse().ok());
        let living: Option<Vec<CpuTicks>> = children.map(CpuTicks::of).collect();
        let after = CpuTicks::of(process)?;
        if let Some(living) = living
            && before.ended_children == after.ended_children
        {
            let living = living.iter().map(|child| child.own + child.ended_children).sum::<u64>();
            return Some((after.own + after.ended_children + living) as f64 / TICKS_PER_S);
        }
    }
    None
}

/// CPU time of a process by its `stat` (proc(5)), in ticks.
struct CpuTicks {
    own: u64,
    ended_children: u64,
}

impl CpuTicks {
    fn of(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may hold anything; the fields after it begin with the third.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { own: field(14)? + field(15)?, ended_children: field(16)? + field(17)? })
    }
}

/// The control groups of a container's process, as paths below `/sys/fs/cgroup`.
pub(crate) struct Groups {
    pub(crate) memory: PathBuf,
    pub(crate) cpu: PathBuf,
}

/// Those of a process that is not in our own, which would say nothing of a server.
fn groups_of(process: u32) -> Option<Groups> {
    let of = |whose: &str| fs::read_to_string(format!("/proc/{whose}/cgroup")).ok();
    let (theirs, ours) = (of(&process.to_string())?, of("self")?);
    let (theirs, ours) = (group_paths(&theirs), group_paths(&ours));
    let differs = theirs.memory != ours.memory && theirs.cpu != ours.cpu;
    differs.then_some(theirs)
}

/// The lines of a `cgroup` file (cgroups(7)): `9:memory:/docker/…` of version 1, `0::/…` of version 2,
/// which holds for what no version 1 line names.
pub(crate) fn group_paths(text: &str) -> Groups {
    let root = Path::new("/sys/fs/cgroup");
    let path = |controller: &str| {
        let mut unified = root.to_owned();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let path = path.trim_start_matches('/');
            if names.split(',').any(|name| name == controller) {
                return root.join(controller).join(path);
            }
            if names.is_empty() {
                unified = root.join(path);
            }
        }
        unified
    };
    Groups { memory: path("memory"), cpu: path("cpu") }
}

impl Groups {
    fn memory_bytes(&self) -> Option<f64> {
        let names = ["memory.current", "memory.usage_in_bytes"];
        let text = names.iter().find_map(|name| fs::read_to_string(self.memory.join(name)).ok())?;
        text.trim().parse().ok()
    }

    /// Seconds in which its processes were held back by a limit of CPUs, summed over CPUs.
    fn throttled_s(&self) -> Option<f64> {
        throttled_s(&fs::read_to_string(self.cpu.join("cpu.stat")).ok()?)
    }
}

/// Version 2 counts microseconds, version 1 nanoseconds.
fn throttled_s(stat: &str) -> Option<f64> {
    let value = |key: &str| {
        stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<f64>().ok())
    };
    let microseconds = value("throttled_usec ").map(|value| value / 1e6);
    microseconds.or_else(|| value("throttled_time ").map(|value| value / 1e9))
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

/// What devices, in groups that are flushed together, have done in all; none when there is none.
fn counts_of_all(groups: &[Vec<DeviceCounts>]) -> Option<DeviceCounts> {
    let flushes = groups.iter().filter_map(|group| group.iter().map(|one| one.flushes).max()).sum();
    let all = groups.iter().flatten().copied().reduce(|all, one| DeviceCounts {
        reads: all.reads + one.reads,
        read_bytes: all.read_bytes + one.read_bytes,
        writes: all.writes + one.writes,
        written_bytes: all.written_bytes + one.written_bytes,
        in_flight: all.in_flight + one.in_flight,
        ..all
    })?;
    Some(DeviceCounts { flushes, ..all })
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
        // A process whose name was made to look like fields.
        let stat = "7 (a) R 1) S 1 7 7 0 -1 4194560 9 8 0 0 150 50 30 20 20 0 1 0 5 0 0";
        let ticks = CpuTicks::parse(stat).unwrap();
        assert_eq!((ticks.own, ticks.ended_children), (200, 50));
        let groups = group_paths("9:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/x\n");
        assert_eq!(groups.memory, Path::new("/sys/fs/cgroup/memory/docker/ab"));
        assert_eq!(groups.cpu, Path::new("/sys/fs/cgroup/cpu/docker/ab"));
        let groups = group_paths("0::/system.slice/docker-ab.scope\n");
        assert_eq!(groups.memory, Path::new("/sys/fs/cgroup/system.slice/docker-ab.scope"));
        assert_eq!(throttled_s("nr_throttled 3\nthrottled_usec 2500000\n"), Some(2.5));
        assert_eq!(throttled_s("nr_throttled 3\nthrottled_time 2500000000\n"), Some(2.5));
        // A kernel that does not count flushes.
        assert_eq!(device_counts("1 2 3 4 5 6 7 8 9 10 11\n"), None);
        assert_eq!(HostMonitor.devices(&[]), None);
        assert_eq!(HostMonitor.devices(&[vec![]]), None);
        // Two mirrors in a stripe: the flushes of a mirror's devices are the same ones.
        let flushed = |flushes| DeviceCounts { flushes, writes: 10, ..DeviceCounts::default() };
        let mirrors = [vec![flushed(5), flushed(6)], vec![flushed(7), flushed(7)]];
        let all = counts_of_all(&mirrors).unwrap();
        assert_eq!((all.flushes, all.writes), (6 + 7, 40));
        let meminfo = "MemTotal:       100 kB\nDirty:             12 kB\nWriteback:         0 kB\n";
        let values: Vec<_> = memory_readings(meminfo).iter().map(|reading| reading.value).collect();
        assert_eq!(values, [ReadingValue::Gauge(12_288.0), ReadingValue::Gauge(0.0)]);
    }
}
