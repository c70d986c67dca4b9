//! A plan: the spec with every default filled, ready to be executed or printed.
//!
//! Nothing here is optional in the sense of "decide later"; an `Option` that is left means that the
//! thing is truly absent (no memory limit, say).

mod render;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::sizing;
use crate::slap::SlapPlan;

/// Version of the plan's form; a stored plan of another version is refused.
pub const PLAN_VERSION: u32 = 4;

/// A fully resolved study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub plan_version: u32,
    /// The study's name.
    pub name: String,
    /// Where volumes and servers live.
    pub site: SiteKind,
    /// Directory under which volumes, sockets and other short-lived files are made.
    pub work_dir: PathBuf,
    /// Every combination of levels that can be made here, in the order of the spec.
    pub cells: Vec<Cell>,
    /// The others; they are not executed.
    pub unavailable: Vec<UnavailableCell>,
    /// Blocks, order and what they are compared with.
    pub design: Design,
}

/// Where a trial's volume and server live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SiteKind {
    /// This machine, with the privileged commands run directly as root (or none needed).
    Local,
    /// Through the Docker daemon, without sudo.
    Docker,
}

impl SiteKind {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
        }
    }
}

/// One combination of levels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Unique within the plan; the levels joined, for example `ext4/scale=1/clients=8`.
    pub label: String,
    /// Factor to level, of the factors that vary (engine and storage are always there).
    pub levels: BTreeMap<String, String>,
    /// The engine of this cell.
    pub engine: EnginePlan,
    /// The storage of this cell.
    pub storage: StoragePlan,
    /// The workload of this cell.
    pub workload: WorkloadPlan,
}

/// A combination of levels that cannot be made here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnavailableCell {
    /// As [`Cell::label`], and unique among those, too.
    pub label: String,
    /// As [`Cell::levels`].
    pub levels: BTreeMap<String, String>,
    /// Why it cannot be made, in a few lower-case words.
    pub reason: String,
    /// What would bring it.
    pub remedy: String,
}

/// How a database server is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnginePlan {
    /// Level name of the factor `engine`.
    pub label: String,
    /// The kind of database.
    pub kind: EngineKind,
    /// The version asked for, `13` or `13.23`: a prefix, in whole components, of what must run.
    pub version: String,
    /// Whether another version than the one asked for may run (it is then named in every table).
    pub allow_other_version: bool,
    /// How the server comes to be.
    pub provision: Provision,
    /// How clients reach it.
    pub transport: TransportKind,
    /// Settings given to the server and read back from it, the durability settings always among them.
    pub settings: BTreeMap<String, String>,
    /// Where settings that the spec does not state come from.
    pub settings_profile: SettingsProfile,
    /// Sizes that are compiled into the server; absent where any will do.
    pub pages: Option<Pages>,
    /// Whether and how connections are encrypted.
    pub tls: TlsMode,
    /// File, in PEM, with the certificates of the authorities that `verify` trusts; absent in the
    /// other modes.
    pub tls_ca: Option<PathBuf>,
    /// How the cluster is initialised; absent where there is nothing to choose (MariaDB, or a server
    /// that exists already).
    pub initdb: Option<Initdb>,
}

/// Named sets of settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingsProfile {
    /// The engine's own defaults.
    #[default]
    Stock,
    /// What suits the file system.
    FsTuned,
}

impl SettingsProfile {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::FsTuned => "fs-tuned",
        }
    }
}

/// Sizes that PostgreSQL is compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// Bytes of a block of tables and indexes.
    pub block_size_bytes: u32,
    /// Bytes of a block of write-ahead log.
    pub wal_block_size_bytes: u32,
}

impl Pages {
    /// The reference of the image that `bedplate images build` makes of them.
    pub fn image(self) -> String {
        let Self { block_size_bytes, wal_block_size_bytes } = self;
        let kib = |bytes: u32| bytes / 1024;
        let (block, wal) = (kib(block_size_bytes), kib(wal_block_size_bytes));
        format!("bedplate/postgres:13-block-{block}kB-wal-{wal}kB")
    }
}

/// Kinds of database engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Postgres, Self::MariaDb];

    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
        }
    }
}

