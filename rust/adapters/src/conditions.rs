//! The conditions under which this machine would measure: what `bedplate doctor` says of clocks, CPUs,
//! memory, other work, and the place that volumes are made in. Thresholds are defaults that a machine's
//! own history may correct.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bedplate_core::error::Result;
use bedplate_core::plan::{StorageKind, StoragePlan};
use bedplate_core::probe::Probe;
use bedplate_core::record::TrialId;

use crate::doctor::Check;
use crate::environment::{
    FAST_CLOCKS, clocksource, cpu_governor, existing_ancestor, line, meminfo, scheduler,
};
use crate::ledger::Ledger;
use crate::mountinfo::{self, Mount};
use crate::storage::{LocalVolumes, backing_caveat, bytes, chosen};

/// Share of the CPUs' time that a hypervisor may take, and how long it is looked at.
const STEAL_SHARE: f64 = 0.01;
const LOOKED_AT: Duration = Duration::from_secs(1);
/// Percent of the last ten seconds in which tasks may wait for a CPU, and for input or output.
const CPU_PRESSURE_PERCENT: f64 = 5.0;
const IO_PRESSURE_PERCENT: f64 = 2.0;
/// Free share of a file system below which it slows down, and below which nothing is safe.
const FREE_PERCENT: u64 = 20;
const FREE_PERCENT_MIN: u64 = 5;
/// Services that start work of their own at times of their own.
const SERVICES: [&str; 5] = ["cron", "anacron", "unattended-upgr", "apt.systemd.dai", "irqbalance"];

/// Looks at everything; volumes would be made in `state_dir`.
pub(crate) async fn conditions(state_dir: &Path) -> Vec<Check> {
    let mut checks = vec![clock(), governor(), turbo(), siblings(), nodes()];
    checks.push(steal().await);
    checks.push(pressure("cpu", CPU_PRESSURE_PERCENT));
    checks.push(pressure("io", IO_PRESSURE_PERCENT));
    checks.extend([services(), swap(), hugepages(), writeback(), limits()]);
    checks.extend(place(state_dir).await);
    checks
}

fn clock() -> Check {
    match clocksource() {
        Some(source) if FAST_CLOCKS.contains(&source.as_str()) => Check::ok("clocksource", source),
        Some(source) => Check::fail(
            "clocksource",
            format!("{source} is slow to read, and every transaction reads it"),
            "choose one of /sys/devices/system/clocksource/clocksource0/available_clocksource",
        ),
        None => Check::not_visible("clocksource"),
    }
}

fn governor() -> Check {
    match cpu_governor() {
        Some(governor) if governor == "performance" => Check::ok("CPU governor", governor),
        Some(governor) => Check::warn(
            "CPU governor",
            format!("{governor} changes the CPU's speed with its load"),
            "cpupower frequency-set --governor performance",
        ),
        None => Check::not_visible("CPU governor"),
    }
}

/// Intel's driver says "no turbo", others "boost".
fn turbo() -> Check {
    let name = "CPU turbo";
    let cpu = Path::new("/sys/devices/system/cpu");
    let on = line(cpu.join("intel_pstate/no_turbo"))
        .map(|off| off == "0")
        .or_else(|| line(cpu.join("cpufreq/boost")).map(|on| on == "1"));
    match on {
        Some(false) => Check::ok(name, "off"),
        Some(true) => Check::warn(
            name,
            "on: the CPU's speed follows its temperature",
            "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 0 > …/cpufreq/boost",
        ),
        None => Check::not_visible(name),
    }
}

fn siblings() -> Check {
    let name = "CPU threads";
    match line("/sys/devices/system/cpu/smt/active").as_deref() {
        Some("0") => Check::ok(name, "one a core"),
        Some(_) => Check::warn(
            name,
            "several a core: load and server may share one",
            "echo off > /sys/devices/system/cpu/smt/control, or limit the server with `cpus`",
        ),
        None => Check::not_visible(name),
    }
}

fn nodes() -> Check {
    let name = "memory nodes";
    match line("/sys/devices/system/node/online") {
        Some(nodes) if nodes == "0" => Check::ok(name, "one"),
        Some(nodes) => Check::warn(
            name,
            format!("{nodes}: memory is nearer to some CPUs than to others"),
            "numactl --cpunodebind=0 --membind=0 bedplate run …",
        ),
        None => Check::not_visible(name),
    }
}

async fn steal() -> Check {
    let name = "steal";
    let Some(before) = cpu_ticks() else { return Check::not_visible(name) };
    tokio::time::sleep(LOOKED_AT).await;
    let Some(after) = cpu_ticks() else { return Check::not_visible(name) };
    let share = stolen_share(before, after);
    let detail = format!("{:.1} % of the CPUs' time", share * 100.0);
    if share <= STEAL_SHARE {
        return Check::ok(name, detail);
    }
    Check::warn(name, detail, "measure when the host is idle, or on a machine of its own")
}

