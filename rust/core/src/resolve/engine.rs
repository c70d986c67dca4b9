//! Engines: versions, ways of provisioning, settings.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Context, or_default};
use crate::capabilities::{Binaries, EngineOffer};
use crate::check::durability;
use crate::error::{Error, Result};
use crate::plan::{
    EngineKind, EnginePlan, Initdb, Pages, Provision, SettingsProfile, SiteKind, StorageKind,
    StoragePlan, TlsMode, TransportKind, WorkloadPlan, version_has_prefix,
};
use crate::sizing::MIB;
use crate::spec::{EngineSpec, Level, ProvisionKind, url_form};

/// Block sizes that PostgreSQL can be compiled with, in bytes.
const BLOCK_SIZES_BYTES: &[u32] = &[1024, 2048, 4096, 8192, 16384, 32768];
/// The same for its write-ahead log.
const WAL_BLOCK_SIZES_BYTES: &[u32] = &[1024, 2048, 4096, 8192, 16384, 32768, 65536];
/// PostgreSQL's own size of either.
const PAGE_BYTES: u32 = 8192;
/// InnoDB's default of `innodb_page_size`.
const INNODB_PAGE_BYTES: u64 = 16384;

/// Docker's own 64 MB are too few for parallel queries.
const SHM_SIZE_BYTES: u64 = 256 * MIB;

/// The version of an engine that names none.
fn default_version(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Postgres => "13",
        EngineKind::MariaDb => "10.3",
    }
}

/// Settings by which a server is placed, reached and heard. `port` is not among them: it may be chosen.
fn reserved(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::Postgres => &POSTGRES_RESERVED,
        EngineKind::MariaDb => &MARIADB_RESERVED,
    }
}

const MARIADB_RESERVED: [&str; 15] = [
    "aria_log_dir_path",
    "basedir",
    "bind_address",
    "chroot",
    "datadir",
    "init_file",
    "innodb_data_home_dir",
    "innodb_log_group_home_dir",
    "innodb_undo_directory",
    "log_error",
    "pid_file",
    "skip_grant_tables",
    "skip_networking",
    "socket",
    "user",
];

const POSTGRES_RESERVED: [&str; 11] = [
    "config_file",
    "data_directory",
    "external_pid_file",
    "hba_file",
    "ident_file",
    "listen_addresses",
    "log_destination",
    "logging_collector",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
];

/// Defaults of `max_connections`.
const POSTGRES_MAX_CONNECTIONS: u32 = 100;
const MARIADB_MAX_CONNECTIONS: u32 = 151;
/// PostgreSQL's default of `superuser_reserved_connections`.
const POSTGRES_RESERVED_CONNECTIONS: u32 = 3;

/// An engine with one level of each of its lists.
pub(super) struct EngineChoice {
    pub(super) plan: EnginePlan,
    pub(super) path: String,
    pub(super) levels: Vec<Level>,
    /// Settings that the spec states, which no profile changes.
    stated: Vec<String>,
}