/// Ways a server is provisioned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Provision {
    /// A container, started with testcontainers.
    Container {
        /// Image references in the order in which they are tried: present here, pulled, built here.
        images: Vec<String>,
        /// Size of `/dev/shm` in bytes.
        shm_size_bytes: u64,
        /// Memory limit in bytes; absent means none.
        memory_bytes: Option<u64>,
        /// CPU limit in cores; absent means none.
        cpus: Option<f64>,
    },
    /// Binaries on this machine.
    Process {
        /// Directory that holds the server's program.
        bin_dir: PathBuf,
    },
    /// A server that exists already; only a schema of ours is made in it.
    Url {
        /// Connection URL without its password, which is read from the environment variable
        /// `BEDPLATE_PASSWORD`, or else `PGPASSWORD` or `MYSQL_PWD`.
        url: String,
    },
}

/// How clients reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// A Unix socket.
    Unix,
    /// TCP on the loopback interface (or as the URL says).
    Tcp,
}

impl TransportKind {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// Keys of PostgreSQL's `initdb`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initdb {
    /// Locale, `C` by default.
    pub locale: String,
    /// Encoding, `UTF8` by default.
    pub encoding: String,
    /// Data checksums, off by default as in PostgreSQL 13 itself.
    pub checksums: bool,
}

/// What a server's data directory lives on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoragePlan {
    /// Level name of the factor `storage`.
    pub label: String,
    /// What is made.
    pub kind: StorageKind,
    /// What happens to it before anything is loaded; absent means that it is fresh.
    pub ageing: Option<Ageing>,
}

impl StoragePlan {
    /// A storage that is fresh.
    pub fn fresh(label: impl Into<String>, kind: StorageKind) -> Self {
        Self { label: label.into(), kind, ageing: None }
    }
}

/// Files that are written to a volume, and partly deleted and written anew, before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// Percent of the volume that is used then.
    pub fullness_percent: u32,
    /// How many times the bytes of the files are deleted and written once more.
    pub churn: u32,
}

/// Kinds of storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StorageKind {
    /// A plain directory on whatever holds `path`.
    Directory {
        /// The directory under which a fresh one is made for each trial.
        path: PathBuf,
    },
    /// Memory.
    Tmpfs {
        /// Size limit in bytes.
        size_bytes: u64,
    },
    /// A file system on a loop device.
    Loop(LoopVolume),
    /// A pool of ZFS.
    Zfs(ZfsVolume),
    /// What an existing server (provision `url`) has; nothing is made and nothing known.
    Existing,
}

/// A file system on loop devices over fully written image files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopVolume {
    /// The file system.
    pub file_system: FileSystem,
    /// What it lies on.
    pub devices: Devices,
    /// Block size of the file system in bytes.
    pub block_size_bytes: u32,
    /// Whether files are written in place, by an attribute of the empty volume (btrfs alone).
    pub nodatacow: bool,
    /// Further arguments for mkfs, after our own.
    pub mkfs_options: Vec<String>,
    /// Mount options, `noatime` by default.
    pub mount_options: Vec<String>,
}

/// A pool of ZFS on loop devices, with one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsVolume {
    /// What it lies on.
    pub devices: Devices,
    /// Power of two of the pool's sector size; ZFS's own when absent.
    pub ashift: Option<u32>,
    /// Properties of the dataset.
    pub options: BTreeMap<String, String>,
}

/// The block devices of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    /// Size of the volume in bytes: what a database can fill, but for what the file system takes.
    pub size_bytes: u64,
    /// How they are put together.
    pub layout: Layout,
    /// How many there are.
    pub count: u32,
    /// The kernel's scheduler of requests to each, `none` by default.
    pub scheduler: String,
    /// How far the kernel reads ahead on each in bytes; absent means the kernel's own choice.
    pub read_ahead_bytes: Option<u64>,
    /// The device of this machine that is used; absent means that loop devices are made.
    pub device: Option<Device>,
}

/// A block device that is not ours, lent for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its path.
    pub path: PathBuf,
    /// What tells it from all others, by which the user consented.
    pub id: String,
}

impl Devices {
    /// Devices without a scheduler, with the kernel's own read-ahead.
    pub fn new(size_bytes: u64, layout: Layout, count: u32) -> Self {
        let scheduler = "none".to_owned();
        Self { size_bytes, layout, count, scheduler, read_ahead_bytes: None, device: None }
    }

    /// Size of each in bytes.
    pub fn each_bytes(&self) -> u64 {
        self.layout.device_bytes(self.count, self.size_bytes)
    }

    /// Size of all images in bytes; a device of this machine has none.
    pub fn bytes(&self) -> u64 {
        match self.device {
            Some(_) => 0,
            None => self.each_bytes().saturating_mul(u64::from(self.count)),
        }
    }
}

