//! What a server's data directory lives on: what both sites share, and the volumes of this machine.

pub(crate) mod device;
mod local;
mod probe;
mod zfs;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{
    Ageing, Devices, FileSystem, Layout, LoopVolume, Plan, StorageKind, StoragePlan,
};
use bedplate_core::probe::Probe;
use bedplate_core::record::{Aged, VolumeFacts};
use bedplate_core::seam::{Contents, Room, Volume, VolumeLocation};
use bedplate_core::sizing::XFS_BYTES_MIN;

pub use local::LocalVolumes;

/// Ages the file system of a directory.
pub(crate) const AGE_SCRIPT: &str = include_str!("age.pl");

/// The arguments of [`AGE_SCRIPT`] after the directory.
pub(crate) fn age_arguments(ageing: Ageing, seed: u64) -> [String; 3] {
    // Perl's generator has a seed of 32 bits.
    let seed = (seed ^ (seed >> 32)) & 0xffff_ffff;
    [ageing.fullness_percent.to_string(), ageing.churn.to_string(), seed.to_string()]
}

/// What [`AGE_SCRIPT`] tells by the values of its keys.
pub(crate) fn aged<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<Aged> {
    let number = |key: &str| value(key)?.parse().ok();
    Some(Aged {
        files: number("files")?,
        written_bytes: number("written_bytes")?,
        used_bytes: number("used_bytes")?,
        bytes: number("all_bytes")?,
    })
}

/// Looks at the files in the directory that it is given.
pub(crate) const CONTENTS_SCRIPT: &str =
    concat!(include_str!("cached.sh"), include_str!("compress.sh"));
/// Has the kernel write and forget the files in the directories that it is given, and looks at the first.
pub(crate) const FORGET_SCRIPT: &str =
    concat!(include_str!("forget.sh"), include_str!("cached.sh"));

/// What [`CONTENTS_SCRIPT`] tells by the values of its keys.
pub(crate) fn contents<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Contents {
    Contents {
        cached_share: cached_share(&value),
        compressed_share: share(&value, "compressed_bytes", "sample_bytes"),
    }
}

/// What [`FORGET_SCRIPT`] tells. The kernel counts whole pages, files end within one.
pub(crate) fn cached_share<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<f64> {
    share(value, "cached_bytes", "bytes").map(|share| share.min(1.0))
}

fn share<'a>(value: impl Fn(&str) -> Option<&'a str>, part: &str, whole: &str) -> Option<f64> {
    let number = |key: &str| value(key)?.parse::<f64>().ok();
    Some(number(part)? / number(whole).filter(|whole| *whole > 0.0)?)
}

/// Room beside an image for the metadata of the file system that holds it.
pub(crate) const SLACK_BYTES: u64 = 16 << 20;

/// A file system on a loop device.
#[derive(Clone, Copy)]
pub(crate) struct LoopPlan<'a> {
    /// Its type, sizes and options.
    pub(crate) volume: &'a LoopVolume,
}

impl<'a> LoopPlan<'a> {
    /// The plan of a storage that is a loop volume.
    pub(crate) fn of(kind: &'a StorageKind) -> Option<Self> {
        match kind {
            StorageKind::Loop(volume) => Some(Self { volume }),
            StorageKind::Directory { .. }
            | StorageKind::Tmpfs { .. }
            | StorageKind::Zfs(_)
            | StorageKind::Existing => None,
        }
    }

