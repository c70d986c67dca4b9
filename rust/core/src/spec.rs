//! A spec: what the user wrote, in TOML, JSON or Python, before any default is filled.
//!
//! ```
//! let spec = bedplate_core::spec::Spec::from_toml(r#"
//!     name = "quick"
//!     [[storage]]
//!     kind = "ext4"
//!     [[storage]]
//!     kind = "xfs"
//!     [workload]
//!     clients = [1, 8]
//! "#)?;
//! assert_eq!(spec.workload.clients, [1, 8]);
//! # Ok::<(), bedplate_core::Error>(())
//! ```
//!
//! A scalar that may vary takes a list and becomes a factor; such a field is a `Vec` here, and an
//! empty one was not written. Errors name the key's path, the value, what is allowed, and the
//! probable key or word for a near miss.
//!
//! Sizes are bytes or text: `KiB MiB GiB TiB` are binary, `kB MB GB TB` decimal. (Values of
//! `engine.settings` go to the server as they are; PostgreSQL's `kB MB GB TB` and MariaDB's `K M G T`
//! are binary.)

mod tree;
mod units;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use tree::near_miss;
use tree::{Field, Node, Table};

use crate::error::{Error, Result};
use crate::plan::{
    CacheState, EngineKind, FileSystem, Layout, Profile, QueryProtocol, SettingsProfile, SiteKind,
    Spacing, TlsMode, TransportKind, WorkloadKind,
};
use crate::sizing::setting_bytes;
use crate::slap::{self, Custom, KeyKind, LoadType, Queries, SlapPlan};

/// A study as it was written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    /// The study's name.
    pub name: Option<String>,
    /// Where volumes and servers live.
    pub site: Option<SiteKind>,
    /// Directory for short-lived files.
    pub work_dir: Option<PathBuf>,
    /// The engines; empty means one PostgreSQL with all defaults.
    pub engines: Vec<EngineSpec>,
    /// The storages; empty only with an engine of provision `url`.
    pub storages: Vec<StorageSpec>,
    /// What is executed.
    pub workload: WorkloadSpec,
    /// How the study is laid out.
    pub design: DesignSpec,
}

/// An engine as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSpec {
    /// Name of this level of the factor `engine`.
    pub label: Option<String>,
    /// The kind of database.
    pub kind: EngineKind,
    /// Versions, each a prefix in whole components.
    pub version: Vec<String>,
    /// Whether another version may run.
    pub allow_other_version: bool,
    /// How the server comes to be.
    pub provision: Option<ProvisionKind>,
    /// Container: the image, in place of the pinned one.
    pub image: Option<String>,
    /// Container: size of `/dev/shm` in bytes.
    pub shm_size_bytes: Option<u64>,
    /// Container: memory limit in bytes.
    pub memory_bytes: Option<u64>,
    /// Container: CPU limit in cores.
    pub cpus: Option<f64>,
    /// Process: where the binaries are.
    pub bin_dir: Option<PathBuf>,
    /// Url: the server's URL, without a password.
    pub url: Option<String>,
    /// How clients reach the server.
    pub transport: Option<TransportKind>,
    /// Settings, each with its levels.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Where settings that are not stated come from.
    pub settings_profile: Vec<SettingsProfile>,
    /// PostgreSQL: sizes of a block in bytes.
    pub block_size_bytes: Vec<u32>,
    /// PostgreSQL: sizes of a block of write-ahead log in bytes.
    pub wal_block_size_bytes: Vec<u32>,
    /// Whether and how connections are encrypted.
    pub tls: Option<TlsMode>,
    /// File with the certificates of the authorities that `verify` trusts.
    pub tls_ca: Option<PathBuf>,
    /// PostgreSQL: locale given to `initdb`.
    pub locale: Option<String>,
    /// PostgreSQL: encoding given to `initdb`.
    pub encoding: Option<String>,
    /// PostgreSQL: data checksums.
    pub checksums: Option<bool>,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            label: None,
            kind: EngineKind::Postgres,
            version: Vec::new(),
            allow_other_version: false,
            provision: None,
            image: None,
            shm_size_bytes: None,
            memory_bytes: None,
            cpus: None,
            bin_dir: None,
            url: None,
            transport: None,
            settings: BTreeMap::new(),
            settings_profile: Vec::new(),
            block_size_bytes: Vec::new(),
            wal_block_size_bytes: Vec::new(),
            tls: None,
            tls_ca: None,
            locale: None,
            encoding: None,
            checksums: None,
        }
    }
}