impl StorageKind {
    /// The block devices that are made for it.
    pub fn devices(&self) -> Option<&Devices> {
        match self {
            Self::Loop(volume) => Some(&volume.devices),
            Self::Zfs(volume) => Some(&volume.devices),
            Self::Directory { .. } | Self::Tmpfs { .. } | Self::Existing => None,
        }
    }

    /// Whether what is overwritten goes to a new place: there is nothing to gain then from a log's
    /// files that are there already.
    pub fn copies_on_write(&self) -> bool {
        match self {
            Self::Zfs(_) => true,
            Self::Loop(volume) => match volume.file_system {
                FileSystem::Btrfs => {
                    let stated = volume.mount_options.iter().any(|option| option == "nodatacow");
                    !volume.nodatacow && !stated
                }
                FileSystem::F2fs | FileSystem::Nilfs2 => true,
                FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 | FileSystem::Xfs => false,
            },
            Self::Directory { .. } | Self::Tmpfs { .. } | Self::Existing => false,
        }
    }

    /// Whether a page of a database is either written whole or not at all, whatever happens: ZFS
    /// replaces whole records, so it is if a page does not take more than one.
    pub fn writes_whole(&self, page_bytes: u64) -> bool {
        const RECORD_BYTES: u64 = 128 << 10;
        let Self::Zfs(volume) = self else { return false };
        let record_bytes = match volume.options.get("recordsize") {
            Some(text) => zfs_bytes(text),
            None => Some(RECORD_BYTES),
        };
        record_bytes.is_some_and(|bytes| bytes >= page_bytes)
    }
}

/// How devices are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One device.
    Single,
    /// Striped.
    Raid0,
    /// Mirrored: each block is on two devices.
    Raid1,
    /// Striped over mirrors.
    Raid10,
    /// Striped with a parity, as ZFS does it.
    Raidz,
}

impl Layout {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid10 => "raid10",
            Self::Raidz => "raidz",
        }
    }

    /// Size of each of so many devices that hold `size_bytes` together: whole pages, as direct I/O
    /// needs.
    fn device_bytes(self, devices: u32, size_bytes: u64) -> u64 {
        let with_data = match self {
            Self::Single => 1,
            Self::Raid0 => devices,
            // Two copies of everything.
            Self::Raid1 | Self::Raid10 => devices / 2,
            Self::Raidz => devices - 1,
        };
        size_bytes.div_ceil(u64::from(with_data)).next_multiple_of(4096)
    }

    /// As few devices as the layout takes, but enough for a parity to be worth it.
    pub fn devices(self) -> u32 {
        match self {
            Self::Single => 1,
            Self::Raid0 | Self::Raid1 => 2,
            Self::Raidz => 3,
            Self::Raid10 => 4,
        }
    }
}

/// File systems that mkfs and mount make of loop devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext2.
    Ext2,
    /// ext3.
    Ext3,
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
    /// f2fs.
    F2fs,
    /// nilfs2.
    Nilfs2,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Ext2, Self::Ext3, Self::Ext4, Self::Xfs, Self::Btrfs, Self::F2fs, Self::Nilfs2];

    /// The word in specs, plans and tables, which is also that of mkfs and mount.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::F2fs => "f2fs",
            Self::Nilfs2 => "nilfs2",
        }
    }

    /// Whether it puts several devices together itself.
    pub fn joins_devices(self) -> bool {
        self == Self::Btrfs
    }
}

/// What is executed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadPlan {
    /// What each client does.
    pub work: Work,
    /// Copies of the workload that run at once in one server, each in its own schema and as its own
    /// user.
    pub instances: u32,
    /// Concurrent connections of each instance.
    pub clients: u32,
    /// Threads that carry the connections of one instance.
    pub threads: u32,
    /// How statements are sent.
    pub protocol: QueryProtocol,
    /// How often a transaction is tried, with the same values, when it fails in a way that may pass
    /// (a serialization failure, a deadlock). 1 means never again, as with pgbench.
    pub max_tries: u32,
    /// What of the loaded data is in memory when the load starts.
    pub cache: CacheState,
    /// When transactions start: absent means a closed loop, in which a client starts one when it has ended
    /// the last.
    pub arrivals: Option<Arrivals>,
    /// How long the measured part is.
    pub length: RunLength,
    /// Seconds of load before measuring starts.
    pub warmup_s: f64,
}

