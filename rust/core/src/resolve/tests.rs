use std::collections::BTreeSet;

use super::*;
use crate::ErrorKind;
use crate::capabilities::{Availability, Binaries, DeviceOffer, EngineOffer, ZfsOffer};
use crate::plan::{
    CacheState, Devices, EngineKind, FileSystem, Initdb, Layout, LoopVolume, Provision,
    QueryProtocol, RunLength, Scaled, StorageKind, TlsMode, TransportKind, Work,
};
use crate::slap::LoadType;

const MIB: u64 = 1 << 20;

fn missing(reason: &str, remedy: &str) -> Availability {
    Availability::Missing { reason: reason.to_owned(), remedy: remedy.to_owned() }
}

/// Root with everything.
fn rich() -> Capabilities {
    Capabilities {
        root: true,
        cpus: 2,
        memory_bytes: 8 << 30,
        docker: Availability::Available,
        loop_devices: Availability::Available,
        schedulers: ["none", "mq-deadline"].map(str::to_owned).to_vec(),
        md: missing("the kernel has no md", "run `modprobe md-mod`"),
        docker_shares_kernel: true,
        mkfs: FileSystem::ALL.map(|known| (known, Availability::Available)).into(),
        zfs: ZfsOffer {
            pools: missing("`zpool` is not installed", "install OpenZFS"),
            implementation: String::new(),
            properties: Vec::new(),
        },
        devices: BTreeMap::new(),
        filesystems: ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"].map(str::to_owned).to_vec(),
        engines: BTreeMap::from([
            (
                EngineKind::Postgres,
                offer(
                    &[("9.6.24", "/pg/9.6/bin"), ("15.18", "/pg/15/bin")],
                    &[("13", "postgres@sha256:1")],
                    &[],
                ),
            ),
            (
                EngineKind::MariaDb,
                offer(
                    &[("10.11.14", "/usr/sbin")],
                    &[
                        ("10.3", "mariadb@sha256:39"),
                        ("10.3.39", "mariadb@sha256:39"),
                        ("10.3.8", "mariadb@sha256:8"),
                        ("10.5", "bedplate/mariadb:10.5"),
                    ],
                    &["bedplate/mariadb:10.5"],
                ),
            ),
        ]),
        state_dir: "/state".into(),
        free_bytes: 40 << 30,
    }
}

fn offer(binaries: &[(&str, &str)], pinned: &[(&str, &str)], built: &[&str]) -> EngineOffer {
    let binaries = binaries.iter().map(|(version, bin_dir)| Binaries {
        version: (*version).to_owned(),
        bin_dir: bin_dir.into(),
    });
    let pinned =
        pinned.iter().map(|(version, image)| ((*version).to_owned(), vec![(*image).to_owned()]));
    EngineOffer {
        binaries: binaries.collect(),
        pinned_images: pinned.collect(),
        built_images: built.iter().map(|image| (*image).to_owned()).collect(),
    }
}

/// No root, no Docker, no binaries.
fn poor() -> Capabilities {
    Capabilities {
        root: false,
        docker: missing("the daemon does not answer", "systemctl start docker"),
        engines: BTreeMap::new(),
        ..rich()
    }
}

fn resolve(text: &str, capabilities: &Capabilities) -> Result<Plan> {
    plan(&Spec::from_toml(text).expect(text), capabilities)
}

fn resolved(text: &str) -> Plan {
    resolve(text, &rich()).expect(text)
}

fn error_of(text: &str, capabilities: &Capabilities) -> (ErrorKind, String) {
    let error = resolve(text, capabilities).expect_err(text);
    let shown = match error.hint {
        Some(hint) => format!("{} | {hint}", error.message),
        None => error.message,
    };
    (error.kind, shown)
}

const EXT4: &str = "[storage]\nkind = \"ext4\"\n";

#[test]
fn every_default_is_filled() {
    let plan = resolved(EXT4);
    assert_eq!(plan.plan_version, PLAN_VERSION);
    assert_eq!(plan.name, "unnamed");
    assert_eq!(plan.site, SiteKind::Local);
    assert_eq!(plan.work_dir, PathBuf::from("/state/work"));
    let [cell] = plan.cells.as_slice() else { panic!("one cell") };
    assert_eq!(cell.label, "ext4");
    assert_eq!(
        cell.levels,
        BTreeMap::from([
            ("engine".to_owned(), "postgres-13".to_owned()),
            ("storage".to_owned(), "ext4".to_owned()),
        ])
    );
    assert_eq!(cell.engine.version, "13");
    assert!(!cell.engine.allow_other_version);
    assert_eq!(
        cell.engine.provision,
        Provision::Container {
            images: vec!["postgres@sha256:1".to_owned()],
            shm_size_bytes: 256 * MIB,
            memory_bytes: None,
            cpus: None,
        }
    );
    assert_eq!(cell.engine.transport, TransportKind::Unix);
    let settings: Vec<_> = cell.engine.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(settings, ["fsync=on", "full_page_writes=on", "synchronous_commit=on"]);
    assert_eq!((cell.engine.tls, &cell.engine.tls_ca), (TlsMode::Off, &None));
    assert_eq!(
        cell.engine.initdb,
        Some(Initdb { locale: "C".into(), encoding: "UTF8".into(), checksums: false })
    );
    // Scale 1, 13 s: 96 + 15 + 9 + 13 + 15 + 624 = 772 MiB; / 0.92 = 839.1; up to 64.
    assert_eq!(
        cell.storage.kind,
        StorageKind::Loop(LoopVolume {
            file_system: FileSystem::Ext4,
            devices: Devices::new(896 * MIB, Layout::Single, 1),
            block_size_bytes: 4096,
            nodatacow: false,
            mkfs_options: vec![],
            mount_options: vec!["noatime".to_owned()],
        })
    );
    let workload = &cell.workload;
    assert_eq!(workload.work, Work::Tpcb(Scaled { scale: 1, filler_random_percent: 0 }));
    assert_eq!((workload.clients, workload.threads), (1, 1));
    assert_eq!(workload.protocol, QueryProtocol::Simple);
    assert_eq!((workload.length, workload.warmup_s), (RunLength::DurationS(10.0), 3.0));
    assert_eq!(plan.design.profile, Profile::Smoke);
    assert_eq!((plan.design.blocks, plan.design.seed), (1, 20));
    assert_eq!(plan.design.baseline, BTreeMap::new());
    assert_eq!(plan.design.order, [[0]]);
}

#[test]
fn a_file_system_on_a_loop_device_is_filled_alike() {
    for file_system in [FileSystem::Ext2, FileSystem::Ext3, FileSystem::Ext4, FileSystem::Xfs] {
        let keys = "block_size = 1024\nmkfs_options = [\"-v\"]\nmount_options = [\"nobarrier\"]";
        let plan = resolved(&format!("[storage]\nkind = \"{}\"\n{keys}", file_system.word()));
        assert_eq!(
            plan.cells[0].storage.kind,
            StorageKind::Loop(LoopVolume {
                file_system,
                devices: Devices::new(896 * MIB, Layout::Single, 1),
                block_size_bytes: 1024,
                nodatacow: false,
                mkfs_options: vec!["-v".to_owned()],
                mount_options: vec!["nobarrier".to_owned()],
            })
        );
    }
}

