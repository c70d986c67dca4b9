//! Storages: sizes, block sizes, layouts, and what the machine must have for them.

use std::path::Path;

use super::{Context, or_default};
use crate::capabilities::{Availability, DeviceOffer, kernel_remedy};
use crate::error::{Error, Result};
use crate::plan::{
    Ageing, Device, Devices, FileSystem, Layout, LoopVolume, SiteKind, StorageKind, StoragePlan,
    ZfsVolume,
};
use crate::sizing::{self, bytes_text};
use crate::spec::{DevicesSpec, Level, LoopSpec, StorageSpec, StorageSpecKind, ZfsSpec};

/// Bytes of a block when the spec names none.
const BLOCK_SIZE_BYTES: u32 = 4096;
/// The scheduler when the spec names none: the loop device hands requests on, and one scheduler below it
/// is enough.
const SCHEDULER: &str = "none";
/// The kernel keeps read-ahead in whole pages.
const PAGE_BYTES: u64 = 4096;
/// How often the files of an ageing are replaced when the spec does not say.
const CHURN: u32 = 2;
const CHURN_MAX: u32 = 1000;
/// What is fuller leaves hardly any room to measure in.
const FULLNESS_MAX: u32 = 95;
/// ZFS's own bounds of `ashift`.
const ASHIFTS: std::ops::RangeInclusive<u32> = 9..=16;

/// A storage with one level of each of its lists.
#[derive(Clone)]
pub(super) struct StorageChoice<'a> {
    path: String,
    pub(super) label: String,
    size_bytes: Option<u64>,
    block_size_bytes: u32,
    layout: Layout,
    scheduler: String,
    read_ahead_bytes: Option<u64>,
    nodatacow: bool,
    ageing: Option<Ageing>,
    device: Option<Device>,
    pub(super) levels: Vec<Level>,
    making: Making<'a>,
}

/// What is made of a storage.
#[derive(Clone)]
enum Making<'a> {
    /// Nothing: the server exists already.
    Existing,
    Directory(Option<&'a Path>),
    Tmpfs,
    Loop(FileSystem, &'a LoopSpec),
    Zfs(&'a ZfsSpec),
    /// Nothing, since it cannot be made here.
    Lacking(Lack),
}

/// Why a storage cannot be made here, and what would bring it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) reason: String,
    pub(super) remedy: String,
}

/// All combinations of all storages.
pub(super) fn choices<'a>(context: &Context<'a>) -> Result<Vec<StorageChoice<'a>>> {
    let mut choices = Vec::new();
    for (index, spec) in context.spec.storages.iter().enumerate() {
        choices.extend(choices_of(context, index, spec)?);
    }
    if choices.is_empty() {
        choices.push(StorageChoice::new("storage".to_owned(), "existing".to_owned()));
    }
    Ok(choices)
}

impl StorageChoice<'_> {
    /// A storage of which nothing is made, with all defaults.
    fn new(path: String, label: String) -> Self {
        Self {
            path,
            label,
            size_bytes: None,
            block_size_bytes: BLOCK_SIZE_BYTES,
            layout: Layout::Single,
            scheduler: SCHEDULER.to_owned(),
            read_ahead_bytes: None,
            nodatacow: false,
            ageing: None,
            device: None,
            levels: Vec::new(),
            making: Making::Existing,
        }
    }
}

/// Every choice with every one of the levels that were written, in the order of both.
fn vary<'a, T: Clone>(
    choices: Vec<StorageChoice<'a>>,
    factor: &str,
    levels: &[T],
    name: impl Fn(&T) -> String,
    set: impl Fn(&mut StorageChoice<'a>, T),
) -> Vec<StorageChoice<'a>> {
    if levels.is_empty() {
        return choices;
    }
    let with = |choice: &StorageChoice<'a>, level: &T| {
        let mut choice = choice.clone();
        if levels.len() > 1 {
            choice.levels.push((factor.to_owned(), name(level)));
        }
        set(&mut choice, level.clone());
        choice
    };
    choices.iter().flat_map(|choice| levels.iter().map(|level| with(choice, level))).collect()
}