/// Ways a server is provisioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProvisionKind {
    /// A container.
    Container,
    /// Binaries on this machine.
    Process,
    /// A server that exists already.
    Url,
}

impl ProvisionKind {
    /// The word in the spec.
    pub fn word(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Process => "process",
            Self::Url => "url",
        }
    }
}

/// A storage as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct StorageSpec {
    /// Name of this level of the factor `storage`.
    pub label: Option<String>,
    /// What is made.
    pub kind: StorageSpecKind,
}

/// Kinds of storage, with the keys that each has.
#[derive(Debug, Clone, PartialEq)]
pub enum StorageSpecKind {
    /// A plain directory.
    Directory {
        /// The directory under which fresh ones are made.
        path: Option<PathBuf>,
    },
    /// Memory.
    Tmpfs {
        /// Size limit in bytes.
        size_bytes: Option<u64>,
    },
    /// A file system on loop devices.
    Loop(FileSystem, LoopSpec),
    /// ZFS on loop devices.
    Zfs(ZfsSpec),
}

impl StorageSpecKind {
    /// The word in the spec.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Directory { .. } => "directory",
            Self::Tmpfs { .. } => "tmpfs",
            Self::Loop(kind, _) => kind.word(),
            Self::Zfs(_) => "zfs",
        }
    }
}

/// Block devices as they were written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DevicesSpec {
    /// Size of the volume in bytes.
    pub size_bytes: Option<u64>,
    /// How they are put together.
    pub layout: Vec<Layout>,
    /// How many there are.
    pub count: Option<u32>,
    /// Schedulers of the kernel.
    pub scheduler: Vec<String>,
    /// How far the kernel reads ahead in bytes.
    pub read_ahead_bytes: Vec<u64>,
    /// Percents of the volume that are used before anything is loaded.
    pub fullness_percent: Vec<u32>,
    /// How many times the bytes of those files are written once more.
    pub churn: Option<u32>,
    /// A block device of this machine, in place of loop devices.
    pub device: Option<PathBuf>,
    /// What that device is called, as the consent that everything on it is lost.
    pub erase: Option<String>,
}

/// A file system on loop devices as it was written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoopSpec {
    /// What it lies on.
    pub devices: DevicesSpec,
    /// Block sizes in bytes.
    pub block_size_bytes: Vec<u32>,
    /// Whether files are written in place (btrfs alone).
    pub nodatacow: Vec<bool>,
    /// Further arguments for mkfs.
    pub mkfs_options: Vec<String>,
    /// Mount options.
    pub mount_options: Option<Vec<String>>,
}

/// ZFS on loop devices as it was written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ZfsSpec {
    /// What it lies on.
    pub devices: DevicesSpec,
    /// Power of two of the pool's sector size.
    pub ashift: Option<u32>,
    /// Properties of the dataset.
    pub options: BTreeMap<String, String>,
}

/// A workload as it was written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadSpec {
    /// Kinds.
    pub kind: Vec<WorkloadKind>,
    /// Scale factors.
    pub scale: Vec<u32>,
    /// Percents of an account's filler that are random text.
    pub filler_random_percent: Vec<u32>,
    /// Numbers of copies that run at once.
    pub instances: Vec<u32>,
    /// Numbers of concurrent connections of each instance.
    pub clients: Vec<u32>,
    /// Numbers of threads of each instance.
    pub threads: Vec<u32>,
    /// How statements are sent.
    pub protocol: Vec<QueryProtocol>,
    /// How often a transaction is tried when it fails in a way that may pass.
    pub max_tries: Option<u32>,
    /// What of the loaded data is in memory when the load starts.
    pub cache: Vec<CacheState>,
    /// Transactions per second that each instance is to start.
    pub rate_per_s: Vec<f64>,
    /// How they are spaced.
    pub spacing: Vec<Spacing>,
    /// Seconds of measuring.
    pub duration_s: Option<f64>,
    /// Transactions for each client.
    pub transactions: Option<u64>,
    /// Seconds before measuring.
    pub warmup_s: Option<f64>,
    /// What kind `slap` does, one entry for each combination of its levels; empty means its defaults.
    pub slap: Vec<SlapSpec>,
}

/// A factor and one of its levels.
pub type Level = (String, String);

/// One combination of the levels of kind `slap`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SlapSpec {
    /// Those of the keys that have several.
    pub levels: Vec<Level>,
    /// What it does.
    pub plan: SlapPlan,
}