/// Stolen and all ticks since boot (proc(5)).
fn cpu_ticks() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // The guest columns are in user and nice already.
    Some((*ticks.get(7)?, ticks.iter().take(8).sum()))
}

fn stolen_share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let all = after.1.saturating_sub(before.1);
    after.0.saturating_sub(before.0) as f64 / all.max(1) as f64
}

fn pressure(resource: &str, at_most_percent: f64) -> Check {
    let name = format!("pressure: {resource}");
    let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
    match some_avg10(&text) {
        Some(percent) => {
            let detail = format!("{percent} % of the last 10 s");
            if percent <= at_most_percent {
                Check::ok(name, detail)
            } else {
                let remedy = "wait until what else runs here has ended";
                Check::warn(name, format!("tasks waited in {detail}"), remedy)
            }
        }
        None => Check::not_visible(name),
    }
}

fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("avg10=")?.parse().ok())
}

fn services() -> Check {
    let name = "other services";
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    });
    let mut found: Vec<String> = names.filter(|name| SERVICES.contains(&name.as_str())).collect();
    found.sort();
    found.dedup();
    if found.is_empty() {
        return Check::ok(name, "none of those that work at times of their own");
    }
    let detail = format!("{} may work while it is measured", found.join(", "));
    Check::warn(name, detail, "systemctl stop them for the time of a study")
}

fn swap() -> Check {
    let name = "swap";
    let (Some(all), Some(free)) = (meminfo("SwapTotal"), meminfo("SwapFree")) else {
        return Check::not_visible(name);
    };
    match all - free {
        0 => Check::ok(name, "not used"),
        used => Check::warn(name, format!("{} used", bytes(used)), "swapoff -a"),
    }
}