    /// The type's name, for mkfs and mount.
    pub(crate) fn fs_type(&self) -> &'static str {
        self.volume.file_system.word()
    }

    /// Whether its devices are joined by md.
    pub(crate) fn needs_array(&self) -> bool {
        self.volume.devices.layout != Layout::Single && !self.volume.file_system.joins_devices()
    }

    /// Name of the mkfs tool.
    pub(crate) fn mkfs(&self) -> String {
        format!("mkfs.{}", self.fs_type())
    }

    /// The mkfs command, but for the device.
    ///
    /// Nothing is left to be initialised later, no block of the fully written image is given back,
    /// and the block size does not depend on the image's size.
    pub(crate) fn mkfs_command(&self) -> Vec<String> {
        let (mkfs, block_size) = (self.mkfs(), self.volume.block_size_bytes);
        let mut further = self.volume.mkfs_options.clone();
        let ours = match self.volume.file_system {
            FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => {
                let extended;
                (extended, further) = self.extended_options();
                format!("{mkfs} -F -q -T default -b {block_size} -E {extended}")
            }
            FileSystem::Xfs => format!("{mkfs} -f -q -K -b size={block_size}"),
            FileSystem::Btrfs => format!("{mkfs} -f -q -K -s {block_size}{}", self.profiles()),
            FileSystem::F2fs => format!("{mkfs} -f -q -t 0"),
            FileSystem::Nilfs2 => format!("{mkfs} -f -q -K -b {block_size}"),
        };
        ours.split(' ').map(str::to_owned).chain(further).collect()
    }

    /// What mkfs.btrfs is told of several devices. A stripe keeps two copies of its metadata, as
    /// mkfs.btrfs itself has it.
    fn profiles(&self) -> &'static str {
        match self.volume.devices.layout {
            Layout::Raid0 => " -d raid0 -m raid1",
            Layout::Raid1 => " -d raid1 -m raid1",
            Layout::Raid10 => " -d raid10 -m raid10",
            Layout::Single | Layout::Raidz => "",
        }
    }

    /// The mount options; btrfs is told of all its devices, for it knows only those it has scanned.
    pub(crate) fn mount_options(&self, devices: &[String]) -> String {
        let several = if devices.len() > 1 { devices } else { &[] };
        let named = several.iter().map(|device| format!("device={device}"));
        let mut options = self.volume.mount_options.clone();
        options.extend(named);
        options.join(",")
    }

    /// What mke2fs is told with -E, and the other options. It heeds only the last -E, so the user's
    /// must not displace ours.
    fn extended_options(&self) -> (String, Vec<String>) {
        let mut extended = "lazy_itable_init=0,lazy_journal_init=0,nodiscard".to_owned();
        let mut further = Vec::new();
        let mut options = self.volume.mkfs_options.iter();
        while let Some(option) = options.next() {
            let more = match option.strip_prefix("-E") {
                Some("") => options.next().map(String::as_str),
                Some(attached) => Some(attached),
                None => {
                    further.push(option.clone());
                    continue;
                }
            };
            if let Some(more) = more {
                extended = format!("{extended},{more}");
            }
        }
        (extended, further)
    }

    /// Checks that what was read back is what was asked for.
    pub(crate) fn check(&self, facts: &BTreeMap<String, String>) -> Result<()> {
        let volume = self.volume;
        let mut asked = vec![
            ("fs_type", self.fs_type().to_owned()),
            ("block_size_bytes", volume.block_size_bytes.to_string()),
        ];
        if volume.file_system == FileSystem::Btrfs {
            asked.push(("nodatacow", volume.nodatacow.to_string()));
            // Profiles that the user asked mkfs for are not compared, but told like all facts.
            if volume.mkfs_options.is_empty() {
                asked.push(("data_profile", volume.devices.layout.word().to_owned()));
            }
        }
        for (fact, asked) in asked {
            let found = facts.get(fact).map_or("nothing", String::as_str);
            if found != asked {
                return Err(Error::provision(format!(
                    "the volume was made with {fact} {asked}, but has {found}"
                )));
            }
        }
        Ok(())
    }
}

/// The storages of a plan, each once.
pub(crate) fn storages(plan: &Plan) -> Vec<&StoragePlan> {
    let mut seen: Vec<&StoragePlan> = Vec::new();
    for cell in &plan.cells {
        if !seen.contains(&&cell.storage) {
            seen.push(&cell.storage);
        }
    }
    seen
}

/// Refuses a file system that is too small to be made, or for which there is no room.
pub(crate) fn check_size(
    label: &str,
    plan: LoopPlan<'_>,
    place: &str,
    free_bytes: u64,
) -> Result<()> {
    let devices = &plan.volume.devices;
    let size = devices.size_bytes;
    if plan.volume.file_system == FileSystem::Xfs && size < XFS_BYTES_MIN {
        return Err(Error::spec(format!(
            "`storage.size` of `{label}` is {}, but xfs needs at least {}",
            bytes(size),
            bytes(XFS_BYTES_MIN)
        )));
    }
    check_free(label, devices.bytes(), place, free_bytes)
}

/// Refuses images for which there is no room.
pub(crate) fn check_free(label: &str, size: u64, place: &str, free_bytes: u64) -> Result<()> {
    if size.saturating_add(SLACK_BYTES) > free_bytes {
        return Err(Error::provision(format!(
            "`storage.size` of `{label}` is {}, but {place} has {} free",
            bytes(size),
            bytes(free_bytes)
        ))
        .hint("make the volume smaller, or some room"));
    }
    Ok(())
}

