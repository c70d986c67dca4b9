//! What this machine offers, gathered for the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_core::capabilities::{Availability, Binaries, Capabilities, EngineOffer, ZfsOffer};
use bedplate_core::plan::{EngineKind, FileSystem};

use crate::engines::process;
use crate::environment::{cpus, free_bytes, memory_bytes};
use crate::images::{self, Image};
use crate::storage::device;
use crate::{command, docker};

/// File systems that are looked for among the kernel's modules.
const FILESYSTEMS: [&str; 8] = ["btrfs", "ext2", "ext3", "ext4", "f2fs", "nilfs2", "xfs", "zfs"];

/// How long the Docker daemon may take to answer.
const DOCKER_TIMEOUT: Duration = Duration::from_secs(5);

/// Gathers what this machine offers; volumes are made under `work_dir`, or else under `state_dir`, or on the block
/// devices that are named.
pub async fn capabilities(
    state_dir: &Path,
    work_dir: Option<&Path>,
    block_devices: &[PathBuf],
) -> Capabilities {
    let mut devices = BTreeMap::new();
    for path in block_devices {
        devices.insert(path.clone(), device::look(path).await);
    }
    let (docker, docker_shares_kernel) = docker().await;
    Capabilities {
        root: is_root(),
        cpus: cpus(),
        memory_bytes: memory_bytes().unwrap_or(0),
        docker,
        docker_shares_kernel,
        loop_devices: loop_devices(),
        schedulers: schedulers(),
        md: md(),
        mkfs: FileSystem::ALL.map(|known| (known, mkfs(known))).into(),
        zfs: zfs().await,
        devices,
        filesystems: filesystems(),
        engines: engines().await,
        state_dir: state_dir.to_owned(),
        free_bytes: free_bytes(work_dir.unwrap_or(state_dir)).unwrap_or(0),
    }
}

/// Whether the kernel joins devices by md, now or once its module is loaded, and the tool for it is here.
fn md() -> Availability {
    let release = kernel_release();
    let lists = ["modules.builtin", "modules.dep"].map(|name| {
        fs::read_to_string(format!("/lib/modules/{release}/{name}")).unwrap_or_default()
    });
    let module = lists.iter().any(|list| list.contains("/md/md-mod.ko"));
    if !module && !Path::new("/proc/mdstat").exists() {
        return missing(
            "the kernel has no md",
            "run `modprobe md-mod`, or boot a kernel with CONFIG_BLK_DEV_MD",
        );
    }
    tool("mdadm", "mdadm")
}

/// Schedulers that the first loop device could have.
fn schedulers() -> Vec<String> {
    let text = fs::read_to_string("/sys/block/loop0/queue/scheduler").unwrap_or_default();
    let bare = |word: &str| word.trim_matches(|c| c == '[' || c == ']').to_owned();
    text.split_whitespace().map(bare).collect()
}

