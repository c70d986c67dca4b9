//! Volumes of this machine; all but a plain directory need root.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{
    Ageing, Device, Devices, FileSystem, Layout, LoopVolume, Plan, StorageKind, StoragePlan,
    ZfsVolume,
};
use bedplate_core::probe::Probe;
use bedplate_core::record::{Aged, TrialId, VolumeFacts};
use bedplate_core::seam::{Contents, Room, Volume, VolumeLocation};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use tokio::time::{Instant, sleep};

use crate::ledger::{Ledger, Resource};
use crate::storage::zfs::{self, Pool};
use crate::storage::{
    AGE_SCRIPT, CONTENTS_SCRIPT, ExistingVolume, FORGET_SCRIPT, LoopPlan, TMPFS_CAVEAT,
    age_arguments, aged, backing_caveat, cached_share, check_devices, check_free, check_size,
    check_tmpfs, chosen, contents, loop_caveats, of_all, storages,
};
use crate::storage::{device, probe};
use crate::undo::{arrays_on, loop_devices};
use crate::{command, mountinfo};

/// How often a busy device is looked at, and how often in a row it must be found idle.
const SETTLE_POLL: Duration = Duration::from_millis(100);
const SETTLE_POLLS: u32 = 10;

/// Makes volumes on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalVolumes;

impl LocalVolumes {
    /// Checks that every storage of the plan can be made here: privilege, tools, room.
    ///
    /// # Errors
    /// The first thing that is missing, with the step that brings it.
    pub fn preflight(&self, plan: &Plan) -> Result<()> {
        for storage in storages(plan) {
            if matches!(storage.kind, StorageKind::Tmpfs { .. }) {
                require_root(&storage.label)?;
                command::require_tool("mount")?;
                check_tmpfs(storage, available_memory_bytes())?;
            }
            if let Some(plan_of_loop) = LoopPlan::of(&storage.kind) {
                require_root(&storage.label)?;
                for tool in ["dd", "losetup", "mount", "setpriv", &plan_of_loop.mkfs()] {
                    command::require_tool(tool)?;
                }
                if plan_of_loop.needs_array() {
                    command::require_tool("mdadm")?;
                }
                let (place, free_bytes) = room(&plan.work_dir)?;
                check_size(&storage.label, plan_of_loop, &place, free_bytes)?;
            }
            if let StorageKind::Zfs(volume) = &storage.kind {
                require_root(&storage.label)?;
                for tool in ["dd", "losetup", "setpriv", "zpool", "zfs"] {
                    command::require_tool(tool)?;
                }
                let (place, free_bytes) = room(&plan.work_dir)?;
                check_free(&storage.label, volume.devices.bytes(), &place, free_bytes)?;
            }
            if let StorageKind::Directory { path } = &storage.kind
                && !path.is_dir()
                && !path.starts_with(&plan.work_dir)
            {
                return Err(no_directory(path));
            }
        }
        Ok(())
    }

    /// Makes the volume of a trial; every step is on the ledger before it is taken.
    ///
    /// # Errors
    /// When a step fails. What was made until then is on the ledger.
    pub async fn create(
        &self,
        ledger: &Ledger,
        id: &TrialId,
        storage: &StoragePlan,
        work_dir: &Path,
    ) -> Result<Box<dyn Volume>> {
        let trial = id.resource_name();
        match &storage.kind {
            StorageKind::Existing => Ok(Box::new(ExistingVolume)),
            StorageKind::Directory { path } => {
                if !path.is_dir() && !path.starts_with(work_dir) {
                    return Err(no_directory(path));
                }
                let path = make_root(ledger, &trial, path)?;
                Ok(Box::new(LocalVolume { path, kind: Kind::Directory }))
            }
            StorageKind::Tmpfs { size_bytes } => {
                require_root(&storage.label)?;
                check_tmpfs(storage, available_memory_bytes())?;
                let root = make_root(ledger, &trial, work_dir)?;
                let options = format!("size={size_bytes},mode=0755");
                let path = mount(ledger, &trial, &root, "tmpfs", "tmpfs", &options).await?;
                Ok(Box::new(LocalVolume { path, kind: Kind::Tmpfs }))
            }
            StorageKind::Loop(volume) => {
                let plan = LoopPlan { volume };
                require_root(&storage.label)?;
                let (place, free_bytes) = room(work_dir)?;
                check_size(&storage.label, plan, &place, free_bytes)?;
                let root = make_root(ledger, &trial, work_dir)?;
                let volume = make_loop(ledger, &trial, &root, plan).await?;
                // A mismatch is to be known before anything is measured on it.
                volume.facts().await?;
                Ok(Box::new(volume))
            }
            StorageKind::Zfs(volume) => {
                require_root(&storage.label)?;
                let (place, free_bytes) = room(work_dir)?;
                check_free(&storage.label, volume.devices.bytes(), &place, free_bytes)?;
                let root = make_root(ledger, &trial, work_dir)?;
                let volume = make_pool(ledger, &trial, &root, volume).await?;
                volume.facts().await?;
                Ok(Box::new(volume))
            }
        }
    }
}