fn choices_of<'a>(
    context: &Context<'a>,
    index: usize,
    spec: &'a StorageSpec,
) -> Result<Vec<StorageChoice<'a>>> {
    let path = context.spec.storage_path(index);
    let label = spec.label.clone().unwrap_or_else(|| spec.kind.word().to_owned());
    let mut choices = vec![StorageChoice::new(path.clone(), label)];
    let devices = match &spec.kind {
        StorageSpecKind::Directory { .. } => None,
        StorageSpecKind::Tmpfs { size_bytes } => {
            choices[0].size_bytes = *size_bytes;
            None
        }
        StorageSpecKind::Loop(kind, volume) => {
            check_loop(&path, *kind, volume)?;
            Some(&volume.devices)
        }
        StorageSpecKind::Zfs(volume) => {
            check_zfs(&path, volume)?;
            Some(&volume.devices)
        }
    };
    if let Some(devices) = devices {
        choices[0].size_bytes = devices.size_bytes;
        if let Some(offer) = check_own(context, &path, devices)? {
            // The size of what cannot be used says nothing.
            choices[0].size_bytes = offer.available.is_available().then_some(offer.bytes);
            choices[0].device =
                devices.device.clone().zip(offer.id.clone()).map(|(path, id)| Device { path, id });
        }
        choices = vary(
            choices,
            "layout",
            &devices.layout,
            |layout| layout.word().to_owned(),
            |choice, layout| choice.layout = layout,
        );
    }
    if let StorageSpecKind::Loop(_, volume) = &spec.kind {
        choices = vary(
            choices,
            "block_size",
            &volume.block_size_bytes,
            u32::to_string,
            |choice, bytes| choice.block_size_bytes = bytes,
        );
        choices = vary(choices, "nodatacow", &volume.nodatacow, bool::to_string, |choice, on| {
            choice.nodatacow = on;
        });
    }
    if let Some(devices) = devices {
        choices =
            vary(choices, "scheduler", &devices.scheduler, String::clone, |choice, scheduler| {
                choice.scheduler = scheduler;
            });
        choices = vary(
            choices,
            "read_ahead",
            &devices.read_ahead_bytes,
            |bytes| bytes_text(*bytes),
            |choice, bytes| choice.read_ahead_bytes = Some(bytes),
        );
        check_ageing(&path, devices)?;
        choices = vary(
            choices,
            "fullness",
            &devices.fullness_percent,
            u32::to_string,
            |choice, percent| {
                choice.ageing = (percent > 0).then(|| Ageing {
                    fullness_percent: percent,
                    churn: devices.churn.unwrap_or(CHURN),
                });
            },
        );
    }
    for choice in &mut choices {
        choice.making = making(context, &spec.kind, choice)?;
    }
    Ok(choices)
}