#[test]
fn several_devices_hold_what_was_asked_for() {
    let volumes = |keys: &str| -> Vec<LoopVolume> {
        let plan = resolved(&format!("[storage]\nkind = \"btrfs\"\nsize = \"3GiB\"\n{keys}"));
        let volumes = plan.cells.iter().map(|cell| match &cell.storage.kind {
            StorageKind::Loop(volume) => volume.clone(),
            other => panic!("{other:?}"),
        });
        volumes.collect()
    };
    let all = volumes("layout = [\"single\", \"raid0\", \"raid1\", \"raid10\"]");
    let sizes: Vec<_> = all
        .iter()
        .map(|it| (it.devices.count, it.devices.each_bytes() / MIB, it.devices.bytes() / MIB))
        .collect();
    assert_eq!(sizes, [(1, 3072, 3072), (2, 1536, 3072), (2, 3072, 6144), (4, 1536, 6144)]);
    let three = &volumes("layout = \"raid0\"\ndevices = 3\nnodatacow = true")[0];
    assert_eq!(
        (three.devices.count, three.devices.each_bytes(), three.nodatacow),
        (3, 1024 * MIB, true)
    );
    // What does not divide is rounded up to pages.
    let odd = Devices { size_bytes: 3 * 4096 * 10 + 1, ..three.devices.clone() };
    assert_eq!(odd.each_bytes(), 11 * 4096);
    let both = resolved("[storage]\nkind = \"btrfs\"\nnodatacow = [false, true]");
    let levels: Vec<&str> =
        both.cells.iter().map(|cell| cell.levels["nodatacow"].as_str()).collect();
    assert_eq!(levels, ["false", "true"]);
}

#[test]
fn a_pool_has_the_properties_that_zfs_has() {
    let zfs = ZfsOffer {
        pools: Availability::Available,
        implementation: "zfs-fuse".to_owned(),
        properties: vec!["recordsize".to_owned(), "atime".to_owned()],
    };
    let machine = Capabilities { zfs, ..rich() };
    let spec = |keys: &str| {
        format!(
            "[[storage]]\nkind = \"ext4\"\n[[storage]]\nkind = \"zfs\"\nsize = \"1GiB\"\n{keys}\n"
        )
    };
    let keys = "layout = \"raidz\"\nashift = 12\noptions = { recordsize = \"32k\", atime = false }";
    let plan = resolve(&spec(keys), &machine).expect("it is right");
    assert_eq!(plan.unavailable, []);
    let StorageKind::Zfs(volume) = &plan.cells[1].storage.kind else { panic!("zfs") };
    assert_eq!(
        (volume.devices.layout, volume.devices.count, volume.ashift),
        (Layout::Raidz, 3, Some(12))
    );
    // Of three devices one holds the parity.
    assert_eq!((volume.devices.each_bytes(), volume.devices.bytes()), (512 * MIB, 1536 * MIB));
    assert_eq!(volume.options["atime"], "off");

    let plan = resolve(&spec("options = { sync = \"disabled\" }"), &machine).expect("ext4 is left");
    assert_eq!(plan.unavailable[0].reason, "zfs-fuse has no property `sync`");
    let docker = format!("site = \"docker\"\n{}", spec(""));
    let plan = resolve(&docker, &machine).expect("ext4 is left");
    assert!(plan.unavailable[0].reason.starts_with("zfs is not made at site docker"));
    let (_, message) = error_of(&spec("layout = \"raid0\"\ndevices = 20"), &machine);
    assert!(
        message.contains("makes 20 devices of 51.2 MiB, but ZFS refuses less than 64 MiB"),
        "{message}"
    );
}

/// A machine with a ZFS.
fn with_zfs() -> Capabilities {
    let zfs = ZfsOffer {
        pools: Availability::Available,
        implementation: "OpenZFS".to_owned(),
        properties: vec!["recordsize".to_owned()],
    };
    Capabilities { zfs, ..rich() }
}

#[test]
fn settings_are_tuned_to_what_the_file_system_makes_useless() {
    let storages = [
        "kind = \"ext4\"",
        "kind = \"btrfs\"",
        "kind = \"btrfs\"\nlabel = \"in place\"\nnodatacow = true",
        "kind = \"zfs\"\nlabel = \"records of 128K\"",
        "kind = \"zfs\"\nlabel = \"records of 4K\"\noptions = { recordsize = \"4K\" }",
        "kind = \"zfs\"\nlabel = \"records of 8k\"\noptions = { recordsize = \"8k\" }",
    ];
    let storages: String = storages.iter().map(|keys| format!("[[storage]]\n{keys}\n")).collect();
    let settings = |engine: &str| -> Vec<String> {
        let spec = format!("[engine]\n{engine}\nsettings_profile = [\"stock\", \"fs-tuned\"]\n");
        let plan = resolve(&format!("{spec}{storages}"), &with_zfs()).expect("it is right");
        let of = |profile: &str| -> Vec<Vec<String>> {
            let cells = plan.cells.iter().filter(|it| it.levels["settings_profile"] == profile);
            let pairs = |cell: &crate::plan::Cell| -> Vec<String> {
                let settings = &cell.engine.settings;
                settings.iter().map(|(name, value)| format!("{name}={value}")).collect()
            };
            cells.map(pairs).collect()
        };
        let (stock, tuned) = (of("stock"), of("fs-tuned"));
        assert_eq!((stock.len(), tuned.len()), (6, 6));
        // What the profile adds or changes.
        let new = |(stock, tuned): (&Vec<String>, &Vec<String>)| {
            let new: Vec<&str> =
                tuned.iter().filter(|it| !stock.contains(it)).map(String::as_str).collect();
            new.join(" ")
        };
        stock.iter().zip(&tuned).map(new).collect()
    };
    let log = "wal_init_zero=off wal_recycle=off";
    let whole = format!("full_page_writes=off {log}");
    assert_eq!(settings(""), ["", log, "", &whole, log, &whole]);
    // A page of 4 kB fits into records of 4K.
    assert_eq!(settings("block_size = \"4kB\"")[4], whole);
    // What is stated stays.
    let stated = "settings = { full_page_writes = true, wal_recycle = true }";
    assert_eq!(settings(stated)[3], "wal_init_zero=off");
    // A page of InnoDB has 16 KiB.
    let doublewrite = "innodb_doublewrite=OFF";
    let mariadb = "kind = \"mariadb\"";
    assert_eq!(settings(mariadb), ["", "", "", doublewrite, "", ""]);
    let small = format!("{mariadb}\nsettings = {{ innodb_page_size = \"8k\" }}");
    assert_eq!(settings(&small)[5], doublewrite);
}