impl WorkloadPlan {
    /// Concurrent connections of all instances.
    pub fn clients_in_all(&self) -> u64 {
        u64::from(self.instances) * u64::from(self.clients)
    }

    /// slap's queries of all instances and iterations; 0 for what is no slap.
    fn queries_in_all(&self) -> u64 {
        let Work::Slap(slap) = &self.work else { return 0 };
        let times = u64::from(slap.iterations) * u64::from(self.instances);
        slap.queries_of(self.clients).saturating_mul(times)
    }
}

/// What of the loaded data is in memory when the load starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// What loading left there.
    #[default]
    Warm,
    /// Nothing: the server was started again and the kernel has forgotten its files.
    Cold,
}

impl CacheState {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }
}

/// Transactions that start at times of their own, whatever became of those before them: an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Transactions per second that the clients of an instance are to start together.
    pub rate_per_s: f64,
    /// How they are spaced.
    pub spacing: Spacing,
}

/// How arrivals are spaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// As independent users come: exponentially distributed times between two.
    #[default]
    Poisson,
    /// Equal times between two.
    Even,
}

impl Spacing {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Even => "even",
        }
    }
}

/// What the clients of a workload do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Work {
    /// pgbench's `tpcb-like`.
    Tpcb(Scaled),
    /// pgbench's `simple-update`.
    SimpleUpdate(Scaled),
    /// pgbench's `select-only`.
    SelectOnly(Scaled),
    /// What mysqlslap does.
    Slap(Box<SlapPlan>),
}

/// Size of pgbench's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaled {
    /// Scale factor: 100,000 accounts each.
    pub scale: u32,
    /// Percent of an account's filler that is random text; pgbench's is all blanks.
    pub filler_random_percent: u32,
}

impl Work {
    /// Its kind.
    pub fn kind(&self) -> WorkloadKind {
        match self {
            Self::Tpcb(_) => WorkloadKind::Tpcb,
            Self::SimpleUpdate(_) => WorkloadKind::SimpleUpdate,
            Self::SelectOnly(_) => WorkloadKind::SelectOnly,
            Self::Slap(_) => WorkloadKind::Slap,
        }
    }

    /// The size of pgbench's tables, where there are such.
    pub fn scaled(&self) -> Option<Scaled> {
        match self {
            Self::Tpcb(scaled) | Self::SimpleUpdate(scaled) | Self::SelectOnly(scaled) => {
                Some(*scaled)
            }
            Self::Slap(_) => None,
        }
    }

    /// The scale factor, where there is one.
    pub fn scale(&self) -> Option<u32> {
        self.scaled().map(|scaled| scaled.scale)
    }
}

/// Kinds of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// pgbench's `tpcb-like`.
    Tpcb,
    /// pgbench's `simple-update`.
    SimpleUpdate,
    /// pgbench's `select-only`.
    SelectOnly,
    /// What mysqlslap does.
    Slap,
}

impl WorkloadKind {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tpcb => "tpcb",
            Self::SimpleUpdate => "simple-update",
            Self::SelectOnly => "select-only",
            Self::Slap => "slap",
        }
    }
}

/// Whether and how connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Never, even when the server offers it.
    Off,
    /// Always, without asking who the server is: it keeps out listeners, not impostors.
    Require,
    /// Always, and the server's certificate must be signed by the given authority and name the host.
    Verify,
}

impl TlsMode {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Require => "require",
            Self::Verify => "verify",
        }
    }
}

/// How statements are sent; the words are pgbench's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryProtocol {
    /// One text message per statement.
    Simple,
    /// Parse, bind and execute for each statement.
    Extended,
    /// Parsed once per connection, then bind and execute.
    Prepared,
}

impl QueryProtocol {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// Length of the measured part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RunLength {
    /// Seconds.
    DurationS(f64),
    /// Transactions for each client; there is then no warm-up.
    Transactions(u64),
    /// As many queries as the workload itself says (slap); there is then no warm-up.
    Queries,
}

/// Design of the study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Named set of defaults.
    pub profile: Profile,
    /// Passes over all cells.
    pub blocks: u32,
    /// Seed of the order and of all random values.
    pub seed: u64,
    /// Factor to level of the cell others will be compared with; empty when none was named.
    pub baseline: BTreeMap<String, String>,
    /// For each block, the order of the cells (indices into `cells`).
    pub order: Vec<Vec<usize>>,
    /// Whether machine, devices and server are read once a second while the load goes on.
    pub metrics: bool,
}