struct LocalVolume {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    Directory,
    Tmpfs,
    Loop(Box<LoopDevices>),
}

struct LoopDevices {
    content: Content,
    devices: Vec<Attached>,
    /// The array of md that joins them, where the file system does not.
    array: Option<String>,
    mkfs_command: String,
    mkfs_version: String,
}

/// A block device, and the image that it was made of.
struct Attached {
    device: String,
    /// None where the device is one of this machine's own.
    image: Option<PathBuf>,
}

/// What the devices hold.
enum Content {
    FileSystem(LoopVolume),
    Pool(Pool),
}

impl Content {
    /// The devices that were asked for.
    fn devices(&self) -> &Devices {
        match self {
            Self::FileSystem(volume) => &volume.devices,
            Self::Pool(pool) => &pool.volume.devices,
        }
    }
}

#[async_trait]
impl Volume for LocalVolume {
    fn location(&self) -> VolumeLocation {
        VolumeLocation::Path(self.path.clone())
    }

    async fn facts(&self) -> Result<VolumeFacts> {
        let mounts = mountinfo::mounts()?;
        let held = |path: &Path| {
            mountinfo::holding(&mounts, path)
                .cloned()
                .ok_or_else(|| Error::provision(format!("no mount holds {}", path.display())))
        };
        let mount = held(&self.path)?;
        let block_size = rustix::fs::statvfs(&self.path)
            .map_err(|error| unreadable(&self.path, &error.into()))?
            .f_bsize;
        let mut facts = BTreeMap::from([
            ("fs_type".to_owned(), mount.fs_type.clone()),
            ("mount_options".to_owned(), mount.options.join(",")),
            ("block_size_bytes".to_owned(), block_size.to_string()),
        ]);
        let mut put = |key: &str, value: String| facts.insert(key.to_owned(), value);
        match &self.kind {
            Kind::Directory => {
                put("backing_fs_type", mount.fs_type.clone());
                put("backing_mount_options", mount.options.join(","));
                let device = device_under(&self.path)?;
                if let Some(cache) = device.and_then(|device| probe::write_cache(&device)) {
                    put("device_write_cache", cache);
                }
                let mut caveats: Vec<_> =
                    backing_caveat("the directory", &mount.fs_type).into_iter().collect();
                if mount.mount_point == Path::new("/") {
                    caveats.push(
                        "the directory shares its file system with the rest of this machine"
                            .to_owned(),
                    );
                }
                Ok(VolumeFacts { facts, caveats })
            }
            Kind::Tmpfs => Ok(VolumeFacts { facts, caveats: vec![TMPFS_CAVEAT.to_owned()] }),
            Kind::Loop(made) => {
                let mounted = match &made.content {
                    Content::FileSystem(_) => made.has(&mount.source),
                    Content::Pool(pool) => mount.source == pool.name,
                };
                if mount.mount_point != self.path || !mounted {
                    return Err(Error::provision(format!(
                        "{} is not mounted at {}",
                        made.names(),
                        self.path.display()
                    )));
                }
                let (mut bytes, mut allocated_bytes) = (0, 0);
                for (image, device) in made.images() {
                    if loop_devices(image)? != [Path::new(device)] {
                        return Err(Error::provision(format!(
                            "{device} is not the one device of {}",
                            image.display()
                        )));
                    }
                    let image = fs::metadata(image).map_err(|error| unreadable(image, &error))?;
                    bytes += image.len();
                    allocated_bytes += image.blocks() * 512;
                }
                put("mkfs_version", made.mkfs_version.clone());
                put("mkfs_command", made.mkfs_command.clone());
                if let Some((image, _)) = made.images().next() {
                    let backing = held(image)?;
                    put("image_bytes", bytes.to_string());
                    put("image_allocated_bytes", allocated_bytes.to_string());
                    put("loop_device", made.names());
                    put("loop_direct_io", made.sysfs("loop/dio")?);
                    put("loop_write_cache", made.sysfs("queue/write_cache")?);
                    put("loop_scheduler", chosen(&made.sysfs("queue/scheduler")?).to_owned());
                    put("loop_read_ahead_bytes", made.read_ahead_bytes()?);
                    put("backing_fs_type", backing.fs_type);
                    put("backing_mount_options", backing.options.join(","));
                } else {
                    facts.extend(device::facts(Path::new(&made.devices[0].device))?);
                }
                match &made.content {
                    Content::FileSystem(volume) => {
                        if volume.file_system == FileSystem::Btrfs {
                            facts.extend(btrfs_facts(&self.path, &made.devices[0].device)?);
                        }
                        if let Some(array) = &made.array {
                            facts.extend(array_facts(array, &volume.devices)?);
                        }
                        LoopPlan { volume }.check(&facts)?;
                    }
                    Content::Pool(pool) => facts.extend(pool.facts().await?),
                }
                let mut facts = VolumeFacts { facts, caveats: Vec::new() };
                let asked = made.content.devices();
                if asked.device.is_none() {
                    check_devices(asked, &facts)?;
                    facts.caveats = loop_caveats(asked, &facts);
                }
                facts.caveats.extend(backing_caveat("the database", &mount.fs_type));
                Ok(facts)
            }
        }
    }