/// Refuses a tmpfs that is larger than the memory.
pub(crate) fn check_tmpfs(storage: &StoragePlan, memory_bytes: u64) -> Result<()> {
    match storage.kind {
        StorageKind::Tmpfs { size_bytes } if size_bytes > memory_bytes => {
            Err(Error::provision(format!(
                "`storage.size` of `{}` is {}, but {} of memory are available",
                storage.label,
                bytes(size_bytes),
                bytes(memory_bytes)
            ))
            .hint("make the tmpfs smaller"))
        }
        _ => Ok(()),
    }
}

/// A size in words.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64 / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{} {unit}", (value * 10.0).round() / 10.0)
}

/// The scheduler that is chosen in a line like `[none] mq-deadline`.
pub(crate) fn chosen(schedulers: &str) -> &str {
    let chosen = |word: &'_ str| word.starts_with('[') && word.ends_with(']');
    let mut words = schedulers.split_whitespace();
    words.find(|word| chosen(word)).map_or(schedulers.trim(), |word| &word[1..word.len() - 1])
}

/// What all devices of a volume have, or what each has where they differ.
pub(crate) fn of_all(mut values: Vec<String>) -> String {
    if values.windows(2).all(|pair| pair[0] == pair[1]) {
        values.truncate(1);
    }
    values.join(" ")
}

/// Checks that the devices were set up as they were asked for.
pub(crate) fn check_devices(asked: &Devices, found: &VolumeFacts) -> Result<()> {
    let read_ahead = asked.read_ahead_bytes.map(|bytes| bytes.to_string());
    // Without a scheduler is what a device is made; where there is no such choice, a caveat says so.
    let scheduler = Some(&asked.scheduler).filter(|scheduler| *scheduler != "none");
    for (key, fact, asked) in [
        ("scheduler", "loop_scheduler", scheduler),
        ("read_ahead", "loop_read_ahead_bytes", read_ahead.as_ref()),
    ] {
        let found = found.facts.get(fact).map_or("nothing", String::as_str);
        if let Some(asked) = asked.filter(|asked| *asked != found) {
            return Err(Error::provision(format!(
                "`storage.{key}` is {asked}, but the loop device has {found}"
            )));
        }
    }
    Ok(())
}

/// What speaks against a loop volume's numbers, whose devices were asked for so.
pub(crate) fn loop_caveats(asked: &Devices, facts: &VolumeFacts) -> Vec<String> {
    let fact = |key: &str| facts.facts.get(key).map_or("", String::as_str);
    let number = |key: &str| fact(key).parse::<u64>().ok();
    let mut caveats = Vec::new();
    if fact("loop_direct_io") != "1" {
        caveats.push(
            "the loop device does not use direct I/O: writes pass through the page cache twice"
                .to_owned(),
        );
    }
    if fact("loop_write_cache") != "write back" {
        caveats.push(format!(
            "the loop device's write cache is \"{}\": flushes are dropped, nothing is durable",
            fact("loop_write_cache")
        ));
    }
    if fact("loop_scheduler") != asked.scheduler {
        caveats.push(format!("the loop device's scheduler is {}", fact("loop_scheduler")));
    }
    if fact("mount_options").split(',').any(|option| ["nobarrier", "barrier=0"].contains(&option)) {
        caveats.push("the file system sends no flushes: a commit is not durable".to_owned());
    }
    if number("image_allocated_bytes") < number("image_bytes") {
        caveats.push("an image file is sparse: first writes allocate blocks".to_owned());
    }
    caveats.extend(backing_caveat("the image file", fact("backing_fs_type")));
    caveats
}

/// What speaks against the file system that `what` lies on.
pub(crate) fn backing_caveat(what: &str, fs_type: &str) -> Option<String> {
    match fs_type {
        "tmpfs" | "ramfs" => Some(format!("{what} lives in memory: nothing is durable")),
        "overlay" | "aufs" => Some(format!("{what} lies on {fs_type}, a container's own layer")),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "virtiofs" | "ceph" => {
            Some(format!("{what} lies on {fs_type}: the network is measured with it"))
        }
        fuse if fuse.starts_with("fuse") => {
            Some(format!("{what} lies on {fuse}, a file system outside the kernel"))
        }
        _ => None,
    }
}

/// The caveat of every tmpfs.
pub(crate) const TMPFS_CAVEAT: &str = "data lives in memory: nothing is durable";