/// A design as it was written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesignSpec {
    /// Named set of defaults.
    pub profile: Option<Profile>,
    /// Passes over all cells.
    pub blocks: Option<u32>,
    /// Seed of the order and of all random values.
    pub seed: Option<u64>,
    /// Factor to level of the cells that the others are compared with.
    pub baseline: BTreeMap<String, String>,
    /// Whether metrics are read while the load goes on.
    pub metrics: Option<bool>,
}

const SITES: [(&str, SiteKind); 2] = [("local", SiteKind::Local), ("docker", SiteKind::Docker)];
const ENGINES: [(&str, EngineKind); 2] =
    [("postgres", EngineKind::Postgres), ("mariadb", EngineKind::MariaDb)];
const PROVISIONS: [(&str, ProvisionKind); 3] = [
    ("container", ProvisionKind::Container),
    ("process", ProvisionKind::Process),
    ("url", ProvisionKind::Url),
];
const TRANSPORTS: [(&str, TransportKind); 2] =
    [("unix", TransportKind::Unix), ("tcp", TransportKind::Tcp)];
const TLS_MODES: [(&str, TlsMode); 3] =
    [("off", TlsMode::Off), ("require", TlsMode::Require), ("verify", TlsMode::Verify)];
const STORAGES: [(&str, StorageWord); 10] = [
    ("directory", StorageWord::Directory),
    ("tmpfs", StorageWord::Tmpfs),
    ("ext4", StorageWord::Loop(FileSystem::Ext4)),
    ("ext3", StorageWord::Loop(FileSystem::Ext3)),
    ("ext2", StorageWord::Loop(FileSystem::Ext2)),
    ("xfs", StorageWord::Loop(FileSystem::Xfs)),
    ("btrfs", StorageWord::Loop(FileSystem::Btrfs)),
    ("f2fs", StorageWord::Loop(FileSystem::F2fs)),
    ("nilfs2", StorageWord::Loop(FileSystem::Nilfs2)),
    ("zfs", StorageWord::Zfs),
];
const LAYOUTS: [(&str, Layout); 4] = [
    ("single", Layout::Single),
    ("raid0", Layout::Raid0),
    ("raid1", Layout::Raid1),
    ("raid10", Layout::Raid10),
];
const ZFS_LAYOUTS: [(&str, Layout); 5] =
    [LAYOUTS[0], LAYOUTS[1], LAYOUTS[2], LAYOUTS[3], ("raidz", Layout::Raidz)];
const WORKLOADS: [(&str, WorkloadKind); 4] = [
    ("tpcb", WorkloadKind::Tpcb),
    ("simple-update", WorkloadKind::SimpleUpdate),
    ("select-only", WorkloadKind::SelectOnly),
    ("slap", WorkloadKind::Slap),
];
const SLAP_KEYS: [(&str, KeyKind); 3] =
    [("none", KeyKind::None), ("autoincrement", KeyKind::Autoincrement), ("guid", KeyKind::Guid)];
const SLAP_LOAD_TYPES: [(&str, LoadType); 5] = [
    ("mixed", LoadType::Mixed),
    ("write", LoadType::Write),
    ("update", LoadType::Update),
    ("key", LoadType::Key),
    ("read", LoadType::Read),
];
const SPACINGS: [(&str, Spacing); 2] = [("poisson", Spacing::Poisson), ("even", Spacing::Even)];
const CACHE_STATES: [(&str, CacheState); 2] =
    [("warm", CacheState::Warm), ("cold", CacheState::Cold)];
const PROTOCOLS: [(&str, QueryProtocol); 3] = [
    ("simple", QueryProtocol::Simple),
    ("extended", QueryProtocol::Extended),
    ("prepared", QueryProtocol::Prepared),
];
const SETTINGS_PROFILES: [(&str, SettingsProfile); 2] =
    [("stock", SettingsProfile::Stock), ("fs-tuned", SettingsProfile::FsTuned)];
const PROFILES: [(&str, Profile); 4] = [
    ("smoke", Profile::Smoke),
    ("gate", Profile::Gate),
    ("publish", Profile::Publish),
    ("calibrate", Profile::Calibrate),
];

const SPEC_KEYS: [&str; 7] =
    ["name", "site", "work_dir", "engine", "storage", "workload", "design"];