    fn devices(&self) -> Vec<Vec<String>> {
        match &self.kind {
            Kind::Loop(made) => {
                let names: Vec<String> =
                    made.devices.iter().map(|it| short_name(&it.device).to_owned()).collect();
                match &made.content {
                    Content::FileSystem(_) => vec![names],
                    Content::Pool(pool) => pool.groups(&names).map(<[String]>::to_vec).collect(),
                }
            }
            Kind::Directory => {
                device_under(&self.path).ok().flatten().into_iter().map(|it| vec![it]).collect()
            }
            Kind::Tmpfs => Vec::new(),
        }
    }

    async fn room(&self) -> Option<Room> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some(Room {
            bytes: stat.f_blocks * stat.f_frsize,
            used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }

    async fn age(&self, ageing: Ageing, seed: u64) -> Result<Aged> {
        let mut argv = ["perl", "-e", AGE_SCRIPT].map(str::to_owned).to_vec();
        argv.push(self.path.to_string_lossy().into_owned());
        argv.extend(age_arguments(ageing, seed));
        let told = command::ask(&argv).await?.stdout;
        aged(|key| command::value(&told, key)).ok_or_else(|| {
            Error::provision("the ageing did not tell what it left").evidence(told.trim())
        })
    }

    async fn probe(&self) -> Result<Option<Probe>> {
        let (path, devices) = (self.path.clone(), self.devices());
        let backing: Vec<Vec<String>> = match &self.kind {
            Kind::Loop(made) => match made.images().next() {
                Some((image, _)) => device_under(image)?.into_iter().map(|it| vec![it]).collect(),
                None => Vec::new(),
            },
            Kind::Directory | Kind::Tmpfs => Vec::new(),
        };
        let probing = tokio::task::spawn_blocking(move || probe::probe(&path, &devices, &backing));
        let probed = probing.await.map_err(io::Error::other).flatten().map_err(|error| {
            Error::provision(format!("cannot probe {}: {error}", self.path.display()))
        })?;
        Ok(Some(probed))
    }

    async fn contents(&self) -> Contents {
        let directory = self.path.to_string_lossy();
        let argv = ["sh", "-euc", CONTENTS_SCRIPT, "contents", directory.as_ref()];
        let told = command::ask(&argv).await.map(|output| output.stdout).unwrap_or_default();
        contents(|key| command::value(&told, key))
    }

    async fn forget(&self) -> Result<Option<f64>> {
        let mut paths = vec![self.path.as_path()];
        if let Kind::Loop(made) = &self.kind {
            // They are in memory themselves where a loop device does without direct I/O.
            paths.extend(made.images().map(|(image, _)| image));
        }
        let mut argv = ["sh", "-euc", FORGET_SCRIPT, "forget"].map(str::to_owned).to_vec();
        argv.extend(paths.into_iter().map(|path| path.to_string_lossy().into_owned()));
        let told = command::ask(&argv).await?.stdout;
        Ok(cached_share(|key| command::value(&told, key)))
    }

    async fn settle(&self, at_most: Duration) -> Result<bool> {
        if matches!(self.kind, Kind::Tmpfs) {
            return Ok(true);
        }
        let deadline = Instant::now() + at_most;
        let path = self.path.clone();
        let synced = tokio::task::spawn_blocking(move || {
            let dir = fs::File::open(path)?;
            Ok(rustix::fs::syncfs(dir)?)
        });
        synced
            .await
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| unreadable(&self.path, &error))?;
        let devices = self.devices().concat();
        if devices.is_empty() {
            return Ok(false);
        }
        let (mut idle, mut last) = (0, Vec::new());
        while Instant::now() < deadline {
            let mut written = Vec::new();
            let mut in_flight = false;
            for device in &devices {
                let stat = sysfs_of(device).join("stat");
                let text = fs::read_to_string(&stat).map_err(|error| unreadable(&stat, &error))?;
                // Sectors written and requests in flight are the 7th and the 9th field.
                let fields: Vec<&str> = text.split_whitespace().collect();
                let (Some(sectors), Some(requests)) = (fields.get(6), fields.get(8)) else {
                    return Ok(false);
                };
                written.push((*sectors).to_owned());
                in_flight |= *requests != "0";
            }
            idle = if !in_flight && written == last { idle + 1 } else { 0 };
            last = written;
            if idle >= SETTLE_POLLS {
                return Ok(true);
            }
            sleep(SETTLE_POLL).await;
        }
        Ok(false)
    }
}

