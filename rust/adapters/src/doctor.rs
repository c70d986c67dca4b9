//! What is available here, and for each "no" the command that mends it.

use std::path::Path;

use bedplate_core::capabilities::{Availability, Capabilities, kernel_remedy};
use bedplate_core::plan::{EngineKind, FileSystem};
use serde::Serialize;

use crate::capabilities::capabilities;
use crate::drivers::uring;
use crate::environment::{clocksource, cpu_governor};
use crate::images::{self, Image};

/// One line of `bedplate doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was seen, in a few words.
    pub detail: String,
    /// The command or step that mends it; absent when nothing is to be mended.
    pub remedy: Option<String>,
}

impl Check {
    fn good(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), ok: true, detail: detail.into(), remedy: None }
    }

    fn bad(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), ok: false, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn of(name: &str, availability: &Availability, detail: &str) -> Self {
        match availability {
            Availability::Available => Self::good(name, detail),
            Availability::Missing { reason, remedy } => Self::bad(name, reason, remedy),
        }
    }
}

/// Looks at everything.
pub async fn doctor(state_dir: &Path) -> Vec<Check> {
    let offered = capabilities(state_dir, None).await;
    let mut checks = vec![
        Check::of("docker", &offered.docker, "the daemon answers"),
        root(&offered),
        Check::of("loop devices", &offered.loop_devices, "can be attached"),
        io_uring(),
    ];
    for (file_system, mkfs) in &offered.mkfs {
        checks.push(Check::of(&format!("mkfs.{}", file_system.word()), mkfs, "installed"));
    }
    checks.push(Check::of("zfs", &offered.zfs.pools, &offered.zfs.implementation));
    checks.extend(FileSystem::ALL.map(|known| file_system(&offered, known.word())));
    for image in Image::ALL {
        checks.push(image_check(&offered, image).await);
    }
    checks.extend(EngineKind::ALL.map(|kind| binaries(&offered, kind)));
    checks.push(clock());
    checks.push(governor());
    checks.push(space(&offered));
    checks
}

fn root(offered: &Capabilities) -> Check {
    if offered.root {
        return Check::good("root", "yes: site `local` can make file systems");
    }
    Check::bad("root", "no: site `local` cannot make file systems", "sudo, or use site `docker`")
}

fn io_uring() -> Check {
    match uring::try_here() {
        Ok(()) => Check::good("io_uring", "carries the load"),
        Err(error) => Check::bad(
            "io_uring",
            format!("{error}; epoll carries the load, which costs more CPU"),
            "Linux 6.1 or later with `sysctl kernel.io_uring_disabled=0`; in a container, a seccomp \
             profile that allows it",
        ),
    }
}

fn file_system(offered: &Capabilities, name: &str) -> Check {
    let title = format!("kernel: {name}");
    if offered.filesystems.iter().any(|known| known == name) {
        return Check::good(title, "can be mounted");
    }
    Check::bad(title, "the kernel does not have it", kernel_remedy(name))
}

async fn image_check(offered: &Capabilities, image: Image) -> Check {
    // The official image, where the one that is built here stands in for another version of it.
    let title = match image {
        Image::Postgres13 => "image postgres-13",
        Image::MariaDb105 => "image mariadb-10.3",
        Image::StorageHelper => "image storage-helper",
        Image::PostgresPages(_) => "image with page sizes",
    };
    let verb = if image == Image::MariaDb105 { "get" } else { "build" };
    let remedy = format!("bedplate images {verb} {}", image.name());
    if !offered.docker.is_available() {
        return Check::bad(title, "cannot be looked for without Docker", remedy);
    }
    for reference in image.official() {
        let present = async { crate::docker::client()?.has_image(&reference).await };
        if matches!(present.await, Ok(true)) {
            return Check::good(title, reference);
        }
    }
    match images::is_current(image).await {
        Ok(true) if image == Image::MariaDb105 => Check::good(
            "image mariadb-10.5",
            format!(
                "{}; no 10.3, so specs that ask for it need `allow_other_version`",
                image.tag()
            ),
        ),
        Ok(true) => Check::good(title, image.tag()),
        Ok(false) => Check::bad(title, "is not here, or is of another recipe", remedy),
        Err(error) => Check::bad(title, error.message, remedy),
    }
}

fn binaries(offered: &Capabilities, kind: EngineKind) -> Check {
    let title = format!("{} binaries", kind.name());
    let binaries = &offered.engine(kind).binaries;
    if binaries.is_empty() {
        let package = crate::engines::package(kind);
        return Check::bad(title, "none found", format!("apt-get install {package}"));
    }
    let list: Vec<String> = binaries
        .iter()
        .map(|found| format!("{} in {}", found.version, found.bin_dir.display()))
        .collect();
    Check::good(title, list.join(", "))
}

/// Sources that are read without entering the kernel.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];

fn clock() -> Check {
    let title = "clocksource";
    match clocksource() {
        Some(source) if FAST_CLOCKS.contains(&source.as_str()) => Check::good(title, source),
        Some(source) => Check::bad(
            title,
            format!("{source} is slow to read"),
            "see /sys/devices/system/clocksource/clocksource0/available_clocksource",
        ),
        None => Check::good(title, "unknown"),
    }
}

fn governor() -> Check {
    let title = "CPU governor";
    match cpu_governor() {
        Some(governor) if governor == "performance" => Check::good(title, governor),
        Some(governor) => Check::bad(
            title,
            format!("{governor} changes the CPU's speed with its load"),
            "cpupower frequency-set --governor performance",
        ),
        None => Check::good(title, "unknown"),
    }
}

fn space(offered: &Capabilities) -> Check {
    const GIB: u64 = 1 << 30;
    let title = "free space";
    let detail = format!(
        "{:.1} GiB in {}",
        offered.free_bytes as f64 / GIB as f64,
        offered.state_dir.display()
    );
    if offered.free_bytes >= 4 * GIB {
        return Check::good(title, detail);
    }
    Check::bad(title, detail, "set `work_dir` of the spec to a place with more space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_no_has_a_remedy() {
        let checks = doctor(Path::new("/tmp/bedplate-state")).await;
        assert!(checks.len() >= 14);
        for name in ["PostgreSQL binaries", "MariaDB binaries"] {
            assert!(checks.iter().any(|check| check.name == name), "{name}");
        }
        for check in checks {
            assert_eq!(check.ok, check.remedy.is_none(), "{check:?}");
            assert!(!check.detail.is_empty());
        }
    }
}