#[test]
fn page_sizes_name_the_image_that_has_them() {
    let plan = resolved(&format!("[engine]\nblock_size = [\"1kB\", \"32kB\"]\n{EXT4}"));
    let labels: Vec<&str> = plan.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(labels, ["ext4/engine.block_size=1kB", "ext4/engine.block_size=32kB"]);
    let Provision::Container { images, .. } = &plan.cells[0].engine.provision else {
        panic!("no container")
    };
    assert_eq!(images[..], ["bedplate/postgres:13-block-1kB-wal-8kB"]);
    assert_eq!(plan.cells[0].engine.pages.map(|pages| pages.block_size_bytes), Some(1024));
    assert_eq!(resolved(EXT4).cells[0].engine.pages, None);
    for (keys, words) in [
        ("block_size = \"3kB\"", "`engine.block_size` is 3072 bytes (allowed: 1kB, 2kB"),
        ("block_size = \"64kB\"", "`engine.block_size` is 65536 bytes (allowed: 1kB, 2kB"),
        ("wal_block_size = 100", "`engine.wal_block_size` is 100 bytes (allowed: 1kB, 2kB"),
        ("block_size = \"4kB\"\nversion = \"15\"", "page sizes are compiled into PostgreSQL 13"),
        ("block_size = \"4kB\"\nkind = \"mariadb\"", "does not go with `engine.kind`"),
    ] {
        let (_, message) = error_of(&format!("[engine]\n{keys}\n{EXT4}"), &rich());
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn arrays_of_md_join_what_does_not_join_devices_itself() {
    let machine = Capabilities { md: Availability::Available, ..rich() };
    let spec =
        "[storage]\nkind = \"xfs\"\nsize = \"2GiB\"\nlayout = [\"raid0\", \"raid1\", \"raid10\"]";
    let plan = resolve(spec, &machine).expect("it is right");
    let sizes: Vec<_> = plan
        .cells
        .iter()
        .filter_map(|cell| cell.storage.kind.devices())
        .map(|devices| (devices.count, devices.each_bytes() / MIB))
        .collect();
    assert_eq!(sizes, [(2, 1024), (2, 2048), (4, 1024)]);
    // A mirror of more than two holds no more than one of two.
    for kind in ["xfs", "zfs"] {
        let spec = format!("[storage]\nkind = \"{kind}\"\nlayout = \"raid1\"\ndevices = 4");
        let (_, message) = error_of(&spec, &machine);
        assert!(message.contains("`storage.layout` \"raid1\" is two devices"), "{message}");
    }
    let docker = "site = \"docker\"\n[[storage]]\nkind = \"ext4\"\n[[storage]]\nkind = \"xfs\"\n\
                  layout = \"raid1\"";
    let plan = resolve(docker, &machine).expect("ext4 is left");
    assert_eq!(plan.unavailable[0].reason, "arrays of md are not made at site docker");
}

#[test]
fn schedulers_are_those_of_the_kernel() {
    let spec = "[storage]\nkind = \"ext4\"\nscheduler = [\"none\", \"mq-deadline\", \"cfq\"]\n\
                read_ahead = \"128KiB\"";
    let plan = resolved(spec);
    let labels: Vec<&str> = plan.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(labels, ["ext4/scheduler=none", "ext4/scheduler=mq-deadline"]);
    let devices = plan.cells[1].storage.kind.devices().expect("a loop volume");
    assert_eq!(devices.scheduler, "mq-deadline");
    assert_eq!(devices.read_ahead_bytes, Some(128 << 10));
    assert_eq!(plan.unavailable[0].reason, "the kernel has no scheduler `cfq` for loop devices");
    assert_eq!(plan.unavailable[0].remedy, "use one of: none, mq-deadline");
    let (_, message) = error_of("[storage]\nkind = \"ext4\"\nread_ahead = 1000", &rich());
    assert!(message.starts_with("`storage.read_ahead` is 1000 B, but must be"), "{message}");
}

#[test]
fn profiles_set_lengths_and_blocks() {
    for (profile, blocks, warmup_s, duration_s) in [
        ("smoke", 1, 3.0, 10.0),
        ("gate", 10, 30.0, 90.0),
        ("publish", 10, 300.0, 900.0),
        ("calibrate", 10, 30.0, 90.0),
    ] {
        let plan = resolved(&format!("{EXT4}[design]\nprofile = \"{profile}\""));
        assert_eq!(plan.design.blocks, blocks);
        assert_eq!(plan.cells[0].workload.warmup_s, warmup_s);
        assert_eq!(plan.cells[0].workload.length, RunLength::DurationS(duration_s));
    }
}

#[test]
fn a_device_that_is_none_is_a_reason_and_no_size() {
    let mut machine = rich();
    let available = missing("/dev/none is not a block device", "see `lsblk`");
    machine.devices.insert("/dev/none".into(), DeviceOffer { bytes: 0, id: None, available });
    let storage = "[[storage]]\nkind = \"ext4\"\ndevice = \"/dev/none\"\nerase = \"x\"\n";
    let text = format!("[[storage]]\nkind = \"xfs\"\n{storage}");
    let plan = resolve(&text, &machine).expect("xfs is left");
    let reason = &plan.unavailable[0].reason;
    assert!(reason.contains("/dev/none is not a block device"), "{reason}");
}

#[test]
fn a_volume_grows_by_what_its_ageing_fills() {
    let plan = resolved(&format!("{EXT4}fullness = [0, 50, 80]\nchurn = 3\n"));
    let aged = plan.cells.iter().map(|cell| {
        let bytes = cell.storage.kind.devices().expect("a loop device").size_bytes;
        (cell.storage.ageing.map(|ageing| (ageing.fullness_percent, ageing.churn)), bytes)
    });
    let aged: Vec<_> = aged.collect();
    assert_eq!(
        aged.iter().map(|(of, _)| *of).collect::<Vec<_>>(),
        [None, Some((50, 3)), Some((80, 3))]
    );
    // What is left beside those files is what a fresh volume has, within what sizes are rounded to.
    let left = |bytes: u64, percent: u64| bytes * (100 - percent) / 100;
    for ((_, bytes), percent) in aged.iter().zip([0, 50, 80]) {
        assert!(left(*bytes, percent).abs_diff(aged[0].1) <= 64 * MIB, "{aged:?}");
    }
}

#[test]
fn nothing_warms_up_what_is_compared_with_a_cold_cell() {
    let plan = resolved(&format!("{EXT4}[workload]\ncache = [\"warm\", \"cold\"]"));
    let cells = plan.cells.iter().map(|cell| (cell.workload.cache, cell.workload.warmup_s));
    assert_eq!(cells.collect::<Vec<_>>(), [(CacheState::Warm, 0.0), (CacheState::Cold, 0.0)]);
    assert_eq!(plan.cells[1].label, "ext4/cache=cold");
}

#[test]
fn memory_and_zfs_are_never_cold() {
    let storage = |kind| format!("[[storage]]\nkind = \"{kind}\"\n");
    let storages = ["ext4", "tmpfs", "zfs"].map(storage).concat();
    let text = format!("{storages}[workload]\ncache = \"cold\"");
    let plan = resolve(&text, &with_zfs()).expect("ext4 is left");
    assert_eq!(plan.cells.len(), 1);
    let reasons: Vec<&str> = plan.unavailable.iter().map(|cell| cell.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "tmpfs is memory, which is never cold",
            "the cache of ZFS cannot be told to forget a volume"
        ]
    );
}

#[test]
fn threads_default_to_clients_and_half_of_the_cpus() {
    let threads = |cpus: u32, workload: &str| -> Vec<u32> {
        let machine = Capabilities { cpus, ..rich() };
        let text = format!("{EXT4}[workload]\nclients = [1, 2, 8]\n{workload}");
        let plan = resolve(&text, &machine).expect("it is right");
        plan.cells.iter().map(|cell| cell.workload.threads).collect()
    };
    assert_eq!(threads(1, ""), [1, 1, 1]);
    assert_eq!(threads(2, ""), [1, 1, 1]);
    assert_eq!(threads(5, ""), [1, 2, 2]);
    assert_eq!(threads(64, ""), [1, 2, 8]);
    assert_eq!(threads(8, "instances = 2"), [1, 2, 2]);
}

#[test]
fn site_and_provision_follow_the_machine() {
    let mut machine = rich();
    let site = |text: &str, machine: &Capabilities| {
        let plan = resolve(text, machine).expect(text);
        let container = matches!(plan.cells[0].engine.provision, Provision::Container { .. });
        (plan.site, container)
    };
    assert_eq!(site(EXT4, &machine), (SiteKind::Local, true));
    machine.root = false;
    assert_eq!(site(EXT4, &machine), (SiteKind::Docker, true));
    let process =
        "[engine]\nprovision = \"process\"\nversion = \"15\"\n[storage]\nkind = \"directory\"";
    assert_eq!(site(process, &machine), (SiteKind::Local, false));
    machine.docker = missing("it is off", "start it");
    let plain = "[engine]\nversion = \"15\"\n[storage]\nkind = \"directory\"";
    assert_eq!(site(plain, &machine), (SiteKind::Local, false));
}

#[test]
fn cells_are_the_cross_product_in_the_order_of_the_spec() {
    let plan = resolved(
        r#"
        [engine]
        settings = { max_wal_size = ["1GB", "4GB"], work_mem = "8MB" }
        [[storage]]
        kind = "xfs"
        [[storage]]
        kind = "ext4"
        block_size = [1024, 4096]
        [workload]
        scale = [10, 1]
        clients = 4
        "#,
    );
    let labels: Vec<&str> = plan.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "xfs/settings.max_wal_size=1GB/scale=10",
            "xfs/settings.max_wal_size=1GB/scale=1",
            "ext4/settings.max_wal_size=1GB/block_size=1024/scale=10",
            "ext4/settings.max_wal_size=1GB/block_size=1024/scale=1",
            "ext4/settings.max_wal_size=1GB/block_size=4096/scale=10",
            "ext4/settings.max_wal_size=1GB/block_size=4096/scale=1",
            "xfs/settings.max_wal_size=4GB/scale=10",
            "xfs/settings.max_wal_size=4GB/scale=1",
            "ext4/settings.max_wal_size=4GB/block_size=1024/scale=10",
            "ext4/settings.max_wal_size=4GB/block_size=1024/scale=1",
            "ext4/settings.max_wal_size=4GB/block_size=4096/scale=10",
            "ext4/settings.max_wal_size=4GB/block_size=4096/scale=1",
        ]
    );
    let levels: Vec<String> =
        plan.cells[0].levels.iter().map(|(key, level)| format!("{key}={level}")).collect();
    assert_eq!(
        levels,
        [
            "block_size=none",
            "engine=postgres-13",
            "scale=10",
            "settings.max_wal_size=1GB",
            "storage=xfs"
        ]
    );
    assert_eq!(plan.cells[11].engine.settings["max_wal_size"], "4GB");
    assert_eq!(plan.cells[0].engine.settings["work_mem"], "8MB");
    // Volumes of one scale are equal, whatever else differs.
    let sizes: BTreeSet<(u32, u64)> = plan
        .cells
        .iter()
        .map(|cell| (cell.workload.work.scale().unwrap(), cell.disk_bytes()))
        .collect();
    assert_eq!(sizes.len(), 2);
}