impl LoopDevices {
    /// Whether one of the devices is `source`.
    fn has(&self, source: &str) -> bool {
        match &self.array {
            Some(array) => array == source,
            None => self.devices.iter().any(|it| same_device(&it.device, source)),
        }
    }

    /// Each image and the device that it is attached to.
    fn images(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.devices.iter().filter_map(|it| Some((it.image.as_deref()?, it.device.as_str())))
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.devices.iter().map(|it| it.device.as_str()).collect();
        names.join(" ")
    }

    /// What a file under /sys says of all devices.
    fn sysfs(&self, file: &str) -> Result<String> {
        Ok(of_all(self.sysfs_of_each(file)?))
    }

    fn sysfs_of_each(&self, file: &str) -> Result<Vec<String>> {
        self.devices.iter().map(|it| read_line(&sysfs_of(&it.device).join(file))).collect()
    }

    /// The kernel counts in KiB.
    fn read_ahead_bytes(&self) -> Result<String> {
        let kib = self.sysfs_of_each("queue/read_ahead_kb")?;
        let bytes =
            |kib: &String| kib.parse::<u64>().map_or(kib.clone(), |kib| (kib * 1024).to_string());
        Ok(of_all(kib.iter().map(bytes).collect()))
    }
}

/// How btrfs keeps data and metadata on its devices, and whether files of the volume are written in
/// place.
fn btrfs_facts(path: &Path, device: &str) -> Result<Vec<(String, String)>> {
    let root = Path::new("/sys/fs/btrfs");
    let failed = |error: io::Error| unreadable(root, &error);
    let name = short_name(device);
    let mut known = fs::read_dir(root).map_err(failed)?.flatten().map(|entry| entry.path());
    let ours = known.find(|directory| directory.join("devices").join(name).exists());
    let ours = ours.ok_or_else(|| Error::provision(format!("btrfs does not know {device}")))?;
    let mut facts = Vec::new();
    for (what, fact) in [("data", "data_profile"), ("metadata", "metadata_profile")] {
        let mut profiles = Vec::new();
        let directory = ours.join("allocation").join(what);
        for entry in fs::read_dir(&directory).map_err(|error| unreadable(&directory, &error))? {
            let profile = entry.map_err(failed)?.path();
            // A profile without a block group is what mkfs started with.
            if profile.is_dir() && read_line(&profile.join("total_bytes"))? != "0" {
                profiles.extend(profile.file_name().map(|it| it.to_string_lossy().into_owned()));
            }
        }
        profiles.sort();
        facts.push((fact.to_owned(), profiles.join(" ")));
    }
    let nodatacow = attributes(path)?.contains(IFlags::NOCOW);
    facts.push(("nodatacow".to_owned(), nodatacow.to_string()));
    Ok(facts)
}