/// Where short-lived files and the ledger are kept when nobody says otherwise: `BEDPLATE_STATE_DIR`,
/// else `/var/lib/bedplate` for root, else `~/.local/state/bedplate` (or as `XDG_STATE_HOME` says).
pub fn default_state_dir() -> PathBuf {
    let variable =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = variable("BEDPLATE_STATE_DIR") {
        return path;
    }
    if is_root() {
        return PathBuf::from("/var/lib/bedplate");
    }
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map_or_else(|| std::env::temp_dir().join("bedplate-state"), |dir| dir.join("bedplate"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn missing(reason: impl Into<String>, remedy: impl Into<String>) -> Availability {
    Availability::Missing { reason: reason.into(), remedy: remedy.into() }
}

fn tool(name: &str, package: &str) -> Availability {
    match command::find_tool(name) {
        Some(_) => Availability::Available,
        None => missing(format!("`{name}` is not installed"), format!("apt-get install {package}")),
    }
}

fn mkfs(file_system: FileSystem) -> Availability {
    let package = match file_system {
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => "e2fsprogs",
        FileSystem::Xfs => "xfsprogs",
        FileSystem::Btrfs => "btrfs-progs",
        FileSystem::F2fs => "f2fs-tools",
        FileSystem::Nilfs2 => "nilfs-tools",
    };
    tool(&format!("mkfs.{}", file_system.word()), package)
}

/// What implements ZFS here. OpenZFS is part of the kernel, zfs-fuse is a daemon.
async fn zfs() -> ZfsOffer {
    let lacking = |reason: &str, remedy: &str| ZfsOffer {
        pools: missing(reason, remedy),
        implementation: String::new(),
        properties: Vec::new(),
    };
    if command::find_tool("zpool").is_none() || command::find_tool("zfs").is_none() {
        return lacking(
            "neither OpenZFS nor zfs-fuse is installed",
            "install OpenZFS, which is not part of the kernel, and run `modprobe zfs`; or, slower, \
             `apt-get install zfs-fuse`",
        );
    }
    if command::ask(&["zpool", "list", "-H", "-o", "name"]).await.is_err() {
        return lacking(
            "`zpool list` reaches no ZFS",
            "run `modprobe zfs` for OpenZFS, or start `zfs-fuse`; both as root",
        );
    }
    // Asked for nothing, it fails and lists what it knows. zfs-fuse does not know of a version.
    let usage = command::ask(&["zfs", "get"]).await.err().and_then(|error| error.evidence);
    let open = command::ask(&["zpool", "--version"]).await.is_ok();
    ZfsOffer {
        pools: Availability::Available,
        implementation: if open { "OpenZFS" } else { "zfs-fuse" }.to_owned(),
        properties: zfs_properties(&usage.unwrap_or_default()),
    }
}

/// The properties that `zfs get` lists as ones to edit or inherit.
fn zfs_properties(usage: &str) -> Vec<String> {
    usage
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, edit, inherit, ..] = words[..] else { return None };
            let flags = [edit, inherit];
            (flags.contains(&"YES") && flags.iter().all(|flag| ["YES", "NO"].contains(flag)))
                .then(|| name.to_owned())
        })
        .collect()
}

/// Whether a Docker daemon answers, and whether it runs on this machine's kernel.
async fn docker() -> (Availability, bool) {
    let ask = async { docker::client()?.info().await };
    match tokio::time::timeout(DOCKER_TIMEOUT, ask).await {
        Ok(Ok(info)) => (Availability::Available, shares_kernel(&info)),
        Ok(Err(error)) => (no_docker(&error.message), false),
        Err(_) => {
            let cause = format!("it did not answer within {} s", DOCKER_TIMEOUT.as_secs());
            (no_docker(&cause), false)
        }
    }
}

/// Whether a daemon runs on the kernel of this machine, as far as its release tells.
pub(crate) fn shares_kernel(info: &bollard::plugin::SystemInfo) -> bool {
    info.kernel_version == Some(kernel_release())
}

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn no_docker(cause: &str) -> Availability {
    if std::env::var_os("DOCKER_HOST").is_some() {
        return missing(
            format!("the Docker daemon of DOCKER_HOST does not answer: {cause}"),
            "unset DOCKER_HOST, or make it name a daemon that answers",
        );
    }
    match std::os::unix::net::UnixStream::connect("/var/run/docker.sock") {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => missing(
            "the Docker daemon is not open to this user",
            "sudo usermod --append --groups docker $USER, and log in again",
        ),
        _ if command::find_tool("dockerd").is_none() => {
            missing("Docker is not installed", "apt-get install docker.io")
        }
        _ => missing("the Docker daemon does not run", "systemctl start docker"),
    }
}

/// Whether this process can attach loop devices.
fn loop_devices() -> Availability {
    if !is_root() {
        return missing("loop devices need root", "run as root, or use `site = \"docker\"`");
    }
    match fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => tool("losetup", "mount"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            missing("the kernel has no loop devices", "modprobe loop")
        }
        Err(error) => missing(
            format!("/dev/loop-control cannot be opened: {error}"),
            "run outside of a container, or in one that may use loop devices",
        ),
    }
}

/// File systems that the kernel can mount now, and those of [`FILESYSTEMS`] that it can load.
fn filesystems() -> Vec<String> {
    let mut found: BTreeSet<String> = fs::read_to_string("/proc/filesystems")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_whitespace().last().map(str::to_owned))
        .collect();
    let release = kernel_release();
    let list = |name: &str| {
        fs::read_to_string(format!("/lib/modules/{release}/{name}")).unwrap_or_default()
    };
    found.extend(modules(&list("modules.builtin")));
    found.extend(modules(&list("modules.dep")));
    found.extend(aliases(&list("modules.alias")));
    found.into_iter().collect()
}

