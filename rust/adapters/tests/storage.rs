//! Real volumes, local and through Docker: made, read back, taken down, and swept after a kill.
//!
//! These tests need root and a Docker daemon; they leave nothing behind.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bedplate_adapters::capabilities::capabilities;
use bedplate_adapters::docker::{DockerVolumes, STORAGE_HELPER_IMAGE};
use bedplate_adapters::ledger::{Ledger, Resource, sweep};
use bedplate_adapters::storage::LocalVolumes;
use bedplate_core::capabilities::Availability;
use bedplate_core::error::{ErrorKind, Result};
use bedplate_core::plan::{
    Devices, FileSystem, Layout, LoopVolume, StorageKind, StoragePlan, ZfsVolume,
};
use bedplate_core::probe::{Probe, SYNCS};
use bedplate_core::record::{TrialId, VolumeFacts};
use bedplate_core::seam::{Volume, VolumeLocation};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Set for the child of the kill drill: the site, the kind, the scratch directory and the run.
const CHILD: &str = "BEDPLATE_TEST_CHILD";

/// A directory for one test, and a run of its own.
struct Scratch {
    dir: TempDir,
    run: String,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("bedplate-test-").tempdir().unwrap();
        let run = dir.path().file_name().unwrap().to_str().unwrap();
        let run = run.trim_start_matches("bedplate-").to_owned();
        Self { dir, run }
    }

    fn work_dir(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn ledger(&self) -> Arc<Ledger> {
        Arc::new(Ledger::open(&self.state_dir()).unwrap())
    }

    fn id(&self) -> TrialId {
        id(&self.run)
    }

    /// Everything on this machine whose name has this run in it.
    fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (tool, text) in [
            ("losetup", sh("losetup -l -n -O NAME,BACK-FILE")),
            ("mounts", sh("cat /proc/mounts")),
            ("pools", sh("zpool list -H -o name")),
            ("docker volume ls", sh("docker volume ls -q")),
            ("docker ps", sh("docker ps -a --format '{{.Names}}'")),
            ("files", sh(&format!("ls {}", self.work_dir().display()))),
            ("processes", sh("ps -eo args | grep -v grep")),
        ] {
            let named = |line: &&str| line.contains(&format!("bedplate-{}", self.run));
            found.extend(text.lines().filter(named).map(|line| format!("{tool}: {line}")));
        }
        found
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After a failed test the ledger is what cleans up.
        let state_dir = self.state_dir();
        let sweeping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            drop(runtime.block_on(sweep(&state_dir)));
        });
        drop(sweeping.join());
    }
}

fn id(run: &str) -> TrialId {
    TrialId { run: run.to_owned(), trial: 7, block: 0, cell: 0 }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn storage(kind: &str, work_dir: &Path) -> StoragePlan {
    let volume = |file_system, size_bytes, block_size_bytes| {
        StorageKind::Loop(LoopVolume {
            file_system,
            devices: Devices::new(size_bytes, Layout::Single, 1),
            block_size_bytes,
            nodatacow: false,
            mkfs_options: Vec::new(),
            mount_options: vec!["noatime".to_owned()],
        })
    };
    let kind_plan = match kind {
        "directory" => StorageKind::Directory { path: work_dir.to_owned() },
        "tmpfs" => StorageKind::Tmpfs { size_bytes: 64 * MIB },
        // Unlike what mkfs would choose by itself.
        "ext2" => volume(FileSystem::Ext2, 200 * MIB, 2048),
        "ext3" => volume(FileSystem::Ext3, 200 * MIB, 2048),
        "ext4" => volume(FileSystem::Ext4, 200 * MIB, 2048),
        "xfs" => volume(FileSystem::Xfs, 320 * MIB, 1024),
        "btrfs" => volume(FileSystem::Btrfs, 200 * MIB, 4096),
        "f2fs" => volume(FileSystem::F2fs, 200 * MIB, 4096),
        "nilfs2" => volume(FileSystem::Nilfs2, 200 * MIB, 2048),
        "zfs" => StorageKind::Zfs(ZfsVolume {
            devices: Devices::new(100 * MIB, Layout::Raid1, 2),
            ashift: None,
            options: [("recordsize".to_owned(), "8k".to_owned())].into(),
        }),
        other => panic!("{other}"),
    };
    StoragePlan::fresh(kind, kind_plan)
}

/// Makes a volume at either site.
async fn create(
    site: &str,
    ledger: &Arc<Ledger>,
    id: &TrialId,
    storage: &StoragePlan,
    work_dir: &Path,
) -> Result<Box<dyn Volume>> {
    match site {
        "local" => LocalVolumes.create(ledger, id, storage, work_dir).await,
        _ => {
            let volumes = DockerVolumes::new(Arc::clone(ledger))?;
            volumes.create(ledger, id, storage, work_dir).await
        }
    }
}

/// The helper image is built when it is not there: tests are never skipped.
fn with_helper_image() {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        let there =
            format!("docker image inspect {STORAGE_HELPER_IMAGE} >/dev/null 2>&1 && echo y");
        if sh(&there).is_empty() {
            let out = tempfile::tempdir().unwrap();
            let recipe =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/storage-helper/build.sh");
            let mut build = Command::new(recipe);
            assert!(build.arg(out.path()).arg(STORAGE_HELPER_IMAGE).status().unwrap().success());
        }
    });
}