/// Named sets of defaults for lengths and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A look whether everything works; no performance verdict.
    Smoke,
    /// A regression gate on a shared machine.
    Gate,
    /// Numbers to publish.
    Publish,
    /// The same cell against itself.
    Calibrate,
}

impl Profile {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Gate => "gate",
            Self::Publish => "publish",
            Self::Calibrate => "calibrate",
        }
    }
}

impl Plan {
    /// The content hash of the plan: SHA-256 over its canonical JSON, in hexadecimal.
    ///
    /// Keys are in the order of the types and maps are sorted, so equal plans have equal bytes.
    pub fn plan_id(&self) -> String {
        let bytes = serde_json::to_vec(self).expect("a plan is always serialisable");
        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// How much disk and time the plan will take.
    pub fn estimate(&self) -> Estimate {
        let trials_s: f64 = self.cells.iter().map(Cell::estimated_s).sum();
        Estimate {
            trials: self.design.blocks.saturating_mul(self.cells.len() as u32),
            disk_bytes: self.cells.iter().map(Cell::disk_bytes).max().unwrap_or(0),
            duration_s: trials_s * f64::from(self.design.blocks),
        }
    }

    /// The plan for people: every field, the cells, the order and the estimate, as plain text.
    pub fn render(&self) -> String {
        render::plan(self)
    }

    /// The cells that cannot be made here as plain text, with reasons and remedies; empty when there
    /// are none.
    pub fn render_unavailable(&self) -> String {
        render::unavailable(self)
    }
}

/// How much disk and time a plan will take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Trials: cells times blocks.
    pub trials: u32,
    /// Disk use of the largest trial in bytes; trials run one after another and leave nothing.
    pub disk_bytes: u64,
    /// Length of all trials in seconds.
    pub duration_s: f64,
}

/// Starting a server and taking everything down again, in seconds.
const PROVISION_S: f64 = 6.0;
/// Rate at which an image file is written.
const IMAGE_BYTES_PER_SECOND: f64 = 500e6;
/// Load, vacuum and checkpoint of one unit of scale, in seconds.
const LOAD_S_PER_SCALE: f64 = 0.25;
/// Assumed rate where a number of transactions is asked for.
const TRANSACTIONS_PER_SECOND: f64 = 1000.0;
/// Assumed rate of slap's queries, half of which are commits.
const QUERIES_PER_SECOND: f64 = 3000.0;

impl Cell {
    /// Bytes of disk that a trial of this cell takes; memory is no disk, and what a server that
    /// exists already needs is all in its own storage.
    pub fn disk_bytes(&self) -> u64 {
        match &self.storage.kind {
            StorageKind::Directory { .. } => {
                sizing::needed_bytes(&self.workload, &self.engine.settings)
            }
            kind => kind.devices().map_or(0, Devices::bytes),
        }
    }

    /// Seconds that a trial of this cell takes, all phases together.
    pub fn estimated_s(&self) -> f64 {
        let image_bytes = self.storage.kind.devices().map_or(0, Devices::bytes);
        let measured_s = match self.workload.length {
            RunLength::DurationS(seconds) => seconds,
            RunLength::Queries => self.workload.queries_in_all() as f64 / QUERIES_PER_SECOND,
            RunLength::Transactions(count) => {
                count as f64 * self.workload.clients_in_all() as f64 / TRANSACTIONS_PER_SECOND
            }
        };
        PROVISION_S
            + image_bytes as f64 / IMAGE_BYTES_PER_SECOND
            + LOAD_S_PER_SCALE
                * f64::from(self.workload.work.scale().unwrap_or(0))
                * f64::from(self.workload.instances)
            + self.workload.warmup_s
            + measured_s
    }
}

impl EnginePlan {
    /// Whether `actual`, as a server reports its version, is the one asked for: `13` accepts
    /// `13.23` and `13.23 (Debian 13.23-1)`, but not `130.1`.
    pub fn is_version(&self, actual: &str) -> bool {
        version_has_prefix(actual, &self.version)
    }
}

/// A size as ZFS takes it: a number with one of its suffixes, `8K`, or without.
fn zfs_bytes(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()? << shift)
}

/// Whether `version` starts with `prefix` in whole components; what follows a space is ignored.
pub fn version_has_prefix(version: &str, prefix: &str) -> bool {
    let number = version.split_whitespace().next().unwrap_or_default();
    number.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