/// The storage of a cell whose database takes `loaded_bytes` and that needs `needed_bytes`, or why it
/// cannot be made here. The stated size is checked either way.
pub(super) fn storage(
    context: &Context<'_>,
    choice: &StorageChoice<'_>,
    loaded_bytes: u64,
    needed_bytes: u64,
) -> Result<std::result::Result<StoragePlan, Lack>> {
    let size_bytes = size(choice, loaded_bytes, needed_bytes)?;
    let kind = match &choice.making {
        Making::Lacking(lack) => return Ok(Err(lack.clone())),
        Making::Existing => StorageKind::Existing,
        // What is free there is not known yet; the site looks before it makes anything.
        Making::Directory(Some(path)) => StorageKind::Directory { path: path.to_path_buf() },
        Making::Directory(None) => {
            check_free(context, &choice.path, needed_bytes)?;
            StorageKind::Directory { path: context.work_dir.clone() }
        }
        Making::Tmpfs => {
            check_memory(context, &choice.path, size_bytes)?;
            StorageKind::Tmpfs { size_bytes }
        }
        Making::Loop(file_system, spec) => {
            let noatime = || vec!["noatime".to_owned()];
            let volume = LoopVolume {
                file_system: *file_system,
                devices: devices(choice, size_bytes, &spec.devices),
                block_size_bytes: choice.block_size_bytes,
                nodatacow: choice.nodatacow,
                mkfs_options: spec.mkfs_options.clone(),
                mount_options: spec.mount_options.clone().unwrap_or_else(noatime),
            };
            check_free(context, &choice.path, volume.devices.bytes())?;
            if volume.file_system == FileSystem::Btrfs {
                let least = ("mkfs.btrfs", sizing::BTRFS_DEVICE_BYTES_MIN);
                check_device(&choice.path, &volume.devices, least)?;
            }
            StorageKind::Loop(volume)
        }
        Making::Zfs(spec) => {
            let volume = ZfsVolume {
                devices: devices(choice, size_bytes, &spec.devices),
                ashift: spec.ashift,
                options: spec.options.clone(),
            };
            check_free(context, &choice.path, volume.devices.bytes())?;
            let least = ("ZFS", sizing::ZFS_DEVICE_BYTES_MIN);
            check_device(&choice.path, &volume.devices, least)?;
            StorageKind::Zfs(volume)
        }
    };
    Ok(Ok(StoragePlan { label: choice.label.clone(), kind, ageing: choice.ageing }))
}

/// The devices of a choice.
fn devices(choice: &StorageChoice<'_>, size_bytes: u64, spec: &DevicesSpec) -> Devices {
    let count = spec.count.unwrap_or(choice.layout.devices());
    Devices {
        scheduler: choice.scheduler.clone(),
        read_ahead_bytes: choice.read_ahead_bytes,
        device: choice.device.clone(),
        ..Devices::new(size_bytes, choice.layout, count)
    }
}

/// The error of a spec of which nothing is left.
pub(super) fn nothing_left(choice: &StorageChoice<'_>, lack: &Lack) -> Error {
    Error::provision(format!("`{}`: {}", choice.path, lack.reason)).hint(&lack.remedy)
}

/// The stated size, if the loaded database fits beside the files of an ageing; else the default.
fn size(choice: &StorageChoice<'_>, loaded_bytes: u64, needed_bytes: u64) -> Result<u64> {
    let full = choice.ageing.map_or(0, |ageing| u64::from(ageing.fullness_percent));
    let all = |left_bytes: u64| left_bytes.saturating_mul(100) / (100 - full);
    let default_bytes = sizing::volume_bytes(all(needed_bytes));
    let Some(size_bytes) = choice.size_bytes else { return Ok(default_bytes) };
    if size_bytes >= all(loaded_bytes) {
        return Ok(size_bytes);
    }
    if choice.device.is_some() {
        return Err(Error::spec(format!(
            "`{}.device` has {}, but the loaded database needs {}",
            choice.path,
            bytes_text(size_bytes),
            bytes_text(all(loaded_bytes))
        ))
        .hint("use a larger device, or lower `workload.scale`"));
    }
    let beside = if full > 0 { format!(", and {full} % are full before") } else { String::new() };
    Err(Error::spec(format!(
        "`{}.size` is {}, but the loaded database alone takes {}{beside}",
        choice.path,
        bytes_text(size_bytes),
        bytes_text(loaded_bytes)
    ))
    .hint(format!("leave `size` out to get {}", bytes_text(default_bytes))))
}

fn check_free(context: &Context<'_>, path: &str, size_bytes: u64) -> Result<()> {
    let free_bytes = context.capabilities.free_bytes;
    let reserve_bytes = sizing::reserve_bytes(free_bytes);
    if size_bytes <= free_bytes.saturating_sub(reserve_bytes) {
        return Ok(());
    }
    Err(Error::provision(format!(
        "`{path}.size` is {}, but {} has {} free, of which {} stay in reserve",
        bytes_text(size_bytes),
        context.work_dir.display(),
        bytes_text(free_bytes),
        bytes_text(reserve_bytes)
    ))
    .hint("lower `size` or `workload.scale`, or set `work_dir` to a place with more room"))
}

