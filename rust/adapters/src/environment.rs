//! Facts of machine and software, for the record. What cannot be seen is `unknown`, never left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_core::record::Environment;

use crate::{docker, mountinfo};

/// What a fact is when it cannot be seen here.
const UNKNOWN: &str = "unknown";

/// Gathers the facts; `work_dir` is where volumes are made.
pub async fn environment(work_dir: &Path) -> Environment {
    let mut facts = Facts(BTreeMap::new());
    facts.put("bedplate_version", Some(env!("CARGO_PKG_VERSION").into()));
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    facts.put("bedplate_build", Some(build.into()));

    let system = rustix::system::uname();
    facts.put("kernel", Some(system.release().to_string_lossy().into_owned()));
    facts.put("kernel_build", Some(system.version().to_string_lossy().into_owned()));
    facts.put("architecture", Some(system.machine().to_string_lossy().into_owned()));
    facts.put("os", os_name());
    facts.put("cpu_model", cpu_info("model name"));
    facts.put("cpu_mhz", cpu_info("cpu MHz"));
    facts.put("hypervisor", hypervisor());
    facts.put("cpus", Some(cpus().to_string()));
    facts.put("memory_bytes", memory_bytes().map(|bytes| bytes.to_string()));
    facts.put("swap_bytes", meminfo("SwapTotal").map(|bytes| bytes.to_string()));
    facts.put("load_average", line("/proc/loadavg").map(|text| words(&text, 3)));
    facts.put("clocksource", clocksource());
    facts.put("cpu_governor", cpu_governor());
    facts.put("transparent_hugepages", line("/sys/kernel/mm/transparent_hugepage/enabled"));
    facts.put("cgroup_version", cgroup_version());
    facts.put("cpu_threads_share_cores", line("/sys/devices/system/cpu/smt/active"));
    facts.put("cpu_microcode", cpu_info("microcode"));
    facts.put("memory_nodes", line("/sys/devices/system/node/online"));
    facts.put("kernel_command_line", line("/proc/cmdline"));
    facts.put("address_space_randomised", line("/proc/sys/kernel/randomize_va_space"));
    for name in [
        "dirty_background_ratio",
        "dirty_ratio",
        "dirty_bytes",
        "dirty_expire_centisecs",
        "dirty_writeback_centisecs",
        "swappiness",
        "overcommit_memory",
    ] {
        facts.put(&format!("vm_{name}"), line(format!("/proc/sys/vm/{name}")));
    }
    facts.docker().await;
    facts.work_dir(work_dir);
    Environment { facts: facts.0 }
}

struct Facts(BTreeMap<String, String>);

impl Facts {
    fn put(&mut self, name: &str, value: Option<String>) {
        let value = value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        self.0.insert(name.into(), value.unwrap_or_else(|| UNKNOWN.into()));
    }

    async fn docker(&mut self) {
        let info = async { docker::client()?.info().await };
        let info = tokio::time::timeout(Duration::from_secs(5), info).await;
        let info = info.ok().and_then(Result::ok).unwrap_or_default();
        self.put("docker_version", info.server_version);
        self.put("docker_storage_driver", info.driver);
        self.put("docker_cgroup_version", info.cgroup_version.map(|version| version.to_string()));
    }

    fn work_dir(&mut self, work_dir: &Path) {
        let existing = existing_ancestor(work_dir);
        let mounts = mountinfo::mounts().unwrap_or_default();
        let mount = mountinfo::holding(&mounts, &existing);
        self.put("work_dir_fs_type", mount.map(|mount| mount.fs_type.clone()));
        self.put("work_dir_source", mount.map(|mount| mount.source.clone()));
        self.put("work_dir_mount_options", mount.map(|mount| mount.options.join(",")));
        let (major, minor) = mount.map_or((0, 0), |mount| mount.device);
        self.put("work_dir_scheduler", scheduler(major, minor));
        self.put("work_dir_free_bytes", free_bytes(work_dir).map(|bytes| bytes.to_string()));
    }
}

/// The first line of a file of the kernel.
pub(crate) fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(|line| line.trim().to_owned())
}

fn words(text: &str, count: usize) -> String {
    text.split_whitespace().take(count).collect::<Vec<_>>().join(" ")
}

fn os_name() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

fn cpu_info(key: &str) -> Option<String> {
    colon_value(&fs::read_to_string("/proc/cpuinfo").ok()?, key)
}

/// The value of the first line `key : value`.
fn colon_value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// `none` where the CPU does not say that it is virtual.
fn hypervisor() -> Option<String> {
    if let Some(kind) = line("/sys/hypervisor/type") {
        return Some(kind);
    }
    let flags = cpu_info("flags")?;
    let is_virtual = flags.split_whitespace().any(|flag| flag == "hypervisor");
    Some(if is_virtual { "present" } else { "none" }.into())
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}

/// Memory of the machine.
pub(crate) fn memory_bytes() -> Option<u64> {
    meminfo("MemTotal")
}

/// A number of `/proc/meminfo` in bytes.
pub(crate) fn meminfo(key: &str) -> Option<u64> {
    let value = colon_value(&fs::read_to_string("/proc/meminfo").ok()?, key)?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Sources of time that are read without entering the kernel.
pub(crate) const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];

/// The clock source of the kernel.
pub(crate) fn clocksource() -> Option<String> {
    line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
}

/// The frequency governor of the first CPU; virtual machines show none.
pub(crate) fn cpu_governor() -> Option<String> {
    line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

fn cgroup_version() -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let unified = text.lines().all(|line| line.starts_with("0::"));
    Some(if unified { "2" } else { "1" }.into())
}

/// Scheduler of a block device, which for a partition is its disk's.
pub(crate) fn scheduler(major: u32, minor: u32) -> Option<String> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    let text = line(format!("{device}/queue/scheduler"))
        .or_else(|| line(format!("{device}/../queue/scheduler")))?;
    match (text.find('['), text.find(']')) {
        (Some(from), Some(to)) if from < to => Some(text[from + 1..to].to_owned()),
        _ => Some(text),
    }
}

/// The nearest directory that exists, in the kernel's own spelling.
pub(crate) fn existing_ancestor(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute
        .ancestors()
        .find_map(|ancestor| fs::canonicalize(ancestor).ok())
        .unwrap_or_else(|| PathBuf::from("/"))
}

/// Bytes that this process may still write where `path` is or will be.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(existing_ancestor(path)).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_key() {
        let text = "model name\t: A CPU\nmodel\t\t: 7\n";
        assert_eq!(colon_value(text, "model").unwrap(), "7");
        assert_eq!(colon_value(text, "model name").unwrap(), "A CPU");
        assert_eq!(colon_value(text, "name"), None);
    }

    #[test]
    fn a_directory_that_does_not_exist_yet_has_free_bytes() {
        assert!(free_bytes(Path::new("/tmp/no/such/directory")).unwrap() > 0);
        assert_eq!(existing_ancestor(Path::new("/no-such/x")), Path::new("/"));
    }

    #[tokio::test]
    async fn nothing_is_left_out() {
        let facts = environment(Path::new("/tmp")).await.facts;
        for name in [
            "bedplate_version",
            "bedplate_build",
            "kernel",
            "cpu_model",
            "cpus",
            "memory_bytes",
            "clocksource",
            "cpu_governor",
            "docker_version",
            "work_dir_fs_type",
        ] {
            assert!(!facts[name].is_empty(), "{name}");
        }
        assert_eq!(facts["kernel"], rustix::system::uname().release().to_str().unwrap());
    }
}