fn fact<'a>(facts: &'a VolumeFacts, key: &str) -> &'a str {
    facts.facts.get(key).unwrap_or_else(|| panic!("{key} is missing in {facts:?}"))
}

/// One suite for every storage at both sites.
async fn conforms(site: &str, kind: &str) {
    if site == "docker" {
        with_helper_image();
    }
    let scratch = Scratch::new();
    let offered = capabilities(&scratch.state_dir(), None, &[]).await;
    let kernel_has = offered.filesystems.iter().any(|known| known == kind);
    if ["f2fs", "nilfs2"].contains(&kind) && !kernel_has {
        // Many kernels have none, and a plan leaves their cells out. This runs for real where they do.
        assert!(!sh("cat /proc/filesystems").contains(kind));
        return;
    }
    let ledger = scratch.ledger();
    let (id, storage) = (scratch.id(), storage(kind, &scratch.work_dir()));
    let volume = create(site, &ledger, &id, &storage, &scratch.work_dir()).await.unwrap();

    let facts = volume.facts().await.unwrap();
    let caveats = &facts.caveats;
    match kind {
        "directory" => assert!(fact(&facts, "backing_fs_type") == fact(&facts, "fs_type")),
        "tmpfs" => {
            assert_eq!(caveats[..], ["data lives in memory: nothing is durable"]);
            assert!(fact(&facts, "mount_options").contains("size=65536k"));
        }
        _ => {
            assert_eq!(caveats[..], [""; 0]);
            loop_facts_are_right(kind, &facts);
        }
    }

    let mount_options = match volume.location() {
        VolumeLocation::Path(path) => {
            std::fs::write(path.join("file"), "x").unwrap();
            sh(&format!("findmnt -n -o OPTIONS -T {}", path.display()))
        }
        VolumeLocation::DockerVolume(name) => {
            let script = "echo x > /data/file; findmnt -n -o OPTIONS -T /data";
            sh(&format!("docker run --rm -v {name}:/data {STORAGE_HELPER_IMAGE} sh -c '{script}'"))
        }
        VolumeLocation::Existing => panic!("not a volume"),
    };
    assert!(kind == "directory" || kind == "tmpfs" || mount_options.contains("noatime"));

    let settled = volume.settle(Duration::from_secs(8)).await.unwrap();
    // The device under a plain directory is shared with whatever else runs here.
    assert!(settled || kind == "directory");

    ledger.undo_scope(&id.resource_name()).await.unwrap();
    assert_eq!(scratch.leftovers(), Vec::<String>::new());
    assert_eq!(ledger.entries(), []);
    ledger.undo_scope(&id.resource_name()).await.unwrap();
}