/// All combinations of engine number `index`.
pub(super) fn choices(
    context: &Context<'_>,
    index: usize,
    spec: &EngineSpec,
) -> Result<Vec<EngineChoice>> {
    let path = context.spec.engine_path(index);
    let kind = provision_kind(context, spec);
    check_keys(context, &path, spec, kind)?;
    let (tls, tls_ca) = tls(&path, spec)?;
    let versions = match spec.version.as_slice() {
        [] => vec![default_version(spec.kind).to_owned()],
        versions => versions.to_vec(),
    };
    let label = spec.label.clone().unwrap_or_else(|| match versions.as_slice() {
        [version] => format!("{}-{version}", spec.kind.word()),
        _ => spec.kind.word().to_owned(),
    });
    let transport = transport(&path, spec, kind)?;
    let stated: Vec<String> = spec.settings.keys().cloned().collect();
    let mut choices = Vec::new();
    for version in &versions {
        for (pages, profile) in pages_and_profiles(&path, spec)? {
            let provision = provision(context, &path, spec, kind, version, pages)?;
            for settings in settings(&path, spec)? {
                let mut levels = Vec::new();
                if versions.len() > 1 {
                    levels.push(("version".to_owned(), version.clone()));
                }
                levels.extend(own_levels(spec, pages, profile));
                let varying = spec.settings.iter().filter(|(_, levels)| levels.len() > 1);
                levels.extend(varying.filter_map(|(name, _)| {
                    Some((format!("settings.{name}"), settings.get(name)?.clone()))
                }));
                let plan = EnginePlan {
                    label: label.clone(),
                    kind: spec.kind,
                    version: version.clone(),
                    allow_other_version: spec.allow_other_version,
                    provision: provision.clone(),
                    transport,
                    settings,
                    settings_profile: profile,
                    pages,
                    tls,
                    tls_ca: tls_ca.clone(),
                    initdb: initdb(spec, kind),
                };
                choices.push(EngineChoice {
                    plan,
                    path: path.clone(),
                    levels,
                    stated: stated.clone(),
                });
            }
        }
    }
    Ok(choices)
}

/// Every combination of page sizes and profiles of settings.
fn pages_and_profiles(
    path: &str,
    spec: &EngineSpec,
) -> Result<Vec<(Option<Pages>, SettingsProfile)>> {
    let stated = [
        ("block_size", &spec.block_size_bytes, BLOCK_SIZES_BYTES),
        ("wal_block_size", &spec.wal_block_size_bytes, WAL_BLOCK_SIZES_BYTES),
    ];
    for (key, sizes, allowed) in stated {
        if let Some(bytes) = sizes.first()
            && spec.kind != EngineKind::Postgres
        {
            return Err(Error::spec(format!(
                "`{path}.{key}` is {bytes}, but does not go with `{path}.kind` \"{}\"",
                spec.kind.word()
            ))
            .hint(format!("set `{path}.settings.innodb_page_size`, which MariaDB has instead")));
        }
        if let Some(bytes) = sizes.iter().find(|bytes| !allowed.contains(bytes)) {
            let allowed: Vec<String> =
                allowed.iter().map(|bytes| format!("{}kB", bytes / 1024)).collect();
            return Err(Error::spec(format!(
                "`{path}.{key}` is {bytes} bytes (allowed: {})",
                allowed.join(", ")
            )));
        }
    }
    let pages = if spec.block_size_bytes.is_empty() && spec.wal_block_size_bytes.is_empty() {
        vec![None]
    } else {
        let wal_sizes = or_default(&spec.wal_block_size_bytes, PAGE_BYTES);
        or_default(&spec.block_size_bytes, PAGE_BYTES)
            .into_iter()
            .flat_map(|block_size_bytes| {
                wal_sizes.iter().map(move |&wal_block_size_bytes| {
                    Some(Pages { block_size_bytes, wal_block_size_bytes })
                })
            })
            .collect()
    };
    let profiles = or_default(&spec.settings_profile, SettingsProfile::Stock);
    let with_profiles = |pages| profiles.iter().map(move |&profile| (pages, profile));
    Ok(pages.into_iter().flat_map(with_profiles).collect())
}

/// The levels of those that vary. `block_size` alone is a storage's.
fn own_levels(
    spec: &EngineSpec,
    pages: Option<Pages>,
    profile: SettingsProfile,
) -> impl Iterator<Item = Level> {
    let size = |bytes: fn(Pages) -> u32| {
        pages.map_or_else(String::new, |pages| format!("{}kB", bytes(pages) / 1024))
    };
    [
        ("engine.block_size", spec.block_size_bytes.len(), size(|pages| pages.block_size_bytes)),
        (
            "engine.wal_block_size",
            spec.wal_block_size_bytes.len(),
            size(|pages| pages.wal_block_size_bytes),
        ),
        ("settings_profile", spec.settings_profile.len(), profile.word().to_owned()),
    ]
    .into_iter()
    .filter(|(_, count, _)| *count > 1)
    .map(|(factor, _, level)| (factor.to_owned(), level))
}