fn attributes(path: &Path) -> Result<IFlags> {
    let directory = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    ioctl_getflags(directory).map_err(|error| unreadable(path, &error.into()))
}

/// Has files that will be made under `path`, which is empty, written in place.
fn set_nodatacow(path: &Path) -> Result<()> {
    let flags = attributes(path)? | IFlags::NOCOW;
    let set = || Ok(ioctl_setflags(fs::File::open(path)?, flags)?);
    set().map_err(|error: io::Error| {
        let path = path.display();
        Error::provision(format!("cannot set the attribute nodatacow of {path}: {error}"))
    })
}

fn read_line(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    Ok(text.trim().to_owned())
}

/// Whether two names are of one device: the kernel names a mount's source by its own name for it.
fn same_device(one: &str, other: &str) -> bool {
    let number = |name: &str| fs::metadata(name).map(|metadata| metadata.rdev()).ok();
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

fn short_name(device: &str) -> &str {
    device.trim_start_matches("/dev/")
}

fn sysfs_of(device: &str) -> PathBuf {
    Path::new("/sys/class/block").join(short_name(device))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::provision(format!("cannot read {}: {error}", path.display()))
}

fn no_directory(path: &Path) -> Error {
    Error::provision(format!("the directory `{}` of `storage.path` does not exist", path.display()))
        .hint(format!("mkdir -p {}", path.display()))
}

fn require_root(label: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::provision(format!("storage `{label}` needs root at site `local`"))
        .hint("use `site = \"docker\"`, run as root, or use a storage of kind `directory`"))
}

/// The memory that can be had without swapping.
fn available_memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

/// The place whose file system will hold images, and what is free there in bytes.
fn room(work_dir: &Path) -> Result<(String, u64)> {
    // The work directory itself may still have to be made.
    let mut place = work_dir;
    while !place.exists() {
        let Some(parent) = place.parent() else { break };
        place = parent;
    }
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let stat = rustix::fs::statvfs(place).map_err(|error| unreadable(place, &error.into()))?;
    Ok((place.display().to_string(), stat.f_bavail * stat.f_frsize))
}

/// Makes the trial's own directory under `parent`; its path has no symbolic links.
fn make_root(ledger: &Ledger, trial: &str, parent: &Path) -> Result<PathBuf> {
    let failed = |error: io::Error| {
        Error::provision(format!("cannot make a directory in {}: {error}", parent.display()))
            .hint("give a `work_dir` that can be written")
    };
    fs::create_dir_all(parent).map_err(failed)?;
    let root = parent.canonicalize().map_err(failed)?.join(trial);
    // What exists already is not ours, and must not get onto the ledger.
    if root.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    ledger.add(trial, Resource::Directory { path: root.clone() })?;
    fs::DirBuilder::new().mode(0o755).create(&root).map_err(failed)?;
    Ok(root)
}

async fn mount(
    ledger: &Ledger,
    trial: &str,
    root: &Path,
    fs_type: &str,
    source: &str,
    options: &str,
) -> Result<PathBuf> {
    let path = root.join("mount");
    fs::DirBuilder::new()
        .mode(0o755)
        .create(&path)
        .map_err(|error| Error::provision(format!("cannot make {}: {error}", path.display())))?;
    ledger.add(trial, Resource::Mount { path: path.clone() })?;
    let target = path.to_string_lossy().into_owned();
    let mut argv = vec!["mount", "-t", fs_type];
    if !options.is_empty() {
        argv.extend(["-o", options]);
    }
    argv.extend([source, target.as_str()]);
    command::run(ledger, &argv).await?;
    Ok(path)
}

async fn make_loop(
    ledger: &Ledger,
    trial: &str,
    root: &Path,
    plan: LoopPlan<'_>,
) -> Result<LocalVolume> {
    let volume = plan.volume;
    let devices = make_devices(ledger, trial, root, &volume.devices, plan.fs_type()).await?;
    let names: Vec<String> = devices.iter().map(|it| it.device.clone()).collect();
    let array = match plan.needs_array() {
        true => Some(make_array(ledger, trial, &devices, &volume.devices).await?),
        false => None,
    };
    let names = array.as_ref().map_or(names, |array| vec![array.clone()]);

    let version = command::ask(&[plan.mkfs().as_str(), "-V"]).await?;
    let version = format!("{}{}", version.stdout, version.stderr);
    let mut mkfs = plan.mkfs_command();
    mkfs.extend(names.iter().cloned());
    command::run(ledger, &mkfs).await?;
    let options = plan.mount_options(&names);
    let path = mount(ledger, trial, root, plan.fs_type(), &names[0], &options).await?;
    if volume.nodatacow {
        set_nodatacow(&path)?;
    }
    let made = LoopDevices {
        content: Content::FileSystem(volume.clone()),
        devices,
        array,
        mkfs_command: mkfs.join(" "),
        mkfs_version: version.lines().next().unwrap_or_default().trim().to_owned(),
    };
    Ok(LocalVolume { path, kind: Kind::Loop(Box::new(made)) })
}