#[test]
fn several_engines_are_in_the_labels() {
    let plan = resolved(
        r#"
        [[engine]]
        [[engine]]
        provision = "process"
        version = "15"
        transport = "tcp"
        [storage]
        kind = "ext4"
        "#,
    );
    let labels: Vec<&str> = plan.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(labels, ["postgres-13/ext4", "postgres-15/ext4"]);
    assert_eq!(plan.cells[1].engine.provision, Provision::Process { bin_dir: "/pg/15/bin".into() });
    assert_eq!(plan.cells[1].engine.transport, TransportKind::Tcp);
}

#[test]
fn each_block_is_a_permutation() {
    let text =
        format!("{EXT4}[workload]\nclients = [1, 2, 3, 4, 5, 6, 7, 8]\n[design]\nblocks = 50");
    let plan = resolved(&text);
    assert_eq!(plan.design.order.len(), 50);
    for order in &plan.design.order {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..8).collect::<Vec<_>>());
    }
    let different: BTreeSet<_> = plan.design.order.iter().collect();
    assert!(different.len() > 45);
    assert_eq!(plan.design.order, resolved(&text).design.order);
    // More blocks do not change the first ones.
    let longer = resolved(&text.replace("50", "60"));
    assert_eq!(longer.design.order[..50], plan.design.order);
    assert_ne!(resolved(&format!("{text}\nseed = 21")).design.order, plan.design.order);
}

#[test]
fn a_plan_id_is_of_the_content() {
    let base = "name = \"a\"\n[storage]\nkind = \"ext4\"\n[workload]\nclients = 2\n";
    let id = resolved(base).plan_id();
    assert_eq!(id.len(), 64);
    // The default, written out, changes nothing.
    assert_eq!(resolved(&format!("{base}protocol = \"simple\"")).plan_id(), id);
    assert_eq!(resolved(&base.replace("clients = 2", "clients = [2]")).plan_id(), id);
    let mut ids = BTreeSet::from([id]);
    for changed in [
        base.replace("\"a\"", "\"b\""),
        base.replace("ext4", "xfs"),
        base.replace("clients = 2", "clients = 3"),
        format!("{base}threads = 2"),
        format!("{base}warmup = 1"),
        format!("{base}duration = 11"),
        format!("{base}[design]\nseed = 1"),
        format!("{base}[design]\nblocks = 2"),
        format!("{base}[design]\nbaseline = {{ storage = \"ext4\" }}"),
        format!("{base}[engine]\nchecksums = true"),
        format!("{base}[engine]\nsettings = {{ fsync = false }}"),
        format!("{base}[engine]\nlabel = \"x\""),
        format!("site = \"docker\"\n{base}"),
        format!("work_dir = \"/elsewhere\"\n{base}"),
    ] {
        assert!(ids.insert(resolved(&changed).plan_id()), "{changed}");
    }
}

#[test]
fn a_plan_survives_json() {
    let plan = resolved(&format!("{EXT4}[workload]\nclients = [1, 8]\ntransactions = 10"));
    let json = serde_json::to_string(&plan).expect("writes");
    let back: Plan = serde_json::from_str(&json).expect("reads");
    assert_eq!(back, plan);
    assert_eq!(back.plan_id(), plan.plan_id());
}