const ENGINE_KEYS: [&str; 21] = [
    "kind",
    "label",
    "version",
    "allow_other_version",
    "provision",
    "image",
    "shm_size",
    "memory",
    "cpus",
    "bin_dir",
    "url",
    "transport",
    "settings",
    "settings_profile",
    "block_size",
    "wal_block_size",
    "tls",
    "tls_ca",
    "locale",
    "encoding",
    "checksums",
];
const DIRECTORY_KEYS: [&str; 3] = ["kind", "label", "path"];
const TMPFS_KEYS: [&str; 3] = ["kind", "label", "size"];
/// Those of every kind whose volume lies on devices.
const DEVICES_KEYS: [&str; 11] = [
    "kind",
    "label",
    "size",
    "layout",
    "devices",
    "scheduler",
    "read_ahead",
    "fullness",
    "churn",
    "device",
    "erase",
];
const MKFS_KEYS: [&str; 2] = ["mkfs_options", "mount_options"];
const ZFS_KEYS: [&str; 2] = ["ashift", "options"];

/// Keys of a file system on devices; f2fs has blocks of one size.
fn loop_keys(kind: FileSystem) -> Vec<&'static str> {
    let own: &[&str] = match kind {
        FileSystem::Btrfs => &["block_size", "nodatacow"],
        FileSystem::F2fs => &[],
        _ => &["block_size"],
    };
    [&DEVICES_KEYS[..], own, &MKFS_KEYS].concat()
}

/// Keys of all kinds of storage.
fn storage_keys() -> Vec<&'static str> {
    let mut keys = loop_keys(FileSystem::Btrfs);
    keys.push("path");
    keys.extend(ZFS_KEYS);
    keys
}

const WORKLOAD_KEYS: [&str; 15] = [
    "kind",
    "scale",
    "filler_random",
    "instances",
    "clients",
    "threads",
    "protocol",
    "max_tries",
    "cache",
    "rate",
    "spacing",
    "duration",
    "transactions",
    "warmup",
    "slap",
];
const SLAP_TABLE_KEYS: [&str; 19] = [
    "int_columns",
    "char_columns",
    "secondary_indexes",
    "key",
    "load_type",
    "write_number",
    "unique_write_number",
    "unique_query_number",
    "queries_per_client",
    "number_of_queries",
    "commit_every",
    "detach_every",
    "iterations",
    "storage_engine",
    "create",
    "query",
    "pre_query",
    "post_query",
    "delimiter",
];
/// Those that are statements, which are no names of levels.
const SLAP_TEXTS: [&str; 5] = ["create", "query", "pre_query", "post_query", "delimiter"];
const DESIGN_KEYS: [&str; 5] = ["profile", "blocks", "seed", "baseline", "metrics"];

impl Spec {
    /// The block devices that it names.
    pub fn devices(&self) -> Vec<PathBuf> {
        let devices = self.storages.iter().filter_map(|storage| match &storage.kind {
            StorageSpecKind::Loop(_, volume) => Some(&volume.devices),
            StorageSpecKind::Zfs(volume) => Some(&volume.devices),
            StorageSpecKind::Directory { .. } | StorageSpecKind::Tmpfs { .. } => None,
        });
        devices.filter_map(|devices| devices.device.clone()).collect()
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// A syntax error with its line, or the first key or value that is wrong.
    pub fn from_toml(text: &str) -> Result<Self> {
        read_spec(&parse_toml(text, "the spec")?)
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// A syntax error with its line, or the first key or value that is wrong.
    pub fn from_json(text: &str) -> Result<Self> {
        read_spec(&parse_json(text, "the spec")?)
    }

    /// Reads the bytes of a file whose name ends in `.toml` or `.json`. A spec without a name is
    /// named after the file.
    ///
    /// # Errors
    /// Those of [`Spec::from_toml`]; also another ending, or bytes that are not UTF-8.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let path = Path::new(name);
        let parse = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => parse_toml,
            Some("json") => parse_json,
            _ => {
                return Err(Error::spec(format!(
                    "{name} is neither a .toml nor a .json file, so its form is not known"
                )));
            }
        };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::spec(format!("{name} is not UTF-8 text: byte {} is wrong", error.valid_up_to()))
                .hint("save the file with the encoding UTF-8")
        })?;
        let mut spec = read_spec(&parse(text.strip_prefix('\u{feff}').unwrap_or(text), name)?)?;
        if spec.name.is_none() {
            spec.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        }
        Ok(spec)
    }

    /// The path of engine number `index` in error messages.
    pub(crate) fn engine_path(&self, index: usize) -> String {
        numbered("engine", index, self.engines.len())
    }

    /// The path of storage number `index` in error messages.
    pub(crate) fn storage_path(&self, index: usize) -> String {
        numbered("storage", index, self.storages.len())
    }
}

