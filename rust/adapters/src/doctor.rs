//! What is available here and how the machine is, and the command that mends what is not as it should be.

use std::path::Path;

use bedplate_core::capabilities::{Availability, Capabilities, kernel_remedy};
use bedplate_core::plan::{EngineKind, FileSystem};
use serde::Serialize;

use crate::capabilities::capabilities;
use crate::conditions::conditions;
use crate::drivers::uring;
use crate::images::{self, Image};

/// One line of `bedplate doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub state: State,
    /// What was seen, in a few words.
    pub detail: String,
    /// The command or step that mends it; absent when nothing is to be mended.
    pub remedy: Option<String>,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Some studies suffer from it, or cannot have it.
    Warn,
    /// Nothing measured under it is to be believed, or nothing can be measured at all.
    Fail,
    /// It cannot be seen from here.
    NotVisible,
}

impl State {
    /// The word in the report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::NotVisible => "not visible",
        }
    }
}

impl Check {
    pub(crate) fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::Ok, detail: detail.into(), remedy: None }
    }

    pub(crate) fn warn(
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            state: State::Warn,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        }
    }

    pub(crate) fn fail(
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state: State::Fail, ..Self::warn(name, detail, remedy) }
    }

    pub(crate) fn not_visible(name: impl Into<String>) -> Self {
        Self { state: State::NotVisible, ..Self::ok(name, "the kernel does not show it here") }
    }

    fn of(name: &str, availability: &Availability, detail: &str) -> Self {
        match availability {
            Availability::Available => Self::ok(name, detail),
            Availability::Missing { reason, remedy } => Self::warn(name, reason, remedy),
        }
    }
}

/// Looks at everything.
pub async fn doctor(state_dir: &Path) -> Vec<Check> {
    let offered = capabilities(state_dir, None, &[]).await;
    let mut checks = vec![
        Check::of("docker", &offered.docker, "the daemon answers"),
        root(&offered),
        Check::of("loop devices", &offered.loop_devices, "can be attached"),
        io_uring(),
    ];
    for (file_system, mkfs) in &offered.mkfs {
        checks.push(Check::of(&format!("mkfs.{}", file_system.word()), mkfs, "installed"));
    }
    checks.push(Check::of("md", &offered.md, "arrays can be made"));
    checks.push(Check::of("zfs", &offered.zfs.pools, &offered.zfs.implementation));
    checks.extend(FileSystem::ALL.map(|known| file_system(&offered, known.word())));
    for image in Image::ALL {
        checks.push(image_check(&offered, image).await);
    }
    checks.extend(EngineKind::ALL.map(|kind| binaries(&offered, kind)));
    checks.extend(conditions(&offered.state_dir).await);
    checks
}

fn root(offered: &Capabilities) -> Check {
    if offered.root {
        return Check::ok("root", "yes: site `local` can make file systems");
    }
    Check::warn("root", "no: site `local` cannot make file systems", "sudo, or use site `docker`")
}

fn io_uring() -> Check {
    match uring::try_here() {
        Ok(()) => Check::ok("io_uring", "carries the load"),
        Err(error) => Check::warn(
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
        return Check::ok(title, "can be mounted");
    }
    Check::warn(title, "the kernel does not have it", kernel_remedy(name))
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
        return Check::warn(title, "cannot be looked for without Docker", remedy);
    }
    for reference in image.official() {
        let present = async { crate::docker::client()?.has_image(&reference).await };
        if matches!(present.await, Ok(true)) {
            return Check::ok(title, reference);
        }
    }
    match images::is_current(image).await {
        Ok(true) if image == Image::MariaDb105 => Check::ok(
            "image mariadb-10.5",
            format!(
                "{}; no 10.3, so specs that ask for it need `allow_other_version`",
                image.tag()
            ),
        ),
        Ok(true) => Check::ok(title, image.tag()),
        Ok(false) => Check::warn(title, "is not here, or is of another recipe", remedy),
        Err(error) => Check::warn(title, error.message, remedy),
    }
}

fn binaries(offered: &Capabilities, kind: EngineKind) -> Check {
    let title = format!("{} binaries", kind.name());
    let binaries = &offered.engine(kind).binaries;
    if binaries.is_empty() {
        let package = crate::engines::package(kind);
        return Check::warn(title, "none found", format!("apt-get install {package}"));
    }
    let list: Vec<String> = binaries
        .iter()
        .map(|found| format!("{} in {}", found.version, found.bin_dir.display()))
        .collect();
    Check::ok(title, list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_no_has_a_remedy() {
        let checks = doctor(Path::new("/tmp/bedplate-state")).await;
        assert!(checks.len() >= 30);
        for name in ["PostgreSQL binaries", "MariaDB binaries"] {
            assert!(checks.iter().any(|check| check.name == name), "{name}");
        }
        for check in checks {
            let mended = matches!(check.state, State::Warn | State::Fail);
            assert_eq!(mended, check.remedy.is_some(), "{check:?}");
            assert!(!check.detail.is_empty());
        }
    }
}