#[test]
fn what_contradicts_itself_is_named() {
    let directory = "[storage]\nkind = \"directory\"\n";
    let url = "[engine]\nprovision = \"url\"\nurl = \"postgresql://db/x\"\n";
    let cases = [
        (
            String::new(),
            "`storage` is missing | add `[[storage]]` with a `kind`: directory, tmpfs, ext4, ext3, \
             ext2, xfs, btrfs, f2fs, nilfs2, zfs",
        ),
        (format!("{EXT4}[workload]\nscale = 0"), "`workload.scale` is 0, but must be at least 1"),
        (
            format!("{EXT4}[workload]\nclients = [1, 0]"),
            "`workload.clients` is 0, but must be at least 1",
        ),
        (
            format!("{EXT4}[workload]\nclients = 2\nthreads = 3"),
            "`workload.threads` is 3, more than `workload.clients`, which is 2 | a thread carries \
             at least one client; leave `threads` out to have it chosen",
        ),
        (
            format!("{EXT4}[workload]\nclients = 98"),
            "`workload.clients` is 98, but `engine.settings.max_connections` leaves room for 97 (its \
             default 100 less 3 for superusers) | set `engine.settings.max_connections` to at \
             least 101",
        ),
        (
            format!(
                "{EXT4}[engine]\nsettings = {{ max_connections = 20 }}\n[workload]\nclients = 18"
            ),
            "`workload.clients` is 18, but `engine.settings.max_connections` leaves room for 17 \
             (20 less 3 for superusers) | set `engine.settings.max_connections` to at least 21",
        ),
        (
            format!("{EXT4}[workload]\ninstances = 4\nclients = 25"),
            "`workload.clients` is 25 in each of 4 instances, but `engine.settings.max_connections` \
             leaves room for 97 (its default 100 less 3 for superusers) | set \
             `engine.settings.max_connections` to at least 103",
        ),
        (
            format!("{EXT4}[workload]\ninstances = 100"),
            "`workload.instances` is 100, but must be at most 99",
        ),
        (
            format!("{EXT4}[engine]\nsettings = {{ max_connections = \"many\" }}"),
            "`engine.settings.max_connections` is \"many\", but a whole number is expected",
        ),
        (
            format!("{EXT4}[engine]\nsettings = {{ fsync = \"maybe\" }}"),
            "`engine.settings.fsync` is \"maybe\" (allowed: on, off)",
        ),
        (
            format!("{EXT4}[engine]\nsettings = {{ Logging_Collector = \"on\" }}"),
            "`engine.settings.logging_collector` is \"on\", but bedplate sets it itself for each \
             trial | leave `logging_collector` out: paths, sockets and logs are chosen for each trial",
        ),
        (
            format!("{EXT4}{url}"),
            "`storage.kind` is \"ext4\", but `engine.provision` is \"url\", a server that has its \
             storage already | leave `storage` out",
        ),
        (
            format!("{url}checksums = true"),
            "`engine.checksums` does not go with `engine.provision` \"url\" | `checksums` is for \
             provision \"container\" and \"process\"",
        ),
        (
            format!("{url}transport = \"unix\""),
            "`engine.transport` is \"unix\", but `engine.url` says \"tcp\" | leave \
             `engine.transport` out",
        ),
        (
            format!("{url}settings = {{ work_mem = [1, 2] }}"),
            "`engine.settings.work_mem` has several levels, but the settings of a server that \
             exists already are not changed",
        ),
        (
            "[engine]\nprovision = \"url\"".to_owned(),
            "`engine.url` is missing, and provision \"url\" needs it | write \
             postgresql://USER@HOST:PORT/DATABASE",
        ),
        (
            format!("site = \"docker\"\n{directory}[engine]\nprovision = \"process\""),
            "`site` is \"docker\", but `engine.provision` is \"process\", which runs outside Docker \
             | set `site = \"local\"` or `provision = \"container\"`",
        ),
        (
            format!("{directory}[engine]\nprovision = \"process\"\nimage = \"postgres\""),
            "`engine.image` does not go with `engine.provision` \"process\" | `image` is for \
             provision \"container\"",
        ),
        (
            format!("{directory}[engine]\nbin_dir = \"/pg\""),
            "`engine.bin_dir` does not go with `engine.provision` \"container\" (the default here) | \
             `bin_dir` is for provision \"process\"",
        ),
        (
            format!("{directory}[engine]\nversion = \"14\""),
            "`engine.version` is \"14\", for which no image is pinned (pinned: 13) | name an image \
             with `engine.image`",
        ),
        (
            format!("{EXT4}block_size = 8192"),
            "`storage.block_size` is 8192 (allowed: 1024, 2048, 4096)",
        ),
        (
            format!("{EXT4}mkfs_options = [\"-b\", \"1024\"]"),
            "`storage.mkfs_options` holds \"-b\", but the block size has its own key | set \
             `storage.block_size`",
        ),
        (
            format!("{EXT4}mount_options = [\"noatime,data=journal\"]"),
            "`storage.mount_options` holds \"noatime,data=journal\", but each entry is one option",
        ),
        (
            "[storage]\nkind = \"xfs\"\nsize = \"299MiB\"".to_owned(),
            "`storage.size` is 299 MiB, but mkfs.xfs refuses less than 300 MiB",
        ),
        (
            "[storage]\nkind = \"xfs\"\nblock_size = 512".to_owned(),
            "`storage.block_size` is 512, but mkfs.xfs needs at least 1024 for metadata checksums | \
             add `mkfs_options = [\"-m\", \"crc=0\"]`, which recent kernels refuse to mount",
        ),
        (
            format!("{EXT4}size = \"512MiB\"\n[workload]\nscale = 100"),
            "`storage.size` is 512 MiB, but the loaded database alone takes 1.6 GiB | leave \
             `size` out to get 4.3 GiB",
        ),
        (
            "[storage]\nkind = \"btrfs\"\nblock_size = 2048".to_owned(),
            "`storage.block_size` is 2048 (allowed: 4096, 8192, 16384, 32768, 65536)",
        ),
        (
            "[storage]\nkind = \"btrfs\"\nmkfs_options = [\"-s\", \"4096\"]".to_owned(),
            "`storage.mkfs_options` holds \"-s\", but the block size has its own key | set \
             `storage.block_size`",
        ),
        (
            "[storage]\nkind = \"btrfs\"\nsize = \"10MiB\"".to_owned(),
            "`storage.size` is 10 MiB, but the loaded database alone takes 111 MiB | leave `size` \
             out to get 896 MiB",
        ),
        (
            format!("{EXT4}devices = 2"),
            "`storage.devices` is 2, but `storage.layout` \"single\" is one device | leave `devices` \
             out to have it chosen",
        ),
        (
            format!("{EXT4}layout = [\"raid0\", \"raid1\"]\ndevices = 1"),
            "`storage.devices` is 1, but `storage.layout` \"raid0\" needs at least 2 | leave \
             `devices` out to have it chosen",
        ),
        (
            "[storage]\nkind = \"btrfs\"\nlayout = \"raid0\"\ndevices = 8\nsize = \"512MiB\""
                .to_owned(),
            "`storage.size` is 512 MiB, which makes 8 devices of 64 MiB, but mkfs.btrfs refuses less \
             than 109 MiB",
        ),
        (
            "[storage]\nkind = \"ext3\"\nlayout = \"raid10\"\ndevices = 5".to_owned(),
            "`storage.devices` is 5, but `storage.layout` \"raid10\" needs an even number from 4 | \
             leave `devices` out to have it chosen",
        ),
        (
            "[storage]\nkind = \"zfs\"\nashift = 8".to_owned(),
            "`storage.ashift` is 8, but must be from 9 to 16",
        ),
        (
            "[storage]\nkind = \"tmpfs\"\nsize = \"9GiB\"".to_owned(),
            "`storage.size` is 9 GiB, more than this machine's memory of 8 GiB",
        ),
        (
            "[[storage]]\nkind = \"ext4\"\n[[storage]]\nkind = \"ext4\"".to_owned(),
            "`storage[0]` and `storage[1]` have the same label \"ext4\" | give each `storage` a \
             `label` of its own",
        ),
        (
            format!("{EXT4}[[engine]]\n[[engine]]\nchecksums = true"),
            "`engine[0]` and `engine[1]` have the same label \"postgres-13\" | give each `engine` a \
             `label` of its own",
        ),
        (
            format!("{EXT4}[workload]\nduration = 0"),
            "`workload.duration` is 0, but must be above 0",
        ),
        (
            format!("{EXT4}[workload]\nwarmup = -1"),
            "`workload.warmup` is -1, but must not be negative",
        ),
        (
            format!("{EXT4}[workload]\nduration = 5\ntransactions = 5"),
            "`workload.duration` and `workload.transactions` contradict each other | keep one of them",
        ),
        (
            format!("{EXT4}[workload]\nwarmup = 5\ntransactions = 5"),
            "`workload.warmup` and `workload.transactions` contradict each other: every transaction \
             counts | set `workload.warmup` to 0, or use `workload.duration`",
        ),
        (
            format!("{EXT4}[workload]\nwarmup = 5\ncache = \"cold\""),
            "`workload.warmup` is 5, but `workload.cache` has \"cold\": a warm-up would fill the caches \
             before anything is measured | leave `warmup` out, or \"cold\"",
        ),
        (
            "[engine]\nprovision = \"url\"\nurl = \"postgresql://u@h\"\n\
             [workload]\ncache = \"cold\""
                .to_owned(),
            "`workload.cache` is \"cold\", but `engine.provision` is \"url\", a server that is not ours \
             to be started again | leave `cache` out, or let Bedplate start the server",
        ),
        (
            format!("{EXT4}fullness = 96"),
            "`storage.fullness` is 96, but is a percentage, from 0 to 95",
        ),
        (
            format!("{EXT4}churn = 3"),
            "`storage.churn` is 3, but no `storage.fullness` says how full the volume is made | set \
             `fullness` to a percentage, or leave `churn` out",
        ),
        (
            format!("{EXT4}size = \"400MiB\"\nfullness = 95"),
            "`storage.size` is 400 MiB, but the loaded database alone takes 111 MiB, and 95 % are full \
             before | leave `size` out to get 16.4 GiB",
        ),
        (
            format!("{EXT4}[workload]\nrate = 0"),
            "`workload.rate` is 0, but must be above 0 and at most 10000000",
        ),
        (
            format!("{EXT4}[workload]\nspacing = \"even\""),
            "`workload.spacing` is \"even\", but no `workload.rate` says how many there are | set `rate` \
             to transactions per second, or leave `spacing` out",
        ),
        (
            format!("{EXT4}[workload]\nrate = 5\ntransactions = 5"),
            "`workload.rate` and `workload.transactions` = 5 contradict each other: with a rate it is the \
             schedule that decides how many there are | use `workload.duration`",
        ),
        (format!("{EXT4}[design]\nblocks = 0"), "`design.blocks` is 0, but must be at least 1"),
        (
            format!("{EXT4}[design]\nblocks = 100001"),
            "the spec has 1 cells and 100001 blocks, more than 100000 trials | shorten the lists of \
             levels or lower `design.blocks`",
        ),
        (
            format!("{EXT4}[design]\nbaseline = {{ storages = \"ext4\" }}"),
            "`design.baseline.storages` names no factor of this spec (allowed: engine, storage) | did \
             you mean `storage`?",
        ),
        (
            format!("{EXT4}[design]\nbaseline = {{ storage = \"ext3\" }}"),
            "`design.baseline.storage` is \"ext3\", which is not a level of `storage` (allowed: ext4) \
             | did you mean `ext4`?",
        ),
        (
            format!("{EXT4}[engine]\nsettings = {{ fsync = [\"on\", \"yes\"] }}"),
            "two cells are the same: ext4/settings.fsync=on | look for two levels of one list that \
             mean the same",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(&text, &rich()), (ErrorKind::Spec, expected.to_owned()), "{text}");
    }
}