fn check_memory(context: &Context<'_>, path: &str, size_bytes: u64) -> Result<()> {
    let memory_bytes = context.capabilities.memory_bytes;
    if size_bytes <= memory_bytes {
        return Ok(());
    }
    Err(Error::spec(format!(
        "`{path}.size` is {}, more than this machine's memory of {}",
        bytes_text(size_bytes),
        bytes_text(memory_bytes)
    )))
}

/// Block sizes of a file system, and the argument by which its mkfs is told.
fn block_sizes(kind: FileSystem) -> (&'static [u32], &'static str) {
    match kind {
        // They mount none above the page size, and pages of 4096 bytes are all we meet.
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 | FileSystem::Nilfs2 => {
            (&[1024, 2048, 4096], "-b")
        }
        FileSystem::Xfs => (&[512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], "-b"),
        FileSystem::Btrfs => (&[4096, 8192, 16384, 32768, 65536], "-s"),
        // It has one size, and the reader knows no such key.
        FileSystem::F2fs => (&[], "-b"),
    }
}

fn check_loop(path: &str, kind: FileSystem, spec: &LoopSpec) -> Result<()> {
    check_devices(path, &spec.devices, kind.joins_devices())?;
    let (block_sizes_bytes, argument) = block_sizes(kind);
    for block_size_bytes in &spec.block_size_bytes {
        if !block_sizes_bytes.contains(block_size_bytes) {
            let allowed: Vec<String> = block_sizes_bytes.iter().map(u32::to_string).collect();
            return Err(Error::spec(format!(
                "`{path}.block_size` is {block_size_bytes} (allowed: {})",
                allowed.join(", ")
            )));
        }
    }
    if kind == FileSystem::Xfs {
        check_xfs(path, spec)?;
    }
    if let Some(option) = spec.mkfs_options.iter().find(|option| option.starts_with(argument)) {
        return Err(Error::spec(format!(
            "`{path}.mkfs_options` holds \"{option}\", but the block size has its own key"
        ))
        .hint(format!("set `{path}.block_size`")));
    }
    for option in spec.mount_options.iter().flatten() {
        if option.is_empty() || option.contains(|c: char| c == ',' || c.is_whitespace()) {
            return Err(Error::spec(format!(
                "`{path}.mount_options` holds \"{option}\", but each entry is one option"
            )));
        }
    }
    Ok(())
}

/// Checks what is said of a device of this machine, which is not known until it was looked at. Whether it is free
/// decides later whether cells are available.
fn check_own<'a>(
    context: &Context<'a>,
    path: &str,
    spec: &DevicesSpec,
) -> Result<Option<&'a DeviceOffer>> {
    let Some(device) = &spec.device else {
        return match &spec.erase {
            None => Ok(None),
            Some(_) => Err(Error::spec(format!(
                "`{path}.erase` is given, but no `{path}.device` says where"
            ))),
        };
    };
    let shown = device.display();
    for (key, stated) in [
        ("size", spec.size_bytes.is_some()),
        ("layout", spec.layout.iter().any(|layout| *layout != Layout::Single)),
        ("devices", spec.count.is_some_and(|count| count != 1)),
        ("scheduler", !spec.scheduler.is_empty()),
        ("read_ahead", !spec.read_ahead_bytes.is_empty()),
    ] {
        if stated {
            return Err(Error::spec(format!(
                "`{path}.{key}` does not go with `{path}.device`: {shown} is used as it is"
            ))
            .hint(format!("leave `{key}` out")));
        }
    }
    let Some(offer) = context.capabilities.devices.get(device) else {
        return Err(Error::provision(format!("{shown} of `{path}.device` was not looked at")));
    };
    let Some(id) = &offer.id else { return Ok(Some(offer)) };
    let consent = format!(
        "set `{path}.erase` to \"{id}\", which is what {shown} is called, if everything on it may be lost"
    );
    match &spec.erase {
        Some(erase) if erase == id => Ok(Some(offer)),
        Some(erase) => Err(Error::spec(format!(
            "`{path}.erase` is \"{erase}\", but {shown} is called \"{id}\""
        ))
        .hint(consent)),
        None => Err(Error::spec(format!(
            "`{path}.device` is {shown}, but `{path}.erase` does not consent to losing what is on it"
        ))
        .hint(consent)),
    }
}