fn hugepages() -> Check {
    let name = "transparent huge pages";
    match line("/sys/kernel/mm/transparent_hugepage/enabled") {
        Some(text) if chosen(&text) == "always" => Check::warn(
            name,
            "always: memory is moved to make them",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(text) => Check::ok(name, chosen(&text)),
        None => Check::not_visible(name),
    }
}

/// Nothing here is wrong; it decides when buffered writes reach the device.
fn writeback() -> Check {
    let name = "writeback";
    let of = |key: &str| line(format!("/proc/sys/vm/{key}")).map(|value| format!("{key}={value}"));
    let keys = [
        "dirty_background_ratio",
        "dirty_ratio",
        "dirty_bytes",
        "dirty_expire_centisecs",
        "dirty_writeback_centisecs",
    ];
    let known: Vec<String> = keys.iter().filter_map(|key| of(key)).collect();
    if known.is_empty() { Check::not_visible(name) } else { Check::ok(name, known.join(" ")) }
}

/// Limits of the control group that Bedplate itself is in, of version 2 or 1.
fn limits() -> Check {
    let name = "limits";
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = crate::monitor::group_paths(&cgroup);
    let limit =
        |directory: &Path, files: &[&str]| files.iter().find_map(|file| line(directory.join(file)));
    let cpu = limit(&groups.cpu, &["cpu.max", "cpu.cfs_quota_us"]);
    let memory = limit(&groups.memory, &["memory.max", "memory.limit_in_bytes"]);
    if cpu.is_none() && memory.is_none() {
        return Check::not_visible(name);
    }
    // Without one: "max 100000" or -1; "max" or a number beyond any memory.
    let cpu = cpu.filter(|text| !text.starts_with("max") && !text.starts_with('-'));
    let memory = memory.filter(|text| text.parse::<u64>().is_ok_and(|bytes| bytes < 1 << 60));
    let set: Vec<String> = [("CPU", cpu), ("memory", memory)]
        .into_iter()
        .filter_map(|(what, limit)| Some(format!("{what} {}", limit?)))
        .collect();
    if set.is_empty() {
        return Check::ok(name, "none");
    }
    let remedy = "measure outside of that container or slice; set `memory` and `cpus` in the spec";
    Check::warn(name, format!("its control group has some: {}", set.join(", ")), remedy)
}

/// What volumes would lie on.
async fn place(state_dir: &Path) -> Vec<Check> {
    let existing = existing_ancestor(state_dir);
    let mounts = mountinfo::mounts().unwrap_or_default();
    let mut checks = Vec::new();
    match mountinfo::holding(&mounts, &existing) {
        Some(mount) => checks.extend([file_system(&existing, mount), device(mount)]),
        None => checks.push(Check::not_visible("work directory")),
    }
    checks.extend(room(&existing));
    checks.push(flushes(state_dir).await);
    checks
}

fn file_system(place: &Path, mount: &Mount) -> Check {
    let name = "work directory";
    let detail =
        format!("{} is on {} ({})", place.display(), mount.fs_type, mount.options.join(","));
    match backing_caveat("it", &mount.fs_type) {
        None => Check::ok(name, detail),
        Some(caveat) => Check::fail(name, caveat, "set `work_dir` of the spec to a local disk"),
    }
}

/// Nothing here is wrong by itself; all of it is part of what is measured.
fn device(mount: &Mount) -> Check {
    let name = "device";
    let (major, minor) = mount.device;
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has its disk's queue and model.
    let of = |file: &str| {
        line(format!("{device}/{file}")).or_else(|| line(format!("{device}/../{file}")))
    };
    let Some(cache) = of("queue/write_cache") else { return Check::not_visible(name) };
    let mut words = vec![format!("write cache: {cache}")];
    words.extend(of("device/model").map(|model| format!("model: {model}")));
    let rotates = of("queue/rotational").is_some_and(|rotates| rotates == "1");
    words.extend(rotates.then(|| "says it rotates".to_owned()));
    words.extend(scheduler(major, minor).map(|scheduler| format!("scheduler: {scheduler}")));
    words.extend(of("queue/nr_requests").map(|count| format!("{count} requests")));
    words.extend(of("queue/read_ahead_kb").map(|kib| format!("read-ahead: {kib} KiB")));
    if cache == "write through" {
        words.push("it says it has no volatile cache, and is sent no flushes".to_owned());
    }
    Check::ok(name, words.join(", "))
}

fn room(place: &Path) -> Vec<Check> {
    let Ok(stat) = rustix::fs::statvfs(place) else {
        return vec![Check::not_visible("free space")];
    };
    let free_bytes = stat.f_bavail * stat.f_frsize;
    let detail = format!("{} in {}", bytes(free_bytes), place.display());
    let of = |name: &str, detail: String, left: u64, all: u64| {
        let percent = left.saturating_mul(100) / all.max(1);
        let remedy = "make some room, or set `work_dir` of the spec to another place";
        let detail = format!("{detail}, {percent} % of it");
        match percent {
            _ if all == 0 => Check::not_visible(name),
            FREE_PERCENT.. => Check::ok(name, detail),
            FREE_PERCENT_MIN.. => Check::warn(name, detail, remedy),
            _ => Check::fail(name, detail, remedy),
        }
    };
    vec![
        of("free space", detail, stat.f_bavail, stat.f_blocks),
        // A file system without a fixed number of them says 0.
        of("free inodes", stat.f_favail.to_string(), stat.f_favail, stat.f_files),
    ]
}

/// Whether what is to be on stable storage is sent there.
async fn flushes(state_dir: &Path) -> Check {
    let name = "flushes";
    let probed = match probe(state_dir).await {
        Ok(probe) => probe.unwrap_or_default(),
        Err(error) => return Check { detail: error.message, ..Check::not_visible(name) },
    };
    let Some(seen) = probed.devices else { return Check::not_visible(name) };
    let median = format!("a write takes {:.0} µs to stable storage", probed.sync_us.p50);
    match seen.flushes {
        None => Check::ok(name, format!("{median}; the disk is sent none")),
        Some(_) if probed.loses_flushes() => Check::fail(
            name,
            probed.caveats(true).join("; "),
            "look at the mount options (nobarrier) and at the disk's write cache",
        ),
        Some(_) => Check::ok(name, format!("{median}, each with a flush of the device")),
    }
}

/// Probes a plain directory, which is on a ledger like any volume.
async fn probe(state_dir: &Path) -> Result<Option<Probe>> {
    let ledger = Ledger::open(state_dir)?;
    let run = format!("doctor{}", std::process::id());
    let id = TrialId { run, trial: 0, block: 0, cell: 0 };
    let work_dir = state_dir.join("work");
    let kind = StorageKind::Directory { path: work_dir.clone() };
    let storage = StoragePlan::fresh("directory", kind);
    let volume = LocalVolumes.create(&ledger, &id, &storage, &work_dir).await?;
    let probed = volume.probe().await;
    ledger.undo_all().await?;
    probed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn what_the_kernel_shows_is_read() {
        let text = "some avg10=81.31 avg60=42.83 avg300=41.66 total=1\nfull avg10=1.00 total=2\n";
        assert_eq!(some_avg10(text), Some(81.31));
        assert_eq!(some_avg10(""), None);
        // Two of two hundred ticks.
        assert!((stolen_share((5, 1000), (7, 1200)) - 0.01).abs() < 1e-12);
        assert_eq!(stolen_share((5, 1000), (5, 1000)), 0.0);
        let (stolen, all) = cpu_ticks().unwrap();
        assert!(stolen <= all && all > 0);
    }

    #[tokio::test]
    async fn every_condition_has_a_state_and_its_mend() {
        let place =
            tempfile::Builder::new().prefix("bedplate-test-").tempdir_in("/var/tmp").unwrap();
        let checks = conditions(place.path()).await;
        assert!(checks.len() >= 17, "{checks:?}");
        let of = |name: &str| checks.iter().find(|check| check.name == name).unwrap();
        assert_ne!(of("free space").state, State::NotVisible);
        assert_ne!(of("work directory").state, State::NotVisible);
        let of_work = fs::read_dir(place.path().join("work")).unwrap();
        assert_eq!(of_work.count(), 0, "the probed directory is gone");
    }
}