#[test]
fn what_the_machine_lacks_is_named_with_its_remedy() {
    let process = "[engine]\nprovision = \"process\"\n[storage]\nkind = \"directory\"\n";
    let no_loop = Capabilities {
        loop_devices: missing("there is no /dev/loop-control", "modprobe loop"),
        ..rich()
    };
    let no_mkfs = Capabilities {
        mkfs: BTreeMap::from([(
            FileSystem::Xfs,
            missing("it is not installed", "apt-get install xfsprogs"),
        )]),
        ..rich()
    };
    let no_xfs = Capabilities { filesystems: vec!["ext4".to_owned()], ..rich() };
    let cases = [
        (
            format!("{EXT4}size = \"39GiB\""),
            rich(),
            "`storage.size` is 39 GiB, but /state/work has 40 GiB free, of which 2 GiB stay in \
             reserve | lower `size` or `workload.scale`, or set `work_dir` to a place with more room",
        ),
        (
            process.to_owned(),
            rich(),
            "`engine.version` is \"13\", but this machine has PostgreSQL 15.18, 9.6.24 | set \
             `engine.version`, or `engine.allow_other_version = true` to run it all the same",
        ),
        (
            process.to_owned(),
            poor(),
            "`engine.provision` is \"process\", but no PostgreSQL binaries were found on this machine \
             | run `apt-get install postgresql`, or name a directory with `engine.bin_dir`",
        ),
        (
            "[engine]\nprovision = \"container\"\n[storage]\nkind = \"directory\"".to_owned(),
            poor(),
            "`engine.provision` is \"container\" and needs Docker, but the daemon does not answer | \
             systemctl start docker",
        ),
        (
            format!("{EXT4}[engine]\nbin_dir = \"/pg\""),
            poor(),
            "`storage`: ext4 on site local needs root, and this process is not root | run as root, or \
             start Docker and set `site = \"docker\"`",
        ),
        (
            EXT4.to_owned(),
            no_loop,
            "`storage`: ext4 needs a loop device, but there is no /dev/loop-control | modprobe loop",
        ),
        (
            "[storage]\nkind = \"xfs\"".to_owned(),
            no_mkfs,
            "`storage`: xfs needs mkfs.xfs, but it is not installed | apt-get install xfsprogs",
        ),
        (
            "[storage]\nkind = \"xfs\"".to_owned(),
            no_xfs,
            "`storage`: the kernel of this machine has no xfs | run `modprobe xfs`, or boot a kernel \
             with CONFIG_XFS_FS",
        ),
        (
            "[[storage]]\nkind = \"zfs\"\n[[storage]]\nkind = \"f2fs\"".to_owned(),
            rich(),
            "`storage[0]`: zfs needs pools, but `zpool` is not installed | install OpenZFS",
        ),
        (
            "[[storage]]\nkind = \"ext4\"\n[[storage]]\nkind = \"f2fs\"\n\
             [design]\nbaseline = { storage = \"f2fs\" }"
                .to_owned(),
            rich(),
            "`design.baseline` is storage=f2fs, which is not available here: the kernel of this \
             machine has no f2fs | name another level; for this one: run `modprobe f2fs`, or boot a \
             kernel with CONFIG_F2FS_FS",
        ),
    ];
    for (text, machine, expected) in cases {
        assert_eq!(
            error_of(&text, &machine),
            (ErrorKind::Provision, expected.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn another_version_runs_when_it_may() {
    let text = "[engine]\nprovision = \"process\"\nallow_other_version = true\n[storage]\nkind = \"directory\"";
    let plan = resolved(text);
    // 15 is newer than 9.6, though "9.6" sorts behind it as text.
    assert_eq!(plan.cells[0].engine.provision, Provision::Process { bin_dir: "/pg/15/bin".into() });
    assert_eq!(plan.cells[0].engine.version, "13");
}

/// The storages of two published studies.
const STUDIES: &str = r#"
[[storage]]
label = "EXT4 900p"
kind = "ext4"
[[storage]]
label = "XFS"
kind = "xfs"
layout = ["single", "raid0", "raid1"]
[[storage]]
label = "Btrfs"
kind = "btrfs"
layout = ["single", "raid0"]
[[storage]]
label = "F2FS 900p"
kind = "f2fs"
[[storage]]
label = "ZFS 900p"
kind = "zfs"
options = { recordsize = "32k", logbias = "throughput" }
[[storage]]
label = "array1"
kind = "ext3"
layout = "raid10"
devices = 14
mount_options = ["data=writeback"]
"#;

#[test]
fn what_cannot_be_made_here_is_left_out_with_its_reason() {
    let spec = format!("{STUDIES}[workload]\nclients = [1, 4]\n[design]\nblocks = 2\n");
    let plan = resolved(&spec);
    let labels: Vec<&str> = plan.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "EXT4 900p/clients=1",
            "EXT4 900p/clients=4",
            "XFS/layout=single/clients=1",
            "XFS/layout=single/clients=4",
            "Btrfs/layout=single/clients=1",
            "Btrfs/layout=single/clients=4",
            "Btrfs/layout=raid0/clients=1",
            "Btrfs/layout=raid0/clients=4"
        ]
    );
    assert_eq!(plan.cells[0].levels["layout"], "none");
    // Order and estimate know of nothing else.
    for order in &plan.design.order {
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..8).collect());
    }
    assert_eq!(plan.estimate().trials, 16);
    assert_eq!(plan.unavailable.len(), 10);
    let found: Vec<_> = plan
        .unavailable
        .iter()
        .filter(|cell| cell.levels["clients"] == "4")
        .map(|cell| (cell.label.as_str(), cell.reason.as_str(), cell.remedy.as_str()))
        .collect();
    let no_md = "this layout needs an array of md, but the kernel has no md";
    let modprobe = "run `modprobe md-mod`";
    assert_eq!(
        found,
        [
            ("XFS/layout=raid0/clients=4", no_md, modprobe),
            ("XFS/layout=raid1/clients=4", no_md, modprobe),
            (
                "F2FS 900p/clients=4",
                "the kernel of this machine has no f2fs",
                "run `modprobe f2fs`, or boot a kernel with CONFIG_F2FS_FS"
            ),
            (
                "ZFS 900p/clients=4",
                "zfs needs pools, but `zpool` is not installed",
                "install OpenZFS"
            ),
            ("array1/clients=4", no_md, modprobe),
        ]
    );
    let text = plan.render();
    let section = "not available here
  this layout needs an array of md, but the kernel has no md
    → run `modprobe md-mod`
    XFS/layout=raid0/clients=1  clients=1, engine=postgres-13, layout=raid0, storage=XFS
    XFS/layout=raid0/clients=4  clients=4, engine=postgres-13, layout=raid0, storage=XFS
    XFS/layout=raid1/clients=1  clients=1, engine=postgres-13, layout=raid1, storage=XFS
    XFS/layout=raid1/clients=4  clients=4, engine=postgres-13, layout=raid1, storage=XFS
    array1/clients=1            clients=1, engine=postgres-13, layout=none, storage=array1
    array1/clients=4            clients=4, engine=postgres-13, layout=none, storage=array1
  the kernel of this machine has no f2fs
";
    assert!(text.contains(&format!("\n\n{section}")), "{text}");
    assert!(plan.render_unavailable().starts_with(section));
    assert_eq!(resolved(EXT4).render_unavailable(), "");
    let json = serde_json::to_string(&plan).expect("writes");
    assert_eq!(serde_json::from_str::<Plan>(&json).expect("reads"), plan);

    // A baseline needs cells that are measured.
    let baseline = |levels: &str| format!("{spec}baseline = {{ {levels} }}");
    resolved(&baseline("storage = \"XFS\", layout = \"single\""));
    let (kind, message) = error_of(&baseline("layout = \"raid1\""), &rich());
    assert_eq!(kind, ErrorKind::Provision);
    assert!(
        message.starts_with("`design.baseline` is layout=raid1, which is not available here: this"),
        "{message}"
    );
}