/// A device of this machine that is not free.
fn device_lack(context: &Context<'_>, word: &str, spec: &DevicesSpec) -> Option<Lack> {
    let device = spec.device.as_ref()?;
    if context.site == SiteKind::Docker {
        return Some(Lack {
            reason: "devices of this machine are used at site local alone".to_owned(),
            remedy: "set `site = \"local\"` and run as root".to_owned(),
        });
    }
    let offer = context.capabilities.devices.get(device)?;
    missing_for(word, &offer.available, "its device")
}

fn check_ageing(path: &str, spec: &DevicesSpec) -> Result<()> {
    if let Some(percent) = spec.fullness_percent.iter().find(|percent| **percent > FULLNESS_MAX) {
        return Err(Error::spec(format!(
            "`{path}.fullness` is {percent}, but is a percentage, from 0 to {FULLNESS_MAX}"
        )));
    }
    let fresh = spec.fullness_percent.iter().all(|percent| *percent == 0);
    match spec.churn {
        Some(churn) if fresh => Err(Error::spec(format!(
            "`{path}.churn` is {churn}, but no `{path}.fullness` says how full the volume is made"
        ))
        .hint("set `fullness` to a percentage, or leave `churn` out")),
        Some(churn) if churn > CHURN_MAX => {
            Err(Error::spec(format!("`{path}.churn` is {churn}, but must be at most {CHURN_MAX}")))
        }
        _ => Ok(()),
    }
}

fn check_zfs(path: &str, spec: &ZfsSpec) -> Result<()> {
    check_devices(path, &spec.devices, false)?;
    match spec.ashift {
        Some(ashift) if !ASHIFTS.contains(&ashift) => Err(Error::spec(format!(
            "`{path}.ashift` is {ashift}, but must be from {} to {}",
            ASHIFTS.start(),
            ASHIFTS.end()
        ))),
        _ => Ok(()),
    }
}

/// Checks that every layout can be made of the number of devices. btrfs keeps two copies of each block on
/// however many there are; a mirror of md or ZFS has a copy on each, and ours have two.
fn check_devices(path: &str, spec: &DevicesSpec, two_copies: bool) -> Result<()> {
    for bytes in &spec.read_ahead_bytes {
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::spec(format!(
                "`{path}.read_ahead` is {}, but must be a multiple of {PAGE_BYTES} bytes",
                bytes_text(*bytes)
            )));
        }
    }
    let Some(devices) = spec.count else { return Ok(()) };
    for layout in or_default(&spec.layout, Layout::Single) {
        let (fits, needed) = match layout {
            Layout::Single => (devices == 1, "is one device"),
            Layout::Raid1 if !two_copies => (devices == 2, "is two devices"),
            Layout::Raid0 | Layout::Raid1 | Layout::Raidz => (devices >= 2, "needs at least 2"),
            Layout::Raid10 => {
                (devices >= 4 && devices.is_multiple_of(2), "needs an even number from 4")
            }
        };
        if !fits {
            return Err(Error::spec(format!(
                "`{path}.devices` is {devices}, but `{path}.layout` \"{}\" {needed}",
                layout.word()
            ))
            .hint("leave `devices` out to have it chosen"));
        }
    }
    Ok(())
}