impl EngineChoice {
    /// The engine on a storage: what the profile of settings has for it, but for what the spec states.
    pub(super) fn on(&self, storage: &StoragePlan) -> EnginePlan {
        let mut plan = self.plan.clone();
        if plan.settings_profile == SettingsProfile::FsTuned {
            for (name, value) in fs_tuned(&plan, &storage.kind) {
                if !self.stated.iter().any(|stated| stated == name) {
                    plan.settings.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        plan
    }
}

/// Settings that suit a file system. Where overwriting goes to a new place anyway, PostgreSQL's log gains
/// nothing from files that are filled with zeros or used again
/// (<https://www.postgresql.org/docs/13/runtime-config-wal.html>, `wal_init_zero`, `wal_recycle`). Where
/// no page can be written by half, nobody needs a second copy of it in the log or a doublewrite buffer.
fn fs_tuned(engine: &EnginePlan, storage: &StorageKind) -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    match engine.kind {
        EngineKind::Postgres => {
            if storage.copies_on_write() {
                settings.extend([("wal_init_zero", "off"), ("wal_recycle", "off")]);
            }
            let page_bytes = engine.pages.map_or(PAGE_BYTES, |pages| pages.block_size_bytes);
            if storage.writes_whole(page_bytes.into()) {
                settings.push(("full_page_writes", "off"));
            }
        }
        EngineKind::MariaDb => {
            let stated = engine.settings.get("innodb_page_size");
            let page_bytes = stated.map_or(Some(INNODB_PAGE_BYTES), |text| mariadb_bytes(text));
            if page_bytes.is_some_and(|bytes| storage.writes_whole(bytes)) {
                settings.push(("innodb_doublewrite", "OFF"));
            }
        }
    }
    settings
}

/// A size as MariaDB takes it, `16K` or in bytes.
fn mariadb_bytes(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    match lower.strip_suffix('k') {
        Some(number) => Some(number.parse::<u64>().ok()? << 10),
        None => lower.parse().ok(),
    }
}

/// How a cluster is initialised, where that is ours to choose.
fn initdb(spec: &EngineSpec, kind: ProvisionKind) -> Option<Initdb> {
    (spec.kind == EngineKind::Postgres && kind != ProvisionKind::Url).then(|| Initdb {
        locale: spec.locale.clone().unwrap_or_else(|| "C".to_owned()),
        encoding: spec.encoding.clone().unwrap_or_else(|| "UTF8".to_owned()),
        checksums: spec.checksums.unwrap_or(false),
    })
}

/// Whether and how connections are encrypted, and whom `verify` trusts.
fn tls(path: &str, spec: &EngineSpec) -> Result<(TlsMode, Option<PathBuf>)> {
    let mode = spec.tls.unwrap_or(TlsMode::Off);
    if spec.kind == EngineKind::Postgres && mode != TlsMode::Off {
        return Err(Error::spec(format!(
            "`{path}.tls` is \"{}\", but connections to PostgreSQL are never encrypted so far",
            mode.word()
        ))
        .hint(format!("leave `{path}.tls` out, or set it to \"off\"")));
    }
    match (mode, &spec.tls_ca) {
        (TlsMode::Verify, None) => {
            Err(Error::spec(format!("`{path}.tls` is \"verify\", but `{path}.tls_ca` is missing"))
                .hint(format!(
                    "name the PEM file of the authority that signed the server's certificate with \
             `{path}.tls_ca`, or set `{path}.tls = \"require\"` to encrypt without verifying"
                )))
        }
        (TlsMode::Off | TlsMode::Require, Some(_)) => Err(Error::spec(format!(
            "`{path}.tls_ca` does not go with `{path}.tls` \"{}\"",
            mode.word()
        ))
        .hint(format!("set `{path}.tls = \"verify\"`, or leave `{path}.tls_ca` out"))),
        (_, ca) => Ok((mode, ca.clone())),
    }
}

/// Checks that the clients find room on the server beside its superusers. What a server that exists
/// already allows is not known here, unless the spec declares it.
///
/// MariaDB takes one connection more than its `max_connections`, for an administrator; that one is
/// bedplate's own.
pub(super) fn check_clients(engine: &EngineChoice, workload: &WorkloadPlan) -> Result<()> {
    let settings = &engine.plan.settings;
    let stated = settings.get("max_connections");
    if stated.is_none() && matches!(engine.plan.provision, Provision::Url { .. }) {
        return Ok(());
    }
    let number = |name: &str, default: u32| match settings.get(name) {
        None => Ok(default),
        Some(text) => text.trim().parse().map_err(|_| {
            Error::spec(format!(
                "`{}.settings.{name}` is \"{text}\", but a whole number is expected",
                engine.path
            ))
        }),
    };
    let (most, reserved) = match engine.plan.kind {
        EngineKind::Postgres => (
            number("max_connections", POSTGRES_MAX_CONNECTIONS)?,
            number("superuser_reserved_connections", POSTGRES_RESERVED_CONNECTIONS)?,
        ),
        EngineKind::MariaDb => (number("max_connections", MARIADB_MAX_CONNECTIONS)?, 0),
    };
    let room = most.saturating_sub(reserved);
    let WorkloadPlan { instances, clients, .. } = workload;
    if workload.clients_in_all() <= u64::from(room) {
        return Ok(());
    }
    let of =
        if *instances > 1 { format!(" in each of {instances} instances") } else { String::new() };
    let because = match (engine.plan.kind, stated) {
        (EngineKind::Postgres, Some(_)) => format!(" ({most} less {reserved} for superusers)"),
        (EngineKind::Postgres, None) => {
            format!(" (its default {most} less {reserved} for superusers)")
        }
        (EngineKind::MariaDb, Some(_)) => String::new(),
        (EngineKind::MariaDb, None) => " (its default)".to_owned(),
    };
    Err(Error::spec(format!(
        "`workload.clients` is {clients}{of}, but `{}.settings.max_connections` leaves room for \
         {room}{because}",
        engine.path
    ))
    .hint(format!(
        "set `{}.settings.max_connections` to at least {}",
        engine.path,
        workload.clients_in_all() + u64::from(reserved)
    )))
}

fn provision_kind(context: &Context<'_>, spec: &EngineSpec) -> ProvisionKind {
    spec.provision.unwrap_or({
        if context.site == SiteKind::Docker || context.capabilities.docker.is_available() {
            ProvisionKind::Container
        } else {
            ProvisionKind::Process
        }
    })
}

/// Refuses keys that contradict the way of provisioning.
fn check_keys(
    context: &Context<'_>,
    path: &str,
    spec: &EngineSpec,
    kind: ProvisionKind,
) -> Result<()> {
    use ProvisionKind::{Container, Process, Url};
    if context.site == SiteKind::Docker && kind != Container {
        return Err(Error::spec(format!(
            "`site` is \"docker\", but `{path}.provision` is \"{}\", which runs outside Docker",
            kind.word()
        ))
        .hint("set `site = \"local\"` or `provision = \"container\"`"));
    }
    let of_postgres = [
        ("locale", spec.locale.is_some()),
        ("encoding", spec.encoding.is_some()),
        ("checksums", spec.checksums.is_some()),
    ];
    if let Some((key, _)) = of_postgres.iter().find(|(_, stated)| *stated)
        && spec.kind != EngineKind::Postgres
    {
        return Err(Error::spec(format!(
            "`{path}.{key}` does not go with `{path}.kind` \"{}\": it is told to PostgreSQL's initdb",
            spec.kind.word()
        ))
        .hint(format!("leave `{key}` out, or set what MariaDB has instead in `{path}.settings`")));
    }
    let owned: [(&str, bool, &[ProvisionKind]); 9] = [
        ("image", spec.image.is_some(), &[Container]),
        ("shm_size", spec.shm_size_bytes.is_some(), &[Container]),
        ("memory", spec.memory_bytes.is_some(), &[Container]),
        ("cpus", spec.cpus.is_some(), &[Container]),
        ("bin_dir", spec.bin_dir.is_some(), &[Process]),
        ("url", spec.url.is_some(), &[Url]),
        ("locale", spec.locale.is_some(), &[Container, Process]),
        ("encoding", spec.encoding.is_some(), &[Container, Process]),
        ("checksums", spec.checksums.is_some(), &[Container, Process]),
    ];
    for (key, stated, kinds) in owned {
        if stated && !kinds.contains(&kind) {
            let words: Vec<String> =
                kinds.iter().map(|kind| format!("\"{}\"", kind.word())).collect();
            let origin = if spec.provision.is_some() { "" } else { " (the default here)" };
            return Err(Error::spec(format!(
                "`{path}.{key}` does not go with `{path}.provision` \"{}\"{origin}",
                kind.word()
            ))
            .hint(format!("`{key}` is for provision {}", words.join(" and "))));
        }
    }
    if kind == Url && spec.url.is_none() {
        return Err(Error::spec(format!(
            "`{path}.url` is missing, and provision \"url\" needs it"
        ))
        .hint(format!("write {}", url_form(spec.kind))));
    }
    if let Some(cpus) = spec.cpus.filter(|cpus| *cpus <= 0.0) {
        return Err(Error::spec(format!("`{path}.cpus` is {cpus}, but must be above 0")));
    }
    if spec.memory_bytes == Some(0) {
        return Err(Error::spec(format!("`{path}.memory` is 0, but must be above 0")));
    }
    let varying = spec.settings.iter().find(|(_, levels)| levels.len() > 1);
    if kind == Url {
        if let Some((name, _)) = varying {
            return Err(Error::spec(format!(
                "`{path}.settings.{name}` has several levels, but the settings of a server that \
                 exists already are not changed"
            )));
        }
        if spec.version.len() > 1 {
            return Err(Error::spec(format!(
                "`{path}.version` has several levels, but `{path}.url` names one server"
            )));
        }
    }
    for (key, several) in [("image", spec.image.is_some()), ("bin_dir", spec.bin_dir.is_some())] {
        if several && spec.version.len() > 1 {
            return Err(Error::spec(format!(
                "`{path}.version` has several levels, but `{path}.{key}` holds one version"
            ))
            .hint("write one `[[engine]]` for each version"));
        }
    }
    Ok(())
}

fn provision(
    context: &Context<'_>,
    path: &str,
    spec: &EngineSpec,
    kind: ProvisionKind,
    version: &str,
    pages: Option<Pages>,
) -> Result<Provision> {
    let capabilities = context.capabilities;
    let offer = capabilities.engine(spec.kind);
    match kind {
        ProvisionKind::Container => {
            let need = format!("`{path}.provision` is \"container\" and needs Docker");
            capabilities.docker.require(&need)?;
            let images = match &spec.image {
                Some(image) if image.trim().is_empty() => {
                    return Err(Error::spec(format!("`{path}.image` is empty")));
                }
                Some(image) => vec![image.clone()],
                None if pages.is_some() => built_pages(path, version, pages)?,
                None => pinned_images(offer, path, spec, version)?,
            };
            Ok(Provision::Container {
                images,
                shm_size_bytes: spec.shm_size_bytes.unwrap_or(SHM_SIZE_BYTES),
                memory_bytes: spec.memory_bytes,
                cpus: spec.cpus,
            })
        }
        ProvisionKind::Process => {
            Ok(Provision::Process { bin_dir: bin_dir(offer, path, spec, version)? })
        }
        ProvisionKind::Url => Ok(Provision::Url { url: spec.url.clone().unwrap_or_default() }),
    }
}

/// The image with those page sizes, of the one version that is compiled.
fn built_pages(path: &str, version: &str, pages: Option<Pages>) -> Result<Vec<String>> {
    const COMPILED: &str = "13";
    if !version_has_prefix(version, COMPILED) {
        return Err(Error::spec(format!(
            "`{path}.version` is \"{version}\", but page sizes are compiled into PostgreSQL \
             {COMPILED} alone"
        ))
        .hint(format!("set `{path}.version = \"{COMPILED}\"`, or name an image of your own")));
    }
    Ok(pages.map(Pages::image).into_iter().collect())
}

/// The images of a version; where another may run, also the ones that can be built here.
fn pinned_images(
    offer: &EngineOffer,
    path: &str,
    spec: &EngineSpec,
    version: &str,
) -> Result<Vec<String>> {
    let pinned = &offer.pinned_images;
    // The version itself, else one that it is a prefix of, else one that is a prefix of it.
    let images = pinned.get(version).or_else(|| {
        let fits =
            |known: &str| version_has_prefix(known, version) || version_has_prefix(version, known);
        pinned.iter().find(|(known, _)| fits(known)).map(|(_, images)| images)
    });
    let mut images = images.cloned().unwrap_or_default();
    if spec.allow_other_version {
        let others: Vec<String> =
            offer.built_images.iter().filter(|image| !images.contains(image)).cloned().collect();
        images.extend(others);
    }
    if !images.is_empty() {
        return Ok(images);
    }
    let known: Vec<&str> = pinned.keys().map(String::as_str).collect();
    Err(Error::spec(format!(
        "`{path}.version` is \"{version}\", for which no image is pinned (pinned: {})",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    ))
    .hint(format!("name an image with `{path}.image`")))
}

fn bin_dir(offer: &EngineOffer, path: &str, spec: &EngineSpec, version: &str) -> Result<PathBuf> {
    // A directory that was named need not be among those that were found.
    let name = spec.kind.name();
    let known: Vec<&Binaries> = match &spec.bin_dir {
        Some(dir) => {
            let known = offer.binaries.iter().find(|found| found.bin_dir == *dir);
            match known {
                None => return Ok(dir.clone()),
                Some(known) => vec![known],
            }
        }
        None => offer.binaries.iter().collect(),
    };
    let newest = |wanted: &dyn Fn(&Binaries) -> bool| {
        known.iter().filter(|found| wanted(found)).max_by_key(|found| numbers(&found.version))
    };
    if let Some(found) = newest(&|found| version_has_prefix(&found.version, version)) {
        return Ok(found.bin_dir.clone());
    }
    let Some(other) = newest(&|_| true) else {
        return Err(Error::provision(format!(
            "`{path}.provision` is \"process\", but no {name} binaries were found on this machine"
        ))
        .hint(format!(
            "run `apt-get install {}`, or name a directory with `{path}.bin_dir`",
            match spec.kind {
                EngineKind::Postgres => "postgresql",
                EngineKind::MariaDb => "mariadb-server",
            }
        )));
    };
    if spec.allow_other_version {
        return Ok(other.bin_dir.clone());
    }
    let mut versions: Vec<&str> = known.iter().map(|found| found.version.as_str()).collect();
    versions.sort_by_key(|version| Reverse(numbers(version)));
    versions.dedup();
    Err(Error::provision(format!(
        "`{path}.version` is \"{version}\", but this machine has {name} {}",
        versions.join(", ")
    ))
    .hint(format!(
        "set `{path}.version`, or `{path}.allow_other_version = true` to run it all the same"
    )))
}

fn numbers(version: &str) -> Vec<u32> {
    let number = version.split_whitespace().next().unwrap_or_default();
    number.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn transport(path: &str, spec: &EngineSpec, kind: ProvisionKind) -> Result<TransportKind> {
    let Some(url) = spec.url.as_deref().filter(|_| kind == ProvisionKind::Url) else {
        return Ok(spec.transport.unwrap_or(TransportKind::Unix));
    };
    let actual = url_transport(spec.kind, url);
    match spec.transport {
        Some(stated) if stated != actual => Err(Error::spec(format!(
            "`{path}.transport` is \"{}\", but `{path}.url` says \"{}\"",
            stated.word(),
            actual.word()
        ))
        .hint(format!("leave `{path}.transport` out"))),
        _ => Ok(actual),
    }
}

/// PostgreSQL, by libpq's rule: a host that starts with a slash (or its escape), or no host at all, is
/// a socket. MariaDB: the socket is a parameter of its own.
fn url_transport(kind: EngineKind, url: &str) -> TransportKind {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    if kind == EngineKind::MariaDb {
        let socket = query.split('&').any(|part| part.starts_with("socket="));
        return if socket { TransportKind::Unix } else { TransportKind::Tcp };
    }
    let authority = base.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = query.split('&').find_map(|part| part.strip_prefix("host=")).unwrap_or(host);
    let socket =
        host.is_empty() || host.starts_with('/') || host.to_ascii_lowercase().starts_with("%2f");
    if socket { TransportKind::Unix } else { TransportKind::Tcp }
}

/// Every combination of the settings' levels, the durability settings always among them.
fn settings(path: &str, spec: &EngineSpec) -> Result<Vec<BTreeMap<String, String>>> {
    let base: BTreeMap<String, String> = durability(spec.kind)
        .iter()
        .map(|(name, safe)| ((*name).to_owned(), (*safe).to_owned()))
        .collect();
    let mut combinations = vec![base];
    for (name, levels) in &spec.settings {
        if reserved(spec.kind).contains(&name.as_str()) {
            let value = levels.join(", ");
            return Err(Error::spec(format!(
                "`{path}.settings.{name}` is \"{value}\", but bedplate sets it itself for each trial"
            ))
            .hint(format!("leave `{name}` out: paths, sockets and logs are chosen for each trial")));
        }
        let levels: Vec<String> = levels
            .iter()
            .map(|level| durable(spec.kind, path, name, level))
            .collect::<Result<_>>()?;
        combinations = combinations
            .iter()
            .flat_map(|settings| {
                levels.iter().map(|level| {
                    let mut settings = settings.clone();
                    settings.insert(name.clone(), level.clone());
                    settings
                })
            })
            .collect();
    }
    Ok(combinations)
}

/// The value as the server will report it, for the durability settings; others stay as they are.
fn durable(kind: EngineKind, path: &str, name: &str, value: &str) -> Result<String> {
    if !durability(kind).iter().any(|(known, _)| *known == name) {
        return Ok(value.to_owned());
    }
    let words: &[&str] = match name {
        "synchronous_commit" => &["on", "off", "local", "remote_write", "remote_apply"],
        "innodb_flush_log_at_trx_commit" => &["0", "1", "2", "3"],
        "innodb_doublewrite" => &["ON", "OFF"],
        _ => &["on", "off"],
    };
    let lower = value.trim().to_ascii_lowercase();
    let allowed = |wanted: &str| words.iter().find(|word| word.eq_ignore_ascii_case(wanted));
    let word = allowed(&lower).or_else(|| match lower.as_str() {
        "true" | "yes" | "1" => allowed("on"),
        "false" | "no" | "0" => allowed("off"),
        _ => None,
    });
    word.map(|word| (*word).to_owned()).ok_or_else(|| {
        Error::spec(format!(
            "`{path}.settings.{name}` is \"{value}\" (allowed: {})",
            words.join(", ")
        ))
    })
}