fn loop_facts_are_right(kind: &str, facts: &VolumeFacts) {
    let device = fact(facts, "loop_device");
    let losetup = sh(&format!("losetup -n -l -O DIO,BACK-FILE {device}"));
    let (dio, _) = losetup.trim().split_once(' ').unwrap();
    assert_eq!((fact(facts, "loop_direct_io"), dio), ("1", "1"));
    assert_eq!(fact(facts, "loop_write_cache"), "write back");
    assert_eq!(fact(facts, "loop_scheduler"), "none");
    assert_eq!(sh(&format!("blkid -p -o value -s TYPE {device}")).trim(), kind);

    let bytes: u64 = fact(facts, "image_bytes").parse().unwrap();
    let size = sh(&format!("blockdev --getsize64 {device}"));
    assert_eq!(bytes, size.trim().parse::<u64>().unwrap());
    assert!(fact(facts, "image_allocated_bytes").parse::<u64>().unwrap() >= bytes);

    let command = fact(facts, "mkfs_command");
    assert!(command.starts_with(&format!("mkfs.{kind} ")) && command.ends_with(device));
    let block_size = fact(facts, "block_size_bytes");
    if kind.starts_with("ext") {
        assert_eq!(block_size, "2048");
        let text = sh(&format!("dumpe2fs -h {device} 2>/dev/null; dumpe2fs {device} 2>/dev/null"));
        assert!(text.lines().any(|line| line.replace(' ', "") == "Blocksize:2048"), "{text}");
        // Every inode table was written at once, in every group; only ext4 can leave one for later.
        let groups: Vec<_> = text.lines().filter(|line| line.contains(": (Blocks ")).collect();
        assert!(!groups.is_empty());
        assert!(kind != "ext4" || groups.iter().all(|line| line.contains("ITABLE_ZEROED")));
        let features = text.lines().find_map(|line| line.strip_prefix("Filesystem features:"));
        let features: Vec<_> = features.unwrap().split_whitespace().collect();
        for (feature, kinds) in
            [("has_journal", ["ext3", "ext4"].as_slice()), ("extent", &["ext4"])]
        {
            assert_eq!(features.contains(&feature), kinds.contains(&kind), "{kind}: {features:?}");
        }
        assert!(fact(facts, "mkfs_version").starts_with("mke2fs "));
    } else if kind == "btrfs" {
        assert_eq!(block_size, "4096");
        let text = sh(&format!("btrfs inspect-internal dump-super {device}"));
        let sector_size = text.lines().find_map(|line| line.strip_prefix("sectorsize"));
        assert_eq!(sector_size.unwrap().trim(), "4096");
        assert!(fact(facts, "mkfs_version").starts_with("mkfs.btrfs, part of btrfs-progs v"));
    } else if kind == "f2fs" {
        assert_eq!(block_size, "4096");
        assert!(fact(facts, "mkfs_version").starts_with("mkfs.f2fs "));
    } else if kind == "nilfs2" {
        assert_eq!(block_size, "2048");
        assert!(fact(facts, "mkfs_version").starts_with("mkfs.nilfs2 "));
    } else {
        assert_eq!(block_size, "1024");
        assert!(sh(&format!("xfs_db -r -c 'sb 0' -c 'p blocksize' {device}")).contains("= 1024"));
        assert!(fact(facts, "mkfs_version").starts_with("mkfs.xfs version "));
    }
    assert!(!fact(facts, "backing_fs_type").is_empty());
    assert!(!fact(facts, "backing_mount_options").is_empty());
}

macro_rules! conformance {
    ($($name:ident: $site:literal $kind:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            conforms($site, $kind).await;
        }
    )*};
}

conformance! {
    local_directory_conforms: "local" "directory",
    local_tmpfs_conforms: "local" "tmpfs",
    local_ext2_conforms: "local" "ext2",
    local_ext3_conforms: "local" "ext3",
    local_ext4_conforms: "local" "ext4",
    local_xfs_conforms: "local" "xfs",
    local_btrfs_conforms: "local" "btrfs",
    local_f2fs_conforms: "local" "f2fs",
    local_nilfs2_conforms: "local" "nilfs2",
    docker_directory_conforms: "docker" "directory",
    docker_tmpfs_conforms: "docker" "tmpfs",
    docker_ext2_conforms: "docker" "ext2",
    docker_ext3_conforms: "docker" "ext3",
    docker_ext4_conforms: "docker" "ext4",
    docker_xfs_conforms: "docker" "xfs",
    docker_btrfs_conforms: "docker" "btrfs",
}