/// Refuses devices that are smaller than what makes the volume of them takes.
fn check_device(path: &str, devices: &Devices, (maker, least_bytes): (&str, u64)) -> Result<()> {
    if devices.each_bytes() >= least_bytes {
        return Ok(());
    }
    Err(Error::spec(format!(
        "`{path}.size` is {}, which makes {} devices of {}, but {maker} refuses less than {}",
        bytes_text(devices.size_bytes),
        devices.count,
        bytes_text(devices.each_bytes()),
        bytes_text(least_bytes)
    )))
}

/// What mkfs.xfs refuses. Checksums of metadata, on unless it is told otherwise, need blocks of 1024
/// bytes.
fn check_xfs(path: &str, spec: &LoopSpec) -> Result<()> {
    if let Some(size_bytes) = spec.devices.size_bytes.filter(|bytes| *bytes < sizing::XFS_BYTES_MIN)
    {
        return Err(Error::spec(format!(
            "`{path}.size` is {}, but mkfs.xfs refuses less than {}",
            bytes_text(size_bytes),
            bytes_text(sizing::XFS_BYTES_MIN)
        )));
    }
    let without_crc = spec.mkfs_options.iter().any(|option| option.contains("crc=0"));
    if spec.block_size_bytes.contains(&512) && !without_crc {
        return Err(Error::spec(format!(
            "`{path}.block_size` is 512, but mkfs.xfs needs at least 1024 for metadata checksums"
        ))
        .hint("add `mkfs_options = [\"-m\", \"crc=0\"]`, which recent kernels refuse to mount"));
    }
    Ok(())
}

/// What is made of such a storage.
///
/// # Errors
/// What keeps the whole run from its volumes, and what the user can mend: no root, no Docker.
fn making<'a>(
    context: &Context<'_>,
    kind: &'a StorageSpecKind,
    choice: &StorageChoice<'_>,
) -> Result<Making<'a>> {
    let (path, layout) = (&choice.path, choice.layout);
    let word = kind.word();
    let made = match kind {
        StorageSpecKind::Directory { path } => return Ok(Making::Directory(path.as_deref())),
        StorageSpecKind::Tmpfs { .. } => Making::Tmpfs,
        StorageSpecKind::Zfs(spec) => Making::Zfs(spec),
        StorageSpecKind::Loop(file_system, spec) => {
            let by_md = layout != Layout::Single && !file_system.joins_devices();
            // What cannot be made anyway needs no root either.
            if let Some(lack) = by_md.then(|| md_lack(context, word)).flatten() {
                return Ok(Making::Lacking(lack));
            }
            Making::Loop(*file_system, spec)
        }
    };
    require_privilege(context, path, word)?;
    let lack = match &made {
        Making::Zfs(spec) => zfs_lack(context, spec)
            .or_else(|| scheduler_lack(context, choice))
            .or_else(|| device_lack(context, word, &spec.devices)),
        // At site docker tools and devices are those of the helper container.
        Making::Loop(file_system, spec) if context.site == SiteKind::Local => {
            tool_lack(context, *file_system)
                .or_else(|| kernel_lack(context, word))
                .or_else(|| scheduler_lack(context, choice))
                .or_else(|| device_lack(context, word, &spec.devices))
        }
        Making::Loop(_, spec) => {
            kernel_lack(context, word).or_else(|| device_lack(context, word, &spec.devices))
        }
        _ => kernel_lack(context, word),
    };
    Ok(lack.map_or(made, Making::Lacking))
}

/// A scheduler that the kernel does not offer for loop devices.
fn scheduler_lack(context: &Context<'_>, choice: &StorageChoice<'_>) -> Option<Lack> {
    let (scheduler, known) = (&choice.scheduler, &context.capabilities.schedulers);
    // A kernel that shows none has nothing to choose from, and then there is none at work.
    if scheduler == SCHEDULER || known.contains(scheduler) {
        return None;
    }
    let offered = if known.is_empty() { SCHEDULER.to_owned() } else { known.join(", ") };
    Some(Lack {
        reason: format!("the kernel has no scheduler `{scheduler}` for loop devices"),
        remedy: format!("use one of: {offered}"),
    })
}