fn numbered(key: &str, index: usize, count: usize) -> String {
    if count > 1 { format!("{key}[{index}]") } else { key.to_owned() }
}

fn parse_toml(text: &str, name: &str) -> Result<Node> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            let before = text.as_bytes().get(..span.start).unwrap_or_default();
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        });
        let reason = error.message().replace('\n', ", ");
        Error::spec(format!("{name} is not valid TOML, line {line}: {reason}"))
    })
}

fn parse_json(text: &str, name: &str) -> Result<Node> {
    serde_json::from_str(text)
        .map_err(|error| Error::spec(format!("{name} is not valid JSON: {error}")))
}

fn read_spec(root: &Node) -> Result<Spec> {
    let Node::Table(_) = root else {
        return Err(Error::spec("the spec is not a table of keys and values"));
    };
    let table = Field { path: String::new(), node: root }.table()?;
    table.check_keys(&SPEC_KEYS, home_of)?;
    Ok(Spec {
        name: table.value("name", Field::name)?,
        site: table.value("site", |field| field.word("site", &SITES))?,
        work_dir: table.value("work_dir", Field::absolute_path)?,
        engines: read_all(&table, "engine", read_engine)?,
        storages: read_all(&table, "storage", read_storage)?,
        workload: table.value("workload", read_workload)?.unwrap_or_default(),
        design: table.value("design", read_design)?.unwrap_or_default(),
    })
}

/// Where a key that was written in the wrong table belongs.
fn home_of(key: &str) -> Option<String> {
    let homes: [(&str, &[&str]); 5] = [
        ("workload", &WORKLOAD_KEYS),
        ("workload.slap", &SLAP_TABLE_KEYS),
        ("design", &DESIGN_KEYS),
        ("storage", &storage_keys()),
        ("engine", &ENGINE_KEYS),
    ];
    let (home, _) = homes.into_iter().find(|(_, keys)| keys.contains(&key))?;
    (key != "kind" && key != "label").then(|| format!("`{key}` belongs under `{home}`"))
}

fn read_all<T>(table: &Table<'_>, key: &str, read: fn(&Table<'_>) -> Result<T>) -> Result<Vec<T>> {
    match table.get(key) {
        Some(field) => field.tables()?.iter().map(read).collect(),
        None => Ok(Vec::new()),
    }
}

fn read_engine(table: &Table<'_>) -> Result<EngineSpec> {
    table.check_keys(&ENGINE_KEYS, home_of)?;
    let kind = table
        .value("kind", |field| field.word("kind of engine", &ENGINES))?
        .unwrap_or(EngineKind::Postgres);
    Ok(EngineSpec {
        label: table.value("label", Field::name)?,
        kind,
        version: table.levels("version", read_version)?,
        allow_other_version: table.value("allow_other_version", Field::boolean)?.unwrap_or(false),
        provision: table.value("provision", |field| field.word("provision", &PROVISIONS))?,
        image: table.value("image", Field::text)?,
        shm_size_bytes: table.value("shm_size", Field::size_bytes)?,
        memory_bytes: table.value("memory", Field::size_bytes)?,
        cpus: table.value("cpus", Field::number)?,
        bin_dir: table.value("bin_dir", Field::absolute_path)?,
        url: table.value("url", |field| read_url(field, kind))?,
        transport: table.value("transport", |field| field.word("transport", &TRANSPORTS))?,
        settings: table.value("settings", |field| read_settings(field, kind))?.unwrap_or_default(),
        settings_profile: table.levels("settings_profile", |field| {
            field.word("profile of settings", &SETTINGS_PROFILES)
        })?,
        block_size_bytes: table.levels("block_size", read_bytes_of_block)?,
        wal_block_size_bytes: table.levels("wal_block_size", read_bytes_of_block)?,
        tls: table.value("tls", |field| field.word("mode of TLS", &TLS_MODES))?,
        tls_ca: table.value("tls_ca", Field::absolute_path)?,
        locale: table.value("locale", Field::text)?,
        encoding: table.value("encoding", Field::text)?,
        checksums: table.value("checksums", Field::boolean)?,
    })
}