/// Writes so many images and attaches a loop device to each, or takes the device that is lent.
async fn make_devices(
    ledger: &Ledger,
    trial: &str,
    root: &Path,
    plan: &Devices,
    file_system: &str,
) -> Result<Vec<Attached>> {
    if let Some(lent) = &plan.device {
        return Ok(vec![take_device(ledger, trial, lent, file_system).await?]);
    }
    let mut devices = Vec::new();
    for number in 0..plan.count {
        let image = root.join(format!("volume{number}.img"));
        ledger.add(trial, Resource::LoopImage { image: image.clone() })?;
        write_image(ledger, &image, plan.each_bytes()).await?;
        let device = attach(ledger, &image).await?;
        let queue = sysfs_of(&device).join("queue");
        // What cannot be set is seen when it is read back. A device keeps the cache that whoever had it
        // before told it to have.
        drop(fs::write(queue.join("write_cache"), "write back"));
        drop(fs::write(queue.join("scheduler"), &plan.scheduler));
        if let Some(bytes) = plan.read_ahead_bytes {
            drop(fs::write(queue.join("read_ahead_kb"), (bytes / 1024).to_string()));
        }
        devices.push(Attached { device, image: Some(image) });
    }
    Ok(devices)
}

/// Takes a device of this machine, if it is the one that was meant and still free: it is looked at again right before
/// it is written to.
async fn take_device(
    ledger: &Ledger,
    trial: &str,
    lent: &Device,
    file_system: &str,
) -> Result<Attached> {
    let offer = device::look(&lent.path).await;
    offer.available.require(&format!("{file_system} was to be made on a device"))?;
    if offer.id.as_ref() != Some(&lent.id) {
        let (path, id) = (lent.path.display(), &lent.id);
        return Err(Error::provision(format!("{path} is no longer the device called \"{id}\"")));
    }
    ledger.add(
        trial,
        Resource::Device {
            path: lent.path.clone(),
            id: lent.id.clone(),
            file_system: file_system.to_owned(),
        },
    )?;
    // By the kernel's own name, whichever link to it was written.
    let device = fs::canonicalize(&lent.path).map_err(|error| unreadable(&lent.path, &error))?;
    Ok(Attached { device: device.to_string_lossy().into_owned(), image: None })
}

/// Joins devices by md. Their images are all zeros, so copies are equal already.
async fn make_array(
    ledger: &Ledger,
    trial: &str,
    devices: &[Attached],
    plan: &Devices,
) -> Result<String> {
    let lent = || Error::provision("an array is not made of a device that is lent");
    let image = devices[0].image.clone().ok_or_else(lent)?;
    ledger.add(trial, Resource::Array { image: image.clone() })?;
    let mut create: Vec<String> = [
        "mdadm",
        "--create",
        &format!("/dev/md/{trial}"),
        "--run",
        "--quiet",
        "--metadata=1.2",
        "--homehost=any",
        &format!("--level={}", plan.layout.word()),
        &format!("--raid-devices={}", plan.count),
    ]
    .map(str::to_owned)
    .to_vec();
    if plan.layout != Layout::Raid0 {
        // What a stripe, which has no copies, refuses to be told.
        create.extend(["--bitmap=none", "--assume-clean"].map(str::to_owned));
    }
    create.extend(devices.iter().map(|it| it.device.clone()));
    command::run(ledger, &create).await?;
    match arrays_on(&image)?.as_slice() {
        [array] => Ok(array.to_string_lossy().into_owned()),
        other => Err(Error::provision(format!(
            "{} is part of {} arrays after one was made of it",
            devices[0].device,
            other.len()
        ))),
    }
}