/// What pools lack here.
fn zfs_lack(context: &Context<'_>, spec: &ZfsSpec) -> Option<Lack> {
    let zfs = &context.capabilities.zfs;
    if context.site == SiteKind::Docker {
        return Some(Lack {
            reason: "zfs is not made at site docker, whose daemon mounts what a device holds, not \
                     what a pool does"
                .to_owned(),
            remedy: "set `site = \"local\"` and run as root".to_owned(),
        });
    }
    if let Some(lack) = missing_for("zfs", &context.capabilities.loop_devices, "a loop device")
        .or_else(|| missing_for("zfs", &zfs.pools, "pools"))
    {
        return Some(lack);
    }
    let unknown = spec.options.keys().find(|name| !zfs.properties.contains(name))?;
    Some(Lack {
        reason: format!("{} has no property `{unknown}`", zfs.implementation),
        remedy: "use an implementation of ZFS that has it, or leave it out".to_owned(),
    })
}

/// Making anything but a directory takes root, or Docker.
fn require_privilege(context: &Context<'_>, path: &str, word: &str) -> Result<()> {
    let capabilities = context.capabilities;
    if context.site == SiteKind::Docker {
        return capabilities
            .docker
            .require(&format!("`{path}`: {word} on site docker needs Docker"));
    }
    if capabilities.root {
        return Ok(());
    }
    let error = Error::provision(format!(
        "`{path}`: {word} on site local needs root, and this process is not root"
    ));
    Err(error.hint(if capabilities.docker.is_available() {
        "set `site = \"docker\"`, or run as root"
    } else {
        "run as root, or start Docker and set `site = \"docker\"`"
    }))
}

/// A tool or a device that this machine lacks.
fn tool_lack(context: &Context<'_>, file_system: FileSystem) -> Option<Lack> {
    let capabilities = context.capabilities;
    let word = file_system.word();
    missing_for(word, &capabilities.loop_devices, "a loop device").or_else(|| {
        missing_for(word, capabilities.mkfs.get(&file_system)?, &format!("mkfs.{word}"))
    })
}

fn missing_for(word: &str, what: &Availability, need: &str) -> Option<Lack> {
    match what {
        Availability::Available => None,
        Availability::Missing { reason, remedy } => Some(Lack {
            reason: format!("{word} needs {need}, but {reason}"),
            remedy: remedy.clone(),
        }),
    }
}

/// What arrays of md lack here; where the kernel lacks the file system, too, that is said at once.
fn md_lack(context: &Context<'_>, word: &str) -> Option<Lack> {
    let lack = if context.site == SiteKind::Docker {
        Lack {
            reason: "arrays of md are not made at site docker".to_owned(),
            remedy: "set `site = \"local\"` and run as root".to_owned(),
        }
    } else {
        missing_for("this layout", &context.capabilities.md, "an array of md")?
    };
    Some(match kernel_lack(context, word) {
        None => lack,
        Some(kernel) => Lack {
            reason: format!("{}, and {}", lack.reason, kernel.reason),
            remedy: format!("{}; then {}", lack.remedy, kernel.remedy),
        },
    })
}

/// A file system that the kernel lacks. The kernel of a Docker daemon elsewhere is not known.
fn kernel_lack(context: &Context<'_>, word: &str) -> Option<Lack> {
    let capabilities = context.capabilities;
    let unknown = context.site == SiteKind::Docker && !capabilities.docker_shares_kernel;
    if unknown || capabilities.filesystems.iter().any(|known| known == word) {
        return None;
    }
    let reason = format!("the kernel of this machine has no {word}");
    Some(Lack { reason, remedy: kernel_remedy(word) })
}