/// PostgreSQL's kB are binary.
fn read_bytes_of_block(field: &Field<'_>) -> Result<u32> {
    let bytes = match field.node {
        Node::Text(text) => setting_bytes(text, 1).ok_or_else(|| {
            field.error("but a size is expected in PostgreSQL's form, such as \"8kB\"")
        })?,
        _ => field.integer()?,
    };
    u32::try_from(bytes).map_err(|_| field.error("but must be smaller"))
}

/// Digits and dots. A whole number may stand for itself; a number with a fraction may not, for 13.10
/// would be 13.1.
fn read_version(field: &Field<'_>) -> Result<String> {
    let text = match field.node {
        Node::Integer(number) => number.to_string(),
        Node::Float(_) => return Err(field.error("but a version is expected as text")),
        _ => field.text()?,
    };
    let component = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if text.split('.').all(component) {
        Ok(text)
    } else {
        Err(field.error("but a version is digits and dots, such as \"13\" or \"13.23\""))
    }
}

/// The form of an engine's URL, for people.
pub(crate) fn url_form(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Postgres => "postgresql://USER@HOST:PORT/DATABASE",
        EngineKind::MariaDb => "mysql://USER@HOST:PORT",
    }
}

/// The error about a password never repeats the value that holds it.
fn read_url(field: &Field<'_>, kind: EngineKind) -> Result<String> {
    let url = field.text()?;
    let (schemes, variable) = match kind {
        EngineKind::Postgres => (["postgresql", "postgres"], "PGPASSWORD"),
        EngineKind::MariaDb => (["mysql", "mariadb"], "MYSQL_PWD"),
    };
    let advice = format!("set it in the environment variable BEDPLATE_PASSWORD or {variable}");
    let (base, query) = url.split_once('?').unwrap_or((url.as_str(), ""));
    let Some((scheme, rest)) = base.split_once("://") else {
        return Err(Error::spec(format!("`{}` has no scheme", field.path))
            .hint(format!("write {}", url_form(kind))));
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    if user.contains(':') || query.split('&').any(|part| part.starts_with("password=")) {
        return Err(Error::spec(format!("`{}` holds a password", field.path)).hint(advice));
    }
    if !schemes.contains(&scheme) {
        return Err(field.error(format!("but its scheme must be {}", schemes.join(" or "))));
    }
    Ok(url)
}

/// Names are in lower case; MariaDB's may be written with dashes, and are kept as the server shows them.
fn read_settings(field: &Field<'_>, kind: EngineKind) -> Result<BTreeMap<String, Vec<String>>> {
    let mut settings = BTreeMap::new();
    for (key, value) in field.table()?.fields() {
        let mut name = key.to_ascii_lowercase();
        if kind == EngineKind::MariaDb {
            name = name.replace('-', "_");
        }
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
        {
            return Err(Error::spec(format!("`{}` is not the name of a setting", value.path)));
        }
        let levels = value.levels(|level| {
            let text = level.scalar()?;
            if text.chars().any(char::is_control) {
                return Err(level.error("but a setting may not hold control characters"));
            }
            Ok(text)
        })?;
        if settings.insert(name, levels).is_some() {
            return Err(Error::spec(format!(
                "`{}` is there twice, in different spellings",
                value.path
            )));
        }
    }
    Ok(settings)
}

/// The kind of a storage before its keys are read.
#[derive(Clone, Copy)]
enum StorageWord {
    Directory,
    Tmpfs,
    Loop(FileSystem),
    Zfs,
}

/// The kinds of storage, for people.
pub(crate) fn storage_kinds() -> String {
    STORAGES.map(|(word, _)| word).join(", ")
}

fn read_storage(table: &Table<'_>) -> Result<StorageSpec> {
    // A table with a wrong kind is reported for that, not for keys of another kind.
    let Some(field) = table.get("kind") else {
        table.check_keys(&storage_keys(), home_of)?;
        return Err(Error::spec(format!(
            "`{}` is missing (allowed: {})",
            table.path_of("kind"),
            storage_kinds()
        )));
    };
    let kind = match field.word("kind of storage", &STORAGES)? {
        StorageWord::Directory => {
            check_storage_keys(table, &DIRECTORY_KEYS, "directory")?;
            StorageSpecKind::Directory { path: table.value("path", Field::absolute_path)? }
        }
        StorageWord::Tmpfs => {
            check_storage_keys(table, &TMPFS_KEYS, "tmpfs")?;
            StorageSpecKind::Tmpfs { size_bytes: table.value("size", Field::size_bytes)? }
        }
        StorageWord::Loop(kind) => StorageSpecKind::Loop(kind, read_loop(table, kind)?),
        StorageWord::Zfs => StorageSpecKind::Zfs(read_zfs(table)?),
    };
    Ok(StorageSpec { label: table.value("label", Field::name)?, kind })
}

fn check_storage_keys(table: &Table<'_>, keys: &[&str], kind: &str) -> Result<()> {
    table.check_keys(keys, |key| {
        if storage_keys().contains(&key) {
            Some(format!("a storage of kind `{kind}` has no `{key}`"))
        } else {
            home_of(key)
        }
    })
}

fn read_loop(table: &Table<'_>, kind: FileSystem) -> Result<LoopSpec> {
    check_storage_keys(table, &loop_keys(kind), kind.word())?;
    Ok(LoopSpec {
        devices: read_devices(table, &LAYOUTS)?,
        block_size_bytes: table.levels("block_size", |field| {
            let bytes = field.size_bytes()?;
            u32::try_from(bytes).map_err(|_| field.error("but must be smaller"))
        })?,
        nodatacow: table.levels("nodatacow", Field::boolean)?,
        mkfs_options: table.value("mkfs_options", Field::texts)?.unwrap_or_default(),
        mount_options: table.value("mount_options", Field::texts)?,
    })
}

fn read_devices(table: &Table<'_>, layouts: &[(&str, Layout)]) -> Result<DevicesSpec> {
    Ok(DevicesSpec {
        size_bytes: table.value("size", Field::size_bytes)?,
        layout: table.levels("layout", |field| field.word("layout", layouts))?,
        count: table.value("devices", Field::integer)?,
        scheduler: table.levels("scheduler", Field::name)?,
        read_ahead_bytes: table.levels("read_ahead", Field::size_bytes)?,
        fullness_percent: table.levels("fullness", Field::integer)?,
        churn: table.value("churn", Field::integer)?,
        device: table.value("device", Field::absolute_path)?,
        erase: table.value("erase", Field::text)?,
    })
}

fn read_zfs(table: &Table<'_>) -> Result<ZfsSpec> {
    check_storage_keys(table, &[&DEVICES_KEYS[..], &ZFS_KEYS].concat(), "zfs")?;
    Ok(ZfsSpec {
        devices: read_devices(table, &ZFS_LAYOUTS)?,
        ashift: table.value("ashift", Field::integer)?,
        options: table.value("options", read_properties)?.unwrap_or_default(),
    })
}

/// Names and values of ZFS's properties are its own; only their form is looked at.
fn read_properties(field: &Field<'_>) -> Result<BTreeMap<String, String>> {
    let mut properties = BTreeMap::new();
    for (name, value) in field.table()?.fields() {
        let known = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_:.-".contains(&byte)
        };
        if name.is_empty() || name.starts_with('-') || !name.bytes().all(known) {
            return Err(Error::spec(format!("`{}` is not the name of a property", value.path)));
        }
        let text = value.scalar()?;
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(value.error("but a property may not be empty nor hold control characters"));
        }
        properties.insert(name.to_owned(), text);
    }
    Ok(properties)
}