/// The storage of a server that exists already.
pub(crate) struct ExistingVolume;

#[async_trait]
impl Volume for ExistingVolume {
    fn location(&self) -> VolumeLocation {
        VolumeLocation::Existing
    }

    async fn facts(&self) -> Result<VolumeFacts> {
        let caveat = "the storage under an existing server is not known".to_owned();
        Ok(VolumeFacts { caveats: vec![caveat], ..VolumeFacts::default() })
    }

    fn devices(&self) -> Vec<Vec<String>> {
        Vec::new()
    }

    async fn room(&self) -> Option<Room> {
        None
    }

    async fn probe(&self) -> Result<Option<Probe>> {
        Ok(None)
    }

    async fn age(&self, _: Ageing, _: u64) -> Result<Aged> {
        Err(Error::provision("the storage of a server that exists already is not aged"))
    }

    async fn contents(&self) -> Contents {
        Contents::default()
    }

    async fn forget(&self) -> Result<Option<f64>> {
        Err(Error::provision("the files of a server that exists already cannot be forgotten"))
    }

    async fn settle(&self, _: Duration) -> Result<bool> {
        // There is nothing that could be watched, and the caveat above says so.
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(size_bytes: u64) -> Devices {
        Devices::new(size_bytes, Layout::Single, 1)
    }

    fn mkfs_command(file_system: FileSystem, mkfs_options: &[&str]) -> String {
        let volume = LoopVolume {
            file_system,
            devices: devices(400 << 20),
            block_size_bytes: 2048,
            nodatacow: false,
            mkfs_options: mkfs_options.iter().map(|option| (*option).to_owned()).collect(),
            mount_options: Vec::new(),
        };
        LoopPlan { volume: &volume }.mkfs_command().join(" ")
    }

    #[test]
    fn a_users_extended_option_does_not_displace_ours() {
        assert_eq!(
            mkfs_command(FileSystem::Ext4, &["-E", "stride=4", "-O", "^has_journal"]),
            "mkfs.ext4 -F -q -T default -b 2048 \
             -E lazy_itable_init=0,lazy_journal_init=0,nodiscard,stride=4 -O ^has_journal"
        );
    }

    #[test]
    fn the_family_of_ext_is_made_alike() {
        assert_eq!(
            mkfs_command(FileSystem::Ext3, &["-J", "size=16"]),
            "mkfs.ext3 -F -q -T default -b 2048 \
             -E lazy_itable_init=0,lazy_journal_init=0,nodiscard -J size=16"
        );
    }

    #[test]
    fn xfs_is_made_without_discards() {
        let command = mkfs_command(FileSystem::Xfs, &["-m", "reflink=0"]);
        assert_eq!(command, "mkfs.xfs -f -q -K -b size=2048 -m reflink=0");
    }

    #[test]
    fn sizes_are_shown_in_words() {
        assert_eq!(bytes(300 << 20), "300 MiB");
        assert_eq!(bytes(24 << 30), "24 GiB");
        assert_eq!(bytes((3 << 30) / 2), "1.5 GiB");
    }

    #[test]
    fn the_chosen_scheduler_is_the_bracketed_one() {
        assert_eq!(chosen("[none] mq-deadline kyber bfq\n"), "none");
        assert_eq!(chosen("none mq-deadline [bfq]"), "bfq");
    }

    #[test]
    fn a_loop_volume_that_deviates_is_named() {
        let mut facts = VolumeFacts::default();
        for (key, value) in [
            ("loop_direct_io", "0"),
            ("loop_write_cache", "write through"),
            ("loop_scheduler", "bfq"),
            ("image_bytes", "4096"),
            ("image_allocated_bytes", "0"),
            ("backing_fs_type", "tmpfs"),
            ("mount_options", "rw,noatime,nobarrier"),
        ] {
            facts.facts.insert(key.to_owned(), value.to_owned());
        }
        let asked = devices(400 << 20);
        assert_eq!(loop_caveats(&asked, &facts).len(), 6);
        facts.facts.insert("loop_scheduler".into(), "kyber".into());
        let asked = Devices { scheduler: "kyber".into(), ..asked };
        assert_eq!(loop_caveats(&asked, &facts).len(), 5);
        check_devices(&asked, &facts).unwrap();
        let asked = Devices { read_ahead_bytes: Some(8192), ..asked };
        let error = check_devices(&asked, &facts).unwrap_err();
        assert!(error.message.contains("`storage.read_ahead` is 8192"), "{error}");
    }
}