/// The file systems that a list of aliases gives a module to: ext3 has none of its own name.
fn aliases(list: &str) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.strip_prefix("alias fs-")?.split(' ').next())
        .filter(|name| FILESYSTEMS.contains(name))
        .map(str::to_owned)
        .collect()
}

/// Those of [`FILESYSTEMS`] that a list of module files names.
fn modules(list: &str) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.split(':').next()?.rsplit('/').next()?.split(".ko").next())
        .filter(|name| FILESYSTEMS.contains(name))
        .map(str::to_owned)
        .collect()
}

/// What there is of each kind of database.
async fn engines() -> BTreeMap<EngineKind, EngineOffer> {
    let mut pins = images::pins();
    let mut engines = BTreeMap::new();
    for kind in EngineKind::ALL {
        let built = Image::ALL.into_iter().filter(|image| image.engine() == Some(kind));
        let offer = EngineOffer {
            binaries: binaries(kind).await,
            pinned_images: pins.remove(&kind).unwrap_or_default(),
            built_images: built.map(Image::tag).collect(),
        };
        engines.insert(kind, offer);
    }
    engines
}

/// The installations of a database: those on `PATH`, then those in the usual places, newest first.
async fn binaries(kind: EngineKind) -> Vec<Binaries> {
    let mut found: Vec<Binaries> = Vec::new();
    for dir in bin_dirs(kind) {
        let Ok(dir) = fs::canonicalize(dir) else { continue };
        let Ok((bin_dir, version)) = process::installation(kind, &dir).await else { continue };
        if !found.iter().any(|known| known.bin_dir == bin_dir) {
            found.push(Binaries { version: version.number, bin_dir });
        }
    }
    found
}

fn bin_dirs(kind: EngineKind) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // A link to a program stands for the directory that the program is in.
    let linked: Vec<PathBuf> = dirs
        .iter()
        .flat_map(|dir| process::server_names(kind).iter().map(move |name| dir.join(name)))
        .filter_map(|file| fs::canonicalize(file).ok()?.parent().map(Path::to_owned))
        .collect();
    dirs.extend(linked);
    match kind {
        EngineKind::Postgres => {
            let mut majors: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| {
                    let major = entry.file_name().to_str()?.parse().ok()?;
                    Some((major, entry.path().join("bin")))
                })
                .collect();
            majors.sort_by(|a, b| b.cmp(a));
            dirs.extend(majors.into_iter().map(|(_, dir)| dir));
            dirs.push("/usr/local/pgsql/bin".into());
        }
        EngineKind::MariaDb => {
            let usual = ["/usr/sbin", "/usr/bin", "/usr/local/mysql/bin", "/usr/local/mariadb/bin"];
            dirs.extend(usual.map(PathBuf::from));
        }
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_by_their_files() {
        let list = "kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz\n\
                    kernel/fs/btrfs/btrfs.ko: kernel/lib/raid6.ko\n\
                    kernel/fs/ext4/ext4.ko\nkernel/net/ipv6.ko:\n";
        assert_eq!(modules(list), ["xfs", "btrfs", "ext4"]);
        let list = "alias fs-ext3 ext4\nalias fs-ext2 ext4\nalias fs-nfs4 nfsv4\nalias ext3 ext4\n";
        assert_eq!(aliases(list), ["ext3", "ext2"]);
    }

    #[tokio::test]
    async fn this_machine_offers_something() {
        let offered = capabilities(Path::new("/tmp/bedplate-state"), None, &[]).await;
        assert!(offered.cpus >= 1);
        assert!(offered.memory_bytes > 0);
        assert!(offered.free_bytes > 0);
        assert!(offered.filesystems.iter().any(|name| name == "tmpfs"));
        for (kind, version) in [(EngineKind::Postgres, "13"), (EngineKind::MariaDb, "10.3")] {
            let offer = offered.engine(kind);
            assert!(offer.pinned_images.contains_key(version));
            assert_eq!(offer.built_images.len(), 1);
            for binaries in &offer.binaries {
                let number = |c: char| c.is_ascii_digit() || c == '.';
                assert!(binaries.version.chars().all(number), "{binaries:?}");
            }
        }
    }
}