fn read_workload(field: &Field<'_>) -> Result<WorkloadSpec> {
    let table = field.table()?;
    table.check_keys(&WORKLOAD_KEYS, home_of)?;
    Ok(WorkloadSpec {
        kind: table.levels("kind", |field| field.word("kind of workload", &WORKLOADS))?,
        scale: table.levels("scale", Field::integer)?,
        filler_random_percent: table.levels("filler_random", Field::integer)?,
        instances: table.levels("instances", Field::integer)?,
        clients: table.levels("clients", Field::integer)?,
        threads: table.levels("threads", Field::integer)?,
        protocol: table.levels("protocol", |field| field.word("protocol", &PROTOCOLS))?,
        max_tries: table.value("max_tries", Field::integer)?,
        cache: table.levels("cache", |field| field.word("state of caches", &CACHE_STATES))?,
        rate_per_s: table.levels("rate", Field::number)?,
        spacing: table.levels("spacing", |field| field.word("spacing", &SPACINGS))?,
        duration_s: table.value("duration", Field::seconds)?,
        transactions: table.value("transactions", Field::integer)?,
        warmup_s: table.value("warmup", Field::seconds)?,
        slap: table.value("slap", read_slaps)?.unwrap_or_default(),
    })
}

fn read_slaps(field: &Field<'_>) -> Result<Vec<SlapSpec>> {
    field.table()?.check_keys(&SLAP_TABLE_KEYS, home_of)?;
    let read = |(levels, node): (Vec<_>, Node)| {
        let plan = read_slap(&Field { path: field.path.clone(), node: &node })?;
        Ok(SlapSpec { levels, plan })
    };
    field.combinations(&SLAP_TABLE_KEYS, &SLAP_TEXTS)?.into_iter().map(read).collect()
}