/// Has the loop device of a volume lie, and gives what is then found on it.
async fn caught(site: &str, lie: &str) -> (VolumeFacts, Probe) {
    with_helper_image();
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let storage = storage("ext4", &scratch.work_dir());
    let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
    let volume = made.unwrap();
    let honest = volume.probe().await.unwrap().unwrap();
    assert_eq!(honest.caveats(false), [""; 0], "{site}: {honest:?}");
    assert!(honest.sync_us.p50 > 0.0 && honest.sync_us.p50 <= honest.sync_us.max);
    let device = volume.devices().concat().remove(0);
    sh(&lie.replace("LOOP", &device));
    let found = (volume.facts().await.unwrap(), volume.probe().await.unwrap().unwrap());
    ledger.undo_all().await.unwrap();
    assert_eq!(scratch.leftovers(), Vec::<String>::new());
    // The kernel keeps what a device was told beyond its use: the next volume must not inherit it.
    let again = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
    let facts = again.unwrap().facts().await.unwrap();
    assert_eq!(facts.caveats, [""; 0], "{site}: {lie}");
    ledger.undo_all().await.unwrap();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_device_that_drops_flushes_is_caught() {
    for site in ["local", "docker"] {
        let lie = "echo 'write through' > /sys/block/LOOP/queue/write_cache";
        let (facts, probe) = caught(site, lie).await;
        assert!(facts.caveats[0].contains("flushes are dropped"), "{facts:?}");
        assert!(probe.loses_flushes());
        assert!(probe.caveats(false)[0].contains("the volume's device was flushed 0 times"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_device_without_direct_io_is_caught() {
    for site in ["local", "docker"] {
        let (facts, probe) = caught(site, "losetup --direct-io=off /dev/LOOP").await;
        assert!(facts.caveats[0].contains("does not use direct I/O"), "{facts:?}");
        assert!(!probe.loses_flushes());
        let caveats = probe.caveats(false);
        assert_eq!(caveats.len(), 1, "{site}: {probe:?}");
        assert!(caveats[0].contains("a cache between answers"), "{probe:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sparse_image_and_an_overlay_are_caught() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let (id, work_dir) = (scratch.id(), scratch.work_dir());
    let volume = create("local", &ledger, &id, &storage("ext4", &work_dir), &work_dir).await;
    let volume = volume.unwrap();
    let image = work_dir.join(id.resource_name()).join("volume0.img");
    sh(&format!("fallocate --punch-hole -o 100MiB -l 50MiB {}", image.display()));
    let facts = volume.facts().await.unwrap();
    assert_eq!(facts.caveats, ["an image file is sparse: first writes allocate blocks"]);
    ledger.undo_all().await.unwrap();

    // What a container's own layer is: an overlay, here of two directories on a tmpfs.
    let dir = scratch.dir.path().join("overlay");
    let dir = dir.display();
    sh(&format!(
        "mkdir {dir} && mount -t tmpfs tmpfs {dir} && cd {dir} && mkdir l u w m && \
         mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m"
    ));
    let place = scratch.dir.path().join("overlay/m");
    let made = create("local", &ledger, &id, &storage("directory", &place), &work_dir).await;
    let facts = made.unwrap().facts().await.unwrap();
    ledger.undo_all().await.unwrap();
    sh(&format!("umount {dir}/m; umount {dir}"));
    assert_eq!(facts.caveats, ["the directory lies on overlay, a container's own layer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedulers_and_read_ahead_are_set_and_read_back() {
    with_helper_image();
    for site in ["local", "docker"] {
        let scratch = Scratch::new();
        let ledger = scratch.ledger();
        let mut storage = storage("ext4", &scratch.work_dir());
        let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
        volume.devices.scheduler = "mq-deadline".to_owned();
        volume.devices.read_ahead_bytes = Some(64 << 10);
        let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
        let volume = made.unwrap();
        let facts = volume.facts().await.unwrap();
        assert_eq!(facts.caveats, [""; 0]);
        let device = volume.devices().concat().remove(0);
        let chosen = sh(&format!("cat /sys/block/{device}/queue/scheduler"));
        assert!(chosen.contains("[mq-deadline]"), "{chosen}");
        assert_eq!(fact(&facts, "loop_scheduler"), "mq-deadline");
        let sectors = sh(&format!("blockdev --getra /dev/{device}"));
        assert_eq!(sectors.trim().parse::<u64>().unwrap() * 512, 64 << 10);
        assert_eq!(fact(&facts, "loop_read_ahead_bytes"), "65536");
        // Somebody sets it back.
        sh(&format!("blockdev --setra 256 /dev/{device}"));
        let error = volume.facts().await.unwrap_err();
        assert_eq!(error.message, "`storage.read_ahead` is 65536, but the loop device has 131072");
        ledger.undo_all().await.unwrap();
        assert_eq!(scratch.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn btrfs_puts_devices_together_and_writes_in_place_when_asked() {
    with_helper_image();
    // The profiles as `btrfs filesystem df` names them.
    let cases = [
        (Layout::Single, 1, true, "Data, single:", "Metadata, DUP:"),
        (Layout::Raid0, 2, false, "Data, RAID0:", "Metadata, RAID1:"),
        (Layout::Raid1, 2, true, "Data, RAID1:", "Metadata, RAID1:"),
        (Layout::Raid10, 4, false, "Data, RAID10:", "Metadata, RAID10:"),
    ];
    for site in ["local", "docker"] {
        for (layout, devices, nodatacow, data, metadata) in cases {
            let scratch = Scratch::new();
            let ledger = scratch.ledger();
            let mut storage = storage("btrfs", &scratch.work_dir());
            let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
            volume.devices = Devices::new(250 * MIB, layout, devices);
            volume.nodatacow = nodatacow;
            let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
            let volume = made.unwrap();
            let facts = volume.facts().await.unwrap();
            assert_eq!(facts.caveats, [""; 0]);
            assert_eq!(fact(&facts, "data_profile"), layout.word());
            assert_eq!(fact(&facts, "nodatacow"), nodatacow.to_string());
            let names: Vec<&str> = fact(&facts, "loop_device").split(' ').collect();
            assert_eq!(names.len(), devices as usize);
            let bytes: u64 = names
                .iter()
                .map(|name| sh(&format!("blockdev --getsize64 {name}")))
                .map(|size| size.trim().parse::<u64>().unwrap())
                .sum();
            assert_eq!(fact(&facts, "image_bytes"), bytes.to_string());

            let script = "mkdir DIR/new; echo x > DIR/new/file; btrfs filesystem df DIR; \
                          lsattr DIR/new/file; df -B1 --output=size DIR | tail -n 1";
            let seen = match volume.location() {
                VolumeLocation::Path(path) => sh(&script.replace("DIR", path.to_str().unwrap())),
                VolumeLocation::DockerVolume(name) => sh(&format!(
                    "docker run --rm -v {name}:/data {STORAGE_HELPER_IMAGE} sh -c '{}'",
                    script.replace("DIR", "/data")
                )),
                VolumeLocation::Existing => panic!("not a volume"),
            };
            assert!(seen.contains(data) && seen.contains(metadata), "{seen}");
            let attributes = seen.lines().find(|line| line.ends_with("/new/file")).unwrap();
            assert_eq!(attributes.split(' ').next().unwrap().contains('C'), nodatacow);
            // What can be filled is what was asked for, within a page a device.
            let room: u64 = seen.lines().last().unwrap().trim().parse().unwrap();
            let page = 4096 * u64::from(devices);
            assert!((250 * MIB..=250 * MIB + page).contains(&room), "{layout:?}: {room}");

            assert!(volume.settle(Duration::from_secs(8)).await.unwrap());
            ledger.undo_all().await.unwrap();
            assert_eq!(scratch.leftovers(), Vec::<String>::new());
        }
    }
}

/// Many kernels have no md, and that is what is said then. This runs for real where they have.
#[tokio::test(flavor = "multi_thread")]
async fn arrays_join_the_devices_of_what_does_not_join_them_itself() {
    let scratch = Scratch::new();
    let offered = capabilities(&scratch.state_dir(), None, &[]).await;
    if let Availability::Missing { reason, .. } = offered.md {
        let md = Path::new("/proc/mdstat").exists();
        assert_eq!(reason, if md { "`mdadm` is not installed" } else { "the kernel has no md" });
        return;
    }
    for (layout, devices) in [(Layout::Raid0, 2), (Layout::Raid1, 2), (Layout::Raid10, 4)] {
        let ledger = scratch.ledger();
        let mut storage = storage("ext4", &scratch.work_dir());
        let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
        volume.devices = Devices::new(200 * MIB, layout, devices);
        let id = scratch.id();
        let made = create("local", &ledger, &id, &storage, &scratch.work_dir()).await;
        let volume = made.unwrap();
        let facts = volume.facts().await.unwrap();
        assert_eq!(fact(&facts, "md_level"), layout.word());
        assert_eq!(fact(&facts, "md_devices"), devices.to_string());
        let state = sh("cat /proc/mdstat");
        let arrays = state.lines().filter(|line| line.starts_with("md")).collect::<Vec<_>>();
        assert_eq!(arrays.len(), 1, "{state}");
        assert!(arrays[0].contains(&format!("active {} ", layout.word())), "{state}");
        assert_eq!(arrays[0].matches("loop").count(), devices as usize);
        let VolumeLocation::Path(path) = volume.location() else { panic!("not a directory") };
        std::fs::write(path.join("file"), vec![1; 1 << 20]).unwrap();
        // What can be filled is what was asked for, but for what md and ext4 take.
        let room = volume.room().await.unwrap();
        assert!((180 * MIB..=200 * MIB).contains(&room.bytes), "{layout:?}: {room:?}");
        assert!(volume.probe().await.unwrap().unwrap().caveats(false).is_empty());
        assert!(volume.settle(Duration::from_secs(20)).await.unwrap());
        ledger.undo_all().await.unwrap();
        assert!(!sh("cat /proc/mdstat").contains("active"));
        assert_eq!(scratch.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_put_together_as_asked_and_their_properties_read_back() {
    // What `zpool status` shows of each layout: groups, and devices in all.
    let cases: [(_, _, &[(&str, &str)], _); 5] = [
        (Layout::Single, 1, &[("recordsize", "8k"), ("atime", "off")], (0, 1)),
        (Layout::Raid0, 2, &[("logbias", "throughput")], (0, 2)),
        (Layout::Raid1, 2, &[("compression", "on"), ("recordsize", "32K")], (1, 2)),
        (Layout::Raid10, 4, &[("primarycache", "metadata")], (2, 4)),
        (Layout::Raidz, 3, &[("checksum", "sha256")], (1, 3)),
    ];
    for (layout, devices, options, (groups, members)) in cases {
        let scratch = Scratch::new();
        let ledger = scratch.ledger();
        let pairs = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let volume = ZfsVolume {
            devices: Devices::new(160 * MIB, layout, devices),
            ashift: Some(12),
            options: pairs.collect(),
        };
        let storage = StoragePlan::fresh("zfs", StorageKind::Zfs(volume));
        let id = scratch.id();
        let made = create("local", &ledger, &id, &storage, &scratch.work_dir()).await;
        let volume = made.unwrap();
        let facts = volume.facts().await.unwrap();
        assert_eq!((fact(&facts, "zfs_layout"), fact(&facts, "zfs_ashift")), (layout.word(), "12"));
        let pool = id.resource_name();
        let status = sh(&format!("zpool status {pool}"));
        let lines =
            |word: &str| status.lines().filter(|line| line.trim_start().starts_with(word)).count();
        assert_eq!((lines("mirror-") + lines("raidz1-"), lines("loop")), (groups, members));
        for (name, _) in options {
            let shown = sh(&format!("zfs get -H -p -o value {name} {pool}"));
            assert_eq!(fact(&facts, &format!("zfs_{name}")), shown.trim());
        }
        if fact(&facts, "fs_type").starts_with("fuse") {
            let words = "the database lies on fuse.zfs, a file system outside the kernel";
            assert_eq!(facts.caveats, [words]);
        }
        let VolumeLocation::Path(path) = volume.location() else { panic!("not a directory") };
        std::fs::write(path.join("file"), vec![0; 1 << 20]).unwrap();
        assert_eq!(volume.devices().concat().len(), devices as usize);
        assert!(volume.settle(Duration::from_secs(20)).await.unwrap());
        // Each write that is waited for flushes one member of a stripe, but both devices of a mirror.
        let probe = volume.probe().await.unwrap().unwrap();
        assert!(!probe.loses_flushes(), "{layout:?}: {probe:?}");
        assert!(probe.devices.unwrap().flushes.unwrap() < 2 * u64::from(SYNCS), "{layout:?}");
        ledger.undo_all().await.unwrap();
        assert!(!sh("zpool list -H -o name").lines().any(|name| name == pool));
        assert_eq!(scratch.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_property_that_zfs_does_not_have_is_an_error_and_is_undone() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let volume = ZfsVolume {
        devices: Devices::new(100 * MIB, Layout::Single, 1),
        ashift: None,
        options: [("nosuchproperty".to_owned(), "on".to_owned())].into(),
    };
    let storage = StoragePlan::fresh("zfs", StorageKind::Zfs(volume));
    let made = create("local", &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
    let error = made.err().unwrap();
    assert!(error.message.starts_with("`zpool` failed"), "{error}");
    assert!(error.evidence.unwrap().contains("nosuchproperty"));
    ledger.undo_all().await.unwrap();
    assert_eq!(scratch.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_somebody_else_is_refused_by_its_name() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    ledger.add("scope", Resource::Pool { name: "tank".to_owned() }).unwrap();
    let error = ledger.undo_all().await.unwrap_err();
    let words = "refusing to destroy the pool tank: its name is not one of ours";
    assert!(error.message.ends_with(words), "{error}");
    assert_eq!(ledger.entries().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn block_sizes_and_mount_options_of_the_ext_family_are_read_back() {
    with_helper_image();
    // What is set, and how the kernel shows it.
    let cases = [
        ("ext2", 1024, "noatime", "noatime"),
        ("ext2", 4096, "sync", "sync"),
        ("ext3", 1024, "data=journal", "data=journal"),
        ("ext3", 2048, "barrier=0", "nobarrier"),
        ("ext3", 4096, "data=writeback", "data=writeback"),
        ("ext4", 1024, "data=writeback", "data=writeback"),
        ("ext4", 4096, "data=journal", "data=journal"),
    ];
    for site in ["local", "docker"] {
        for (kind, block_size_bytes, option, shown) in cases {
            let scratch = Scratch::new();
            let ledger = scratch.ledger();
            let mut storage = storage(kind, &scratch.work_dir());
            let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
            volume.devices.size_bytes = 48 * MIB;
            volume.block_size_bytes = block_size_bytes;
            volume.mount_options = vec![option.to_owned()];
            let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
            let facts = made.unwrap().facts().await.unwrap();
            assert_eq!(fact(&facts, "fs_type"), kind);
            assert_eq!(fact(&facts, "block_size_bytes"), block_size_bytes.to_string());
            let options = fact(&facts, "mount_options");
            assert!(options.split(',').any(|known| known == shown), "{kind} {option}: {options}");
            let caveats = usize::from(shown == "nobarrier");
            assert_eq!(facts.caveats.len(), caveats, "{:?}", facts.caveats);
            ledger.undo_all().await.unwrap();
            assert_eq!(scratch.leftovers(), Vec::<String>::new());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_beyond_the_free_space_makes_nothing() {
    with_helper_image();
    for site in ["local", "docker"] {
        let scratch = Scratch::new();
        let ledger = scratch.ledger();
        let mut storage = storage("ext4", &scratch.work_dir());
        let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
        volume.devices.size_bytes = 1 << 50;
        let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
        let error = made.err().unwrap();
        assert_eq!(error.kind, ErrorKind::Provision);
        assert!(error.message.starts_with("`storage.size` of `ext4` is 1024 TiB, but"), "{error}");
        assert!(error.message.ends_with("free"), "{error}");
        ledger.undo_all().await.unwrap();
        assert_eq!(scratch.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_option_that_is_none_is_an_error_and_is_undone() {
    with_helper_image();
    for site in ["local", "docker"] {
        let scratch = Scratch::new();
        let ledger = scratch.ledger();
        let mut storage = storage("ext4", &scratch.work_dir());
        let StorageKind::Loop(volume) = &mut storage.kind else { unreachable!() };
        volume.devices.size_bytes = 32 * MIB;
        volume.mount_options = vec!["no_such_option".to_owned()];
        let made = create(site, &ledger, &scratch.id(), &storage, &scratch.work_dir()).await;
        let error = made.err().unwrap();
        assert!(error.evidence.is_some(), "{error:?}");
        ledger.undo_all().await.unwrap();
        assert_eq!(scratch.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_making_is_undone() {
    with_helper_image();
    for site in ["local", "docker"] {
        for milliseconds in [5, 60, 150, 300, 450, 700] {
            let scratch = Scratch::new();
            let ledger = scratch.ledger();
            let (id, storage) = (scratch.id(), storage("xfs", &scratch.work_dir()));
            let work_dir = scratch.work_dir();
            let making = create(site, &ledger, &id, &storage, &work_dir);
            drop(tokio::time::timeout(Duration::from_millis(milliseconds), making).await);
            ledger.undo_scope(&id.resource_name()).await.unwrap();
            assert_eq!(scratch.leftovers(), Vec::<String>::new());
            assert_eq!(ledger.entries(), []);
        }
    }
}

/// Not a test: what the kill drill runs in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn child_of_the_kill_drill() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [site, kind, dir, run] = task.split(' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let dir = Path::new(dir);
    let ledger = Arc::new(Ledger::open(&dir.join("state")).unwrap());
    let storage = storage(kind, &dir.join("work"));
    let _volume = create(site, &ledger, &id(run), &storage, &dir.join("work")).await.unwrap();
    std::fs::write(dir.join("made"), "").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_is_swept_and_decoys_stay() {
    with_helper_image();
    let decoys = Decoys::new();
    for (site, kind) in [
        ("local", "ext4"),
        ("local", "ext3"),
        ("local", "xfs"),
        ("local", "tmpfs"),
        ("local", "zfs"),
        ("docker", "ext4"),
    ] {
        // At the end, and at moments in between.
        for milliseconds in [None, Some(40), Some(130), Some(220), Some(380), Some(800)] {
            let scratch = Scratch::new();
            let task = format!("{site} {kind} {} {}", scratch.dir.path().display(), scratch.run);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child_of_the_kill_drill"])
                .env(CHILD, task)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            match milliseconds {
                Some(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
                None => {
                    while !scratch.dir.path().join("made").exists() {
                        assert!(child.try_wait().unwrap().is_none(), "{site} {kind}: child ended");
                        // The living owner's things are not touched.
                        let report = sweep(&scratch.state_dir()).await.unwrap();
                        assert_eq!((report.undone.len(), report.failed.len()), (0, 0));
                    }
                    assert!(!scratch.leftovers().is_empty());
                }
            }
            child.kill().unwrap();
            // Not waited for: a sweep must cope with an owner who is just dying.
            let report = sweep(&scratch.state_dir()).await.unwrap();
            child.wait().unwrap();
            assert_eq!(report.failed, Vec::<String>::new());
            let leftovers = scratch.leftovers();
            assert_eq!(leftovers, Vec::<String>::new(), "{site} {kind} {milliseconds:?}");
            let ledgers = std::fs::read_dir(scratch.state_dir().join("ledger"));
            assert_eq!(ledgers.map_or(0, Iterator::count), 0);
        }
    }
    decoys.check();
}

/// Things that are not ours and must survive every sweep.
struct Decoys {
    dir: TempDir,
    device: String,
    name: String,
}

impl Decoys {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("decoy-").tempdir().unwrap();
        let at = dir.path().display();
        let name = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        sh(&format!(
            "truncate -s 16M {at}/volume.img; mkdir {at}/mnt; mount -t tmpfs decoy {at}/mnt"
        ));
        let device = sh(&format!("losetup -f --show {at}/volume.img")).trim().to_owned();
        sh(&format!(
            "docker volume create {name}; docker create --name {name} {STORAGE_HELPER_IMAGE}"
        ));
        Self { dir, device, name }
    }

    fn check(&self) {
        let (at, name, device) = (self.dir.path().display(), &self.name, &self.device);
        assert!(sh(&format!("losetup -n -O BACK-FILE {device}")).contains(&format!("{at}")));
        assert!(sh("cat /proc/mounts").contains(&format!("decoy {at}/mnt")));
        assert!(sh("docker volume ls -q").contains(name));
        assert!(sh("docker ps -a --format '{{.Names}}'").contains(name));
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        let (at, name, device) = (self.dir.path().display(), &self.name, &self.device);
        sh(&format!(
            "umount {at}/mnt; losetup -d {device}; docker rm -f {name}; docker volume rm {name}"
        ));
    }
}

#[tokio::test]
async fn a_directory_that_is_not_ours_or_holds_a_mount_is_refused() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let foreign = tempfile::Builder::new().prefix("foreign-").tempdir().unwrap();
    ledger.add("t", Resource::Directory { path: foreign.path().to_owned() }).unwrap();
    let error = ledger.undo_all().await.unwrap_err();
    assert!(error.message.contains("not one of ours"), "{error}");
    assert!(foreign.path().exists());

    let ours = scratch.dir.path().join("bedplate-x");
    std::fs::create_dir_all(ours.join("deep/mnt")).unwrap();
    sh(&format!("mount -t tmpfs x {0}; touch {0}/file", ours.join("deep/mnt").display()));
    ledger.add("u", Resource::Directory { path: ours.clone() }).unwrap();
    let error = ledger.undo_scope("u").await.unwrap_err();
    assert!(error.message.contains("is mounted"), "{error}");
    assert!(ours.join("deep/mnt/file").exists());
    sh(&format!("umount {}", ours.join("deep/mnt").display()));
    ledger.undo_scope("u").await.unwrap();
    assert!(!ours.exists());
}

#[tokio::test]
async fn a_server_process_is_ended_by_its_data_directory() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let (ours, other) = (scratch.dir.path().join("ours"), scratch.dir.path().join("other"));
    let server = |dir: &Path| {
        std::fs::create_dir(dir).unwrap();
        // A process has the name of the file by which it was started.
        let program = dir.join("postgres");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        Command::new(program).arg("60").current_dir(dir).spawn().unwrap()
    };
    let (mut a, mut b) = (server(&ours), server(&other));
    // A zombie has no working directory any more, so nobody has to reap it first.
    ledger.add("t", Resource::ServerProcess { data_dir: ours }).unwrap();
    ledger.undo_all().await.unwrap();
    assert!(a.try_wait().unwrap().is_some());
    assert!(b.try_wait().unwrap().is_none());
    b.kill().unwrap();
    b.wait().unwrap();
}

#[tokio::test]
async fn a_torn_line_is_tolerated_and_an_unknown_one_is_kept() {
    let scratch = Scratch::new();
    let ledger = scratch.ledger();
    let (first, second) =
        (scratch.dir.path().join("bedplate-a"), scratch.dir.path().join("bedplate-b"));
    for path in [&first, &second] {
        std::fs::create_dir(path).unwrap();
    }
    let gone = ledger.add("t", Resource::Directory { path: first.clone() }).unwrap();
    ledger.add("t", Resource::Directory { path: second.clone() }).unwrap();
    ledger.done(gone).unwrap();
    let file = scratch.state_dir().join("ledger").join(format!("{}.jsonl", ledger.name()));
    let text = std::fs::read_to_string(&file).unwrap();
    drop(ledger);
    // The dead owner's file, with the line that it could not finish.
    std::fs::write(&file, format!("{text}{{\"add\":2,\"sco")).unwrap();
    let report = sweep(&scratch.state_dir()).await.unwrap();
    assert_eq!(report.undone, [format!("directory {}", second.display())]);
    assert_eq!(report.failed, Vec::<String>::new());
    assert!(first.exists() && !second.exists() && !file.exists());

    std::fs::write(&file, "{\"add\":0,\"scope\":\"t\",\"resource\":{\"kind\":\"pool\"}}\n")
        .unwrap();
    let report = sweep(&scratch.state_dir()).await.unwrap();
    assert_eq!((report.undone.len(), report.failed.len()), (0, 1));
    assert!(file.exists());
}

#[tokio::test]
async fn what_cannot_be_undone_stays_on_the_ledger() {
    let scratch = Scratch::new();
    let file = {
        let ledger = scratch.ledger();
        ledger.add("t", Resource::Directory { path: "/nowhere/of/ours".into() }).unwrap();
        scratch.state_dir().join("ledger").join(format!("{}.jsonl", ledger.name()))
    };
    for _ in 0..2 {
        let report = sweep(&scratch.state_dir()).await.unwrap();
        assert_eq!((report.undone.len(), report.failed.len()), (0, 1));
        assert!(file.exists());
    }
}

#[tokio::test]
async fn a_ledger_is_private_and_goes_when_empty() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let dir = scratch.state_dir().join("ledger");
    let ledger = scratch.ledger();
    let file = dir.join(format!("{}.jsonl", ledger.name()));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(&dir)), (0o600, 0o700));
    assert_eq!(sweep(&scratch.state_dir()).await.unwrap(), Default::default());
    assert!(file.exists());
    drop(ledger);
    assert!(!file.exists());
}
