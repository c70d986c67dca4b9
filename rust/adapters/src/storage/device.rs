//! Block devices of this machine that are not ours: what they are, whether they are free, and taking away again
//! what a trial put on them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bedplate_core::capabilities::{Availability, DeviceOffer};
use bedplate_core::error::{Error, Result};

use crate::ledger::Ledger;
use crate::{command, mountinfo};

/// Where the kernel may show what a device is called wherever it is plugged in: serial numbers and world-wide
/// names of disks, the name of a mapped device, the file of a loop device.
const IDS: [&str; 6] =
    ["serial", "device/serial", "wwid", "device/wwid", "dm/uuid", "loop/backing_file"];

/// What is known of a device, and whether a file system may be made on it.
pub(crate) async fn look(path: &Path) -> DeviceOffer {
    let not =
        |reason: String, remedy: &str| Availability::Missing { reason, remedy: remedy.to_owned() };
    let Some(sys) = sysfs(path) else {
        let reason = format!("{} is not a block device", path.display());
        let available = not(reason, "see `lsblk` for those that there are");
        return DeviceOffer { bytes: 0, id: None, available };
    };
    let bytes = bytes(&sys);
    let id = id(&sys);
    let available = if id.is_none() {
        let reason = format!("{} has no serial number nor other name of its own", path.display());
        not(reason, "use a disk that has one: it is what tells it from all others")
    } else {
        match user(path, &sys).await {
            None => Availability::Available,
            Some(user) => not(
                format!("{} {user}", path.display()),
                "nothing that may hold data is touched: free the device, `wipefs -a` it yourself if \
                 nothing on it is needed, or name another",
            ),
        }
    };
    DeviceOffer { bytes, id, available }
}

/// The directory under /sys of the device that a path leads to.
fn sysfs(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok().filter(|it| it.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned()).filter(|it| !it.is_empty())
}

/// The size of a device, which the kernel counts in sectors of 512 bytes whatever its own are.
fn bytes(sys: &Path) -> u64 {
    let sectors = read(&sys.join("size")).and_then(|sectors| sectors.parse::<u64>().ok());
    sectors.unwrap_or(0) * 512
}

/// What a device is called; a partition is called after its disk.
fn id(sys: &Path) -> Option<String> {
    let named = |sys: &Path| IDS.iter().find_map(|file| read(&sys.join(file)));
    match read(&sys.join("partition")) {
        Some(number) => Some(format!("{}-part{number}", named(sys.parent()?)?)),
        None => named(sys),
    }
}

/// Who or what has the device, in words that follow its name.
async fn user(path: &Path, sys: &Path) -> Option<String> {
    let number = read(&sys.join("dev"))?;
    let number: Vec<u32> = number.split(':').filter_map(|part| part.parse().ok()).collect();
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    if let Some(mount) = mountinfo::mounts()
        .ok()?
        .iter()
        .find(|mount| [mount.device.0, mount.device.1] == number[..])
    {
        return Some(format!("is mounted at {}", mount.mount_point.display()));
    }
    if let Some(holder) = names(&sys.join("holders")).first() {
        return Some(format!("is part of {holder}"));
    }
    let parts = names(sys).into_iter().filter(|name| sys.join(name).join("partition").exists());
    if let Some(part) = parts.min() {
        return Some(format!("has the partition {part}"));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let same = |line: &&str| {
        sysfs(Path::new(line.split(' ').next().unwrap_or_default())).is_some_and(|it| it == sys)
    };
    if swaps.lines().skip(1).any(|line| same(&line)) {
        return Some("is swapped to".to_owned());
    }
    let shown = path.to_string_lossy();
    match signatures(&shown).await {
        Err(error) => Some(format!("cannot be read: {error}")),
        Ok(found) if found.is_empty() => exclusive(path),
        Ok(found) => Some(format!("holds something: {}", found.join(", "))),
    }
}

/// The kernel lets one user at a time have a device for itself: file systems, arrays and pools do.
fn exclusive(path: &Path) -> Option<String> {
    use rustix::fs::{Mode, OFlags, open};
    match open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => None,
        Err(error) => Some(format!("is in use: {error}")),
    }
}

/// The file systems, tables and members of arrays that a device has the marks of.
async fn signatures(device: &str) -> Result<Vec<String>> {
    let argv = ["wipefs", "--no-act", "--noheadings", "--output", "TYPE", device];
    let told = command::ask(&argv).await?.stdout;
    let mut found: Vec<String> = told.split_whitespace().map(str::to_owned).collect();
    found.dedup();
    Ok(found)
}

/// Takes away the marks of a file system that we made, so that the device is as free as it was. A name can mean
/// another device after a restart, and somebody may have used it since: then nothing is done.
pub(crate) async fn release(
    ledger: &Ledger,
    device: &Path,
    id_of_ours: &str,
    file_system: &str,
) -> Result<()> {
    let Some(sys) = sysfs(device) else { return Ok(()) };
    let shown = device.to_string_lossy();
    let found = signatures(&shown).await?;
    let ours = found.iter().all(|of| is_mark_of(of, file_system));
    if id(&sys).as_deref() != Some(id_of_ours) || found.is_empty() || !ours {
        return Ok(());
    }
    let argv = ["wipefs", "--all", "--quiet", shown.as_ref()];
    command::run(ledger, &argv)
        .await
        .map(|_| ())
        .map_err(|error| error.hint("end whatever uses the device, then `bedplate clean`"))
}

/// Whether a signature, in the words of `wipefs`, is of a file system of ours.
fn is_mark_of(signature: &str, file_system: &str) -> bool {
    match file_system {
        "zfs" => signature == "zfs_member",
        // ext2 with a journal is ext3 to who looks at it.
        "ext2" | "ext3" | "ext4" => signature.starts_with("ext"),
        other => signature == other,
    }
}

/// Facts of a device that is measured on.
pub(crate) fn facts(device: &Path) -> Result<Vec<(String, String)>> {
    let gone = || Error::provision(format!("{} is gone", device.display()));
    let sys = sysfs(device).ok_or_else(gone)?;
    // A partition has no queue of its own.
    let disk = if sys.join("partition").exists() { sys.parent().unwrap_or(&sys) } else { &sys };
    let of = |file: &str| read(&disk.join(file)).unwrap_or_else(|| "unknown".to_owned());
    let kib = of("queue/read_ahead_kb").parse::<u64>().unwrap_or(0);
    Ok(vec![
        ("device".to_owned(), device.display().to_string()),
        ("device_id".to_owned(), id(&sys).ok_or_else(gone)?),
        ("device_model".to_owned(), of("device/model")),
        ("device_rotational".to_owned(), of("queue/rotational")),
        ("device_write_cache".to_owned(), of("queue/write_cache")),
        ("device_scheduler".to_owned(), super::chosen(&of("queue/scheduler")).to_owned()),
        ("device_read_ahead_bytes".to_owned(), (kib * 1024).to_string()),
        ("device_bytes".to_owned(), bytes(&sys).to_string()),
    ])
}