/// The keys are mysqlslap's options, and so are the defaults.
fn read_slap(field: &Field<'_>) -> Result<SlapPlan> {
    let table = field.table()?;
    let own = SlapPlan::default();
    let (int_columns, int_indexes) =
        table.value("int_columns", read_columns)?.unwrap_or((own.int_columns, own.int_indexes));
    let (char_columns, char_indexes) =
        table.value("char_columns", read_columns)?.unwrap_or((own.char_columns, own.char_indexes));
    let number =
        |key: &str, own: u64| Ok::<_, Error>(table.value(key, Field::integer)?.unwrap_or(own));
    let text = |key: &str, own: &str| {
        Ok::<_, Error>(table.value(key, Field::text)?.unwrap_or_else(|| own.to_owned()))
    };
    let queries = match (
        table.value("queries_per_client", Field::integer)?,
        table.value("number_of_queries", Field::integer)?,
    ) {
        (None, None) => own.queries,
        (Some(count), None) => Queries::PerClient(count),
        (None, Some(count)) => Queries::Total(count),
        (Some(_), Some(_)) => {
            return Err(Error::spec(format!(
                "`{0}.queries_per_client` and `{0}.number_of_queries` contradict each other",
                field.path
            ))
            .hint("keep one of them"));
        }
    };
    let plan = SlapPlan {
        int_columns,
        int_indexes,
        char_columns,
        char_indexes,
        secondary_indexes: table
            .value("secondary_indexes", Field::integer)?
            .unwrap_or(own.secondary_indexes),
        key: table.value("key", |field| field.word("key", &SLAP_KEYS))?.unwrap_or(own.key),
        load_type: table
            .value("load_type", |field| field.word("load type", &SLAP_LOAD_TYPES))?
            .unwrap_or(own.load_type),
        write_number: number("write_number", own.write_number)?,
        unique_write_number: number("unique_write_number", own.unique_write_number)?,
        unique_query_number: number("unique_query_number", own.unique_query_number)?,
        queries,
        commit_every: number("commit_every", own.commit_every)?,
        detach_every: number("detach_every", own.detach_every)?,
        iterations: table.value("iterations", Field::integer)?.unwrap_or(own.iterations),
        engine: text("storage_engine", &own.engine)?,
        custom: Custom {
            create: text("create", &own.custom.create)?,
            query: text("query", &own.custom.query)?,
            pre_query: text("pre_query", &own.custom.pre_query)?,
            post_query: text("post_query", &own.custom.post_query)?,
            delimiter: text("delimiter", &own.custom.delimiter)?,
        },
    };
    plan.check()?;
    Ok(plan)
}

/// A number of columns, or `N:1` where each has an index.
fn read_columns(field: &Field<'_>) -> Result<(u32, bool)> {
    match field.node {
        Node::Integer(_) => Ok((field.integer()?, false)),
        _ => slap::parse_columns(&field.text()?)
            .map_err(|_| field.error("but a number is expected, or \"N:1\" for indexed columns")),
    }
}

fn read_design(field: &Field<'_>) -> Result<DesignSpec> {
    let table = field.table()?;
    table.check_keys(&DESIGN_KEYS, home_of)?;
    let baseline = match table.get("baseline") {
        Some(field) => field
            .table()?
            .fields()
            .map(|(factor, level)| Ok((factor.to_owned(), level.scalar()?)))
            .collect::<Result<_>>()?,
        None => BTreeMap::new(),
    };
    Ok(DesignSpec {
        profile: table.value("profile", |field| field.word("profile", &PROFILES))?,
        blocks: table.value("blocks", Field::integer)?,
        seed: table.value("seed", Field::integer)?,
        baseline,
        metrics: table.value("metrics", Field::boolean)?,
    })
}

#[cfg(test)]
mod tests;