/// What md says of an array, which must be what was asked for.
fn array_facts(array: &str, plan: &Devices) -> Result<Vec<(String, String)>> {
    let md = sysfs_of(array).join("md");
    let of = |file: &str| read_line(&md.join(file));
    let facts = vec![
        ("md_level".to_owned(), of("level")?),
        ("md_devices".to_owned(), of("raid_disks")?),
        ("md_chunk_bytes".to_owned(), of("chunk_size")?),
        // An array without copies cannot be degraded, and has no such file.
        ("md_degraded".to_owned(), of("degraded").unwrap_or_else(|_| "0".to_owned())),
        ("md_sync_action".to_owned(), of("sync_action").unwrap_or_else(|_| "idle".to_owned())),
    ];
    let asked = [plan.layout.word(), &plan.count.to_string(), "", "0", "idle"];
    for ((fact, found), asked) in facts.iter().zip(asked) {
        if !asked.is_empty() && found != asked {
            return Err(Error::provision(format!(
                "the array was made with {fact} {asked}, but has {found}"
            )));
        }
    }
    Ok(facts)
}

async fn make_pool(
    ledger: &Ledger,
    trial: &str,
    root: &Path,
    volume: &ZfsVolume,
) -> Result<LocalVolume> {
    let devices = make_devices(ledger, trial, root, &volume.devices, "zfs").await?;
    let names: Vec<String> = devices.iter().map(|it| it.device.clone()).collect();
    let path = root.join("mount");
    let pool = Pool { name: trial.to_owned(), volume: volume.clone() };
    ledger.add(trial, Resource::Pool { name: pool.name.clone() })?;
    let create = pool.create_command(&path, &names);
    command::run(ledger, &create).await?;
    let made = LoopDevices {
        content: Content::Pool(pool),
        devices,
        array: None,
        mkfs_command: create.join(" "),
        mkfs_version: zfs::version().await,
    };
    Ok(LocalVolume { path, kind: Kind::Loop(Box::new(made)) })
}

/// Writes the image in full, so that no first write of the database has to allocate its block.
async fn write_image(ledger: &Ledger, image: &Path, size: u64) -> Result<()> {
    let of = format!("of={}", image.display());
    let count = format!("count={size}");
    let dd = ["dd", "if=/dev/zero", &of, "bs=4M", &count, "iflag=count_bytes", "conv=fsync"];
    let direct = [&dd[..], &["status=none", "oflag=direct"]].concat();
    match command::run(ledger, &direct).await {
        // Not every file system that may hold the image has direct I/O.
        Err(error) if error.evidence.as_deref().is_some_and(|it| it.contains("Invalid")) => {
            command::run(ledger, &[&dd[..], &["status=none"]].concat()).await?;
        }
        other => drop(other?),
    }
    Ok(())
}

/// Attaches the first free loop device, which somebody else may take at the same moment.
async fn attach(ledger: &Ledger, image: &Path) -> Result<String> {
    let file = image.to_string_lossy().into_owned();
    let argv = ["losetup", "-f", "--show", "--nooverlap", "--direct-io=on", file.as_str()];
    let mut tries = 0;
    loop {
        match command::run(ledger, &argv).await {
            Ok(output) => return Ok(output.stdout.trim().to_owned()),
            Err(error) => {
                let text = error.evidence.as_deref().unwrap_or_default();
                let taken = text.contains("busy") || text.contains("temporarily unavailable");
                if !taken || tries >= 10 || !loop_devices(image)?.is_empty() {
                    return Err(error);
                }
            }
        }
        tries += 1;
        sleep(Duration::from_millis(100)).await;
    }
}

/// Name of the block device under a path, if it is one that can be watched.
fn device_under(path: &Path) -> Result<Option<String>> {
    let device = fs::metadata(path).map_err(|error| unreadable(path, &error))?.dev();
    let mut number = Some((rustix::fs::major(device), rustix::fs::minor(device)));
    if number.is_some_and(|(major, _)| major == 0) {
        // Some file systems (btrfs, say) have a number of their own; their source is the device.
        let mounts = mountinfo::mounts()?;
        let source = mountinfo::holding(&mounts, path).and_then(|mount| {
            fs::metadata(&mount.source).ok().filter(|source| source.file_type().is_block_device())
        });
        number = source
            .map(|source| (rustix::fs::major(source.rdev()), rustix::fs::minor(source.rdev())));
    }
    let name = number.and_then(|(major, minor)| {
        let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    });
    Ok(name)
}