#[test]
fn the_machine_decides_what_else_is_left_out() {
    let spec = "[[storage]]\nkind = \"directory\"\n[[storage]]\nkind = \"xfs\"\n";
    let reasons = |machine: &Capabilities, spec: &str| -> Vec<String> {
        let plan = resolve(spec, machine).expect(spec);
        assert_eq!(plan.cells[0].label, "directory");
        plan.unavailable.into_iter().map(|cell| cell.reason).collect()
    };
    assert_eq!(reasons(&rich(), spec), [""; 0]);
    let gone = missing("it is not installed", "apt-get install xfsprogs");
    let no_mkfs = Capabilities { mkfs: [(FileSystem::Xfs, gone)].into(), ..rich() };
    assert_eq!(reasons(&no_mkfs, spec), ["xfs needs mkfs.xfs, but it is not installed"]);
    let no_kernel = Capabilities { filesystems: Vec::new(), ..rich() };
    let ext3 = resolve(&spec.replace("xfs", "ext3"), &no_kernel).expect("directory is left");
    assert_eq!(
        ext3.unavailable[0].remedy,
        "run `modprobe ext4`, or boot a kernel with CONFIG_EXT4_FS"
    );
    assert_eq!(reasons(&no_kernel, spec), ["the kernel of this machine has no xfs"]);
    // The helper container has tools of its own, and the daemon may have a kernel of its own.
    let docker = format!("site = \"docker\"\n{spec}");
    assert_eq!(reasons(&no_mkfs, &docker), [""; 0]);
    assert_eq!(reasons(&no_kernel, &docker), ["the kernel of this machine has no xfs"]);
    let elsewhere = Capabilities { docker_shares_kernel: false, ..no_kernel };
    assert_eq!(reasons(&elsewhere, &docker), [""; 0]);
    // What cannot be made anyway needs no root either.
    let process = "[engine]\nprovision = \"process\"\nversion = \"15\"\n";
    let poor = Capabilities { engines: rich().engines, ..poor() };
    assert_eq!(
        reasons(&poor, &format!("{process}{spec}layout = \"raid1\"\n")),
        ["this layout needs an array of md, but the kernel has no md"]
    );
    let (kind, message) = error_of(&format!("{process}{spec}"), &poor);
    assert_eq!(kind, ErrorKind::Provision);
    assert!(message.contains("needs root"), "{message}");
}

/// A spec of MariaDB with further keys.
fn mariadb(keys: &str) -> String {
    format!("[storage]\nkind = \"directory\"\n[engine]\nkind = \"mariadb\"\n{keys}\n")
}

#[test]
fn mariadb_has_defaults_of_its_own() {
    let plan = resolved(&mariadb(""));
    let engine = &plan.cells[0].engine;
    assert_eq!((engine.kind, engine.label.as_str()), (EngineKind::MariaDb, "mariadb-10.3"));
    assert_eq!(engine.version, "10.3");
    let settings: Vec<_> = engine.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(settings, ["innodb_doublewrite=ON", "innodb_flush_log_at_trx_commit=1"]);
    assert_eq!(engine.initdb, None);
    assert_eq!((engine.tls, &engine.tls_ca), (TlsMode::Off, &None));
    let text = plan.render();
    assert!(text.contains("\n  tls                  off\n"), "{text}");
    assert!(!text.contains("checksums"), "{text}");

    // Dashes, letter cases and spellings of one value are one setting.
    let plan = resolved(&mariadb(
        "settings = { Innodb-DoubleWrite = 0, innodb-flush-log-at-trx-commit = \"2\" }",
    ));
    let settings = &plan.cells[0].engine.settings;
    assert_eq!(settings["innodb_doublewrite"], "OFF");
    assert_eq!(settings["innodb_flush_log_at_trx_commit"], "2");
}

#[test]
fn another_mariadb_than_the_one_asked_for_needs_permission() {
    let images = |keys: &str| match &resolved(&mariadb(keys)).cells[0].engine.provision {
        Provision::Container { images, .. } => images.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(images(""), ["mariadb@sha256:39"]);
    assert_eq!(images("version = \"10.3.8\""), ["mariadb@sha256:8"]);
    assert_eq!(
        images("allow_other_version = true"),
        ["mariadb@sha256:39", "bedplate/mariadb:10.5"]
    );
    assert_eq!(images("version = \"10.5\""), ["bedplate/mariadb:10.5"]);
    assert_eq!(images("version = \"10.6\"\nallow_other_version = true"), ["bedplate/mariadb:10.5"]);
    assert_eq!(images("image = \"mine\"\nallow_other_version = true"), ["mine"]);
    let process = "provision = \"process\"\nallow_other_version = true";
    assert_eq!(
        resolved(&mariadb(process)).cells[0].engine.provision,
        Provision::Process { bin_dir: "/usr/sbin".into() }
    );
    assert_eq!(
        error_of(&mariadb("provision = \"process\""), &rich()),
        (
            ErrorKind::Provision,
            "`engine.version` is \"10.3\", but this machine has MariaDB 10.11.14 | set \
             `engine.version`, or `engine.allow_other_version = true` to run it all the same"
                .to_owned()
        )
    );
    assert_eq!(
        error_of(&mariadb("provision = \"process\""), &poor()).1,
        "`engine.provision` is \"process\", but no MariaDB binaries were found on this machine | run \
         `apt-get install mariadb-server`, or name a directory with `engine.bin_dir`"
    );
}

#[test]
fn what_does_not_go_with_mariadb_is_named() {
    let url = |rest: &str| format!("[engine]\nkind = \"mariadb\"\nprovision = \"url\"\n{rest}");
    let clients =
        |keys: &str, clients: u32| format!("{}[workload]\nclients = {clients}", mariadb(keys));
    let cases = [
        (
            mariadb("checksums = true"),
            "`engine.checksums` does not go with `engine.kind` \"mariadb\": it is told to PostgreSQL's \
             initdb | leave `checksums` out, or set what MariaDB has instead in `engine.settings`",
        ),
        (
            mariadb("settings = { log-error = \"/x\" }"),
            "`engine.settings.log_error` is \"/x\", but bedplate sets it itself for each trial | \
             leave `log_error` out: paths, sockets and logs are chosen for each trial",
        ),
        (
            mariadb("settings = { innodb_flush_log_at_trx_commit = 4 }"),
            "`engine.settings.innodb_flush_log_at_trx_commit` is \"4\" (allowed: 0, 1, 2, 3)",
        ),
        (
            mariadb("settings = { innodb_doublewrite = \"maybe\" }"),
            "`engine.settings.innodb_doublewrite` is \"maybe\" (allowed: ON, OFF)",
        ),
        (
            clients("", 152),
            "`workload.clients` is 152, but `engine.settings.max_connections` leaves room for 151 (its \
             default) | set `engine.settings.max_connections` to at least 152",
        ),
        (
            clients("settings = { max-connections = 20 }", 21),
            "`workload.clients` is 21, but `engine.settings.max_connections` leaves room for 20 | set \
             `engine.settings.max_connections` to at least 21",
        ),
        (
            mariadb("tls = \"verify\""),
            "`engine.tls` is \"verify\", but `engine.tls_ca` is missing | name the PEM file of the \
             authority that signed the server's certificate with `engine.tls_ca`, or set `engine.tls = \
             \"require\"` to encrypt without verifying",
        ),
        (
            mariadb("tls = \"require\"\ntls_ca = \"/ca.pem\""),
            "`engine.tls_ca` does not go with `engine.tls` \"require\" | set `engine.tls = \"verify\"`, \
             or leave `engine.tls_ca` out",
        ),
        (
            format!("{EXT4}[engine]\ntls = \"require\""),
            "`engine.tls` is \"require\", but connections to PostgreSQL are never encrypted so far | \
             leave `engine.tls` out, or set it to \"off\"",
        ),
        (
            url(""),
            "`engine.url` is missing, and provision \"url\" needs it | write mysql://USER@HOST:PORT",
        ),
        (
            url("url = \"mysql://me@db\"\ntransport = \"unix\""),
            "`engine.transport` is \"unix\", but `engine.url` says \"tcp\" | leave `engine.transport` \
             out",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error_of(&text, &rich()), (ErrorKind::Spec, expected.to_owned()), "{text}");
    }
    resolved(&clients("", 151));
    resolved(&format!("{EXT4}[engine]\ntls = \"off\""));
    let verify = resolved(&mariadb("tls = \"verify\"\ntls_ca = \"/ca.pem\""));
    assert_eq!(verify.cells[0].engine.tls, TlsMode::Verify);
    assert_eq!(verify.cells[0].engine.tls_ca, Some("/ca.pem".into()));
    assert!(verify.render().contains("\n  tls_ca               /ca.pem\n"));
    let socket = resolved(&url("url = \"mysql://me@localhost?socket=/run/s\""));
    assert_eq!(socket.cells[0].engine.transport, TransportKind::Unix);
}

#[test]
fn versions_are_prefixes_in_whole_components() {
    let engine = |version: &str| {
        let mut plan = resolved(EXT4);
        version.clone_into(&mut plan.cells[0].engine.version);
        plan.cells.remove(0).engine
    };
    assert!(engine("13").is_version("13.23"));
    assert!(engine("13").is_version("13"));
    assert!(engine("13.2").is_version("13.2 (Debian 13.2-1)"));
    assert!(!engine("13.2").is_version("13.23"));
    assert!(!engine("1").is_version("13.23"));
    assert!(!engine("13.23").is_version("13"));
}

#[test]
fn an_existing_server_brings_its_storage() {
    let plan = resolve(
        "[engine]\nprovision = \"url\"\nurl = \"postgresql://me@db.example:5433/x\"\n[workload]\nclients = 500",
        &poor(),
    )
    .expect("resolves");
    assert_eq!(plan.cells[0].storage.kind, StorageKind::Existing);
    assert_eq!(plan.cells[0].label, "existing");
    assert_eq!(plan.cells[0].engine.transport, TransportKind::Tcp);
    for socket in
        ["postgresql:///x", "postgresql:///x?host=/run/postgresql", "postgresql://%2Frun/x"]
    {
        let text = format!("[engine]\nprovision = \"url\"\nurl = \"{socket}\"");
        assert_eq!(resolved(&text).cells[0].engine.transport, TransportKind::Unix, "{socket}");
    }
}

#[test]
fn the_estimate_adds_up() {
    let plan = resolved(
        "[[storage]]\nkind = \"ext4\"\nsize = \"1GB\"\n[[storage]]\nkind = \"tmpfs\"\n\
         [workload]\nscale = 4\nwarmup = 2\nduration = 10\n[design]\nblocks = 3",
    );
    let estimate = plan.estimate();
    assert_eq!(estimate.trials, 6);
    // Up to whole pages.
    assert_eq!(estimate.disk_bytes, 244_141 * 4096);
    // ext4: 6 + 2 + 1 + 2 + 10 = 21 s; tmpfs writes no image: 19 s; three blocks.
    assert!((estimate.duration_s - 120.0).abs() < 1e-4, "{estimate:?}");
}

#[test]
fn the_text_has_every_field() {
    let plan = resolved(
        "name = \"study\"\n[[storage]]\nkind = \"ext4\"\n[[storage]]\nkind = \"xfs\"\n\
         [workload]\nscale = 5\nclients = 4\nwarmup = 2\n[design]\nbaseline = { storage = \"ext4\" }",
    );
    let order: Vec<String> =
        plan.design.order[0].iter().map(|cell| (cell + 1).to_string()).collect();
    let expected = format!(
        "plan          study
plan_id       {}
plan_version  4
site          local
work_dir      /state/work

engine
  label                postgres-13
  kind                 postgres
  version              13
  allow_other_version  false
  provision            container
  images               postgres@sha256:1
  shm_size             256 MiB
  memory               no limit
  cpus                 no limit
  transport            unix
  settings_profile     stock
  settings             fsync=on, full_page_writes=on, synchronous_commit=on
  tls                  off
  locale               C
  encoding             UTF8
  checksums            false

storage 1
  label          ext4
  kind           ext4
  size           960 MiB
  layout         single
  devices        1
  scheduler      none
  read_ahead     the kernel's own
  ageing         none, the volume is fresh
  block_size     4096
  mkfs_options   none
  mount_options  noatime

storage 2
  label          xfs
  kind           xfs
  size           960 MiB
  layout         single
  devices        1
  scheduler      none
  read_ahead     the kernel's own
  ageing         none, the volume is fresh
  block_size     4096
  mkfs_options   none
  mount_options  noatime

workload
  kind           tpcb
  scale          5
  filler_random  0 %
  instances      1
  clients        4
  threads        1
  protocol       simple
  max_tries      1
  cache          warm
  arrivals       closed
  warmup         2 s
  duration       10 s

design
  profile   smoke
  blocks    1
  seed      20
  baseline  storage=ext4
  metrics   true

cells
     cell  engine  storage  workload  levels
  1  ext4  1       1        1         engine=postgres-13, storage=ext4
  2  xfs   1       2        1         engine=postgres-13, storage=xfs

order (numbers of cells)
  block 1    {}

estimate
  trials  2
  disk    960 MiB at most at a time
  time    about 43 s
",
        plan.plan_id(),
        order.join(" ")
    );
    assert_eq!(plan.render(), expected);
}

#[test]
fn the_shipped_specs_resolve() {
    let quick = resolved(include_str!("../../../../specs/quick.toml"));
    let labels: Vec<&str> = quick.cells.iter().map(|cell| cell.label.as_str()).collect();
    assert_eq!(labels, ["ext4", "xfs"]);
    assert!(quick.estimate().duration_s < 120.0);
    assert!(quick.estimate().disk_bytes <= 1024 * MIB);
    let process = resolved(include_str!("../../../../specs/quick-process.toml"));
    assert_eq!(process.cells.len(), 2);
    let machine = Capabilities { engines: rich().engines, ..poor() };
    let directory = resolve(include_str!("../../../../specs/quick-directory.toml"), &machine)
        .expect("needs neither Docker nor root");
    assert_eq!(directory.site, SiteKind::Local);
    assert!(matches!(directory.cells[0].storage.kind, StorageKind::Directory { .. }));
}

#[test]
fn levels_of_slap_are_factors() {
    let plan = resolved(
        "[engine]\nkind = \"mariadb\"\n[storage]\nkind = \"ext4\"\n[workload]\nkind = \"slap\"\n\
         [workload.slap]\nload_type = [\"key\", \"write\"]\nkey = \"autoincrement\"\n\
         commit_every = [0, 10]\niterations = 2",
    );
    let cells: Vec<_> = plan
        .cells
        .iter()
        .map(|cell| {
            let Work::Slap(slap) = &cell.workload.work else { panic!("not slap") };
            (cell.label.as_str(), slap.load_type, slap.commit_every, slap.iterations)
        })
        .collect();
    assert_eq!(
        cells,
        [
            ("ext4/load_type=key/commit_every=0", LoadType::Key, 0, 2),
            ("ext4/load_type=key/commit_every=10", LoadType::Key, 10, 2),
            ("ext4/load_type=write/commit_every=0", LoadType::Write, 0, 2),
            ("ext4/load_type=write/commit_every=10", LoadType::Write, 10, 2),
        ]
    );
    assert_eq!(plan.cells[1].levels["commit_every"], "10");
}
