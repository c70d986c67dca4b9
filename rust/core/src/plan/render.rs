//! A plan as text for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{
    Ageing, Devices, EnginePlan, FileSystem, Plan, Provision, RunLength, StorageKind, StoragePlan,
    UnavailableCell, Work, WorkloadPlan,
};
use crate::sizing::{bytes_text, seconds_text};
use crate::slap::{Queries, SlapPlan};

/// Every field of the plan. Engines, storages and workloads are printed once each and named by
/// number in the table of cells.
pub(super) fn plan(plan: &Plan) -> String {
    let engines = distinct(plan.cells.iter().map(|cell| &cell.engine));
    let storages = distinct(plan.cells.iter().map(|cell| &cell.storage));
    let workloads = distinct(plan.cells.iter().map(|cell| &cell.workload));
    let mut text = fields(&[
        ("plan", plan.name.clone()),
        ("plan_id", plan.plan_id()),
        ("plan_version", plan.plan_version.to_string()),
        ("site", plan.site.word().to_owned()),
        ("work_dir", plan.work_dir.display().to_string()),
    ]);
    for (number, item) in engines.iter().enumerate() {
        section(&mut text, "engine", number, engines.len(), &engine(item));
    }
    for (number, item) in storages.iter().enumerate() {
        section(&mut text, "storage", number, storages.len(), &storage(item));
    }
    for (number, item) in workloads.iter().enumerate() {
        section(&mut text, "workload", number, workloads.len(), &workload(item));
    }
    text += "\ndesign\n";
    text += &indented(&design(plan));
    text += "\ncells\n";
    text += &cells(plan, &engines, &storages, &workloads);
    if !plan.unavailable.is_empty() {
        text.push('\n');
        text += &unavailable(plan);
    }
    text += "\norder (numbers of cells)\n";
    for (block, order) in plan.design.order.iter().enumerate() {
        let order: Vec<String> = order.iter().map(|cell| (cell + 1).to_string()).collect();
        let _ = writeln!(text, "  block {:<4} {}", block + 1, order.join(" "));
    }
    let estimate = plan.estimate();
    text += "\nestimate\n";
    text += &indented(&[
        ("trials", estimate.trials.to_string()),
        ("disk", format!("{} at most at a time", bytes_text(estimate.disk_bytes))),
        ("time", format!("about {}", seconds_text(estimate.duration_s.round()))),
    ]);
    text
}

fn engine(engine: &EnginePlan) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("label", engine.label.clone()),
        ("kind", engine.kind.word().to_owned()),
        ("version", engine.version.clone()),
        ("allow_other_version", engine.allow_other_version.to_string()),
    ];
    match &engine.provision {
        Provision::Container { images, shm_size_bytes, memory_bytes, cpus } => {
            let none = || "no limit".to_owned();
            rows.extend([
                ("provision", "container".to_owned()),
                ("images", images.join(", ")),
                ("shm_size", bytes_text(*shm_size_bytes)),
                ("memory", memory_bytes.map_or_else(none, bytes_text)),
                ("cpus", cpus.map_or_else(none, |cpus| cpus.to_string())),
            ]);
        }
        Provision::Process { bin_dir } => rows.extend([
            ("provision", "process".to_owned()),
            ("bin_dir", bin_dir.display().to_string()),
        ]),
        Provision::Url { url } => {
            rows.extend([("provision", "url".to_owned()), ("url", url.clone())]);
        }
    }
    rows.extend([
        ("transport", engine.transport.word().to_owned()),
        ("settings_profile", engine.settings_profile.word().to_owned()),
        ("settings", assignments(&engine.settings, "none")),
        ("tls", engine.tls.word().to_owned()),
    ]);
    rows.extend(engine.tls_ca.as_ref().map(|path| ("tls_ca", path.display().to_string())));
    if let Some(pages) = engine.pages {
        rows.extend([
            ("block_size", bytes_text(pages.block_size_bytes.into())),
            ("wal_block_size", bytes_text(pages.wal_block_size_bytes.into())),
        ]);
    }
    if let Some(initdb) = &engine.initdb {
        rows.extend([
            ("locale", initdb.locale.clone()),
            ("encoding", initdb.encoding.clone()),
            ("checksums", initdb.checksums.to_string()),
        ]);
    }
    rows
}

fn storage(storage: &StoragePlan) -> Vec<(&'static str, String)> {
    let mut rows = vec![("label", storage.label.clone())];
    let volume = match &storage.kind {
        StorageKind::Directory { path } => {
            rows.extend([("kind", "directory".to_owned()), ("path", path.display().to_string())]);
            return rows;
        }
        StorageKind::Tmpfs { size_bytes } => {
            rows.extend([("kind", "tmpfs".to_owned()), ("size", bytes_text(*size_bytes))]);
            return rows;
        }
        StorageKind::Existing => {
            rows.push(("kind", "existing".to_owned()));
            return rows;
        }
        StorageKind::Zfs(volume) => {
            let ashift = volume.ashift.map_or("ZFS's own".to_owned(), |ashift| ashift.to_string());
            let options: Vec<String> =
                volume.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
            rows.push(("kind", "zfs".to_owned()));
            rows.extend(devices(&volume.devices));
            rows.push(ageing(storage.ageing));
            rows.extend([("ashift", ashift), ("options", or_none(&options.join(" ")))]);
            return rows;
        }
        StorageKind::Loop(volume) => volume,
    };
    rows.push(("kind", volume.file_system.word().to_owned()));
    rows.extend(devices(&volume.devices));
    rows.push(ageing(storage.ageing));
    rows.push(("block_size", volume.block_size_bytes.to_string()));
    if volume.file_system == FileSystem::Btrfs {
        rows.push(("nodatacow", volume.nodatacow.to_string()));
    }
    rows.extend([
        ("mkfs_options", or_none(&volume.mkfs_options.join(" "))),
        ("mount_options", or_none(&volume.mount_options.join(","))),
    ]);
    rows
}

fn ageing(ageing: Option<Ageing>) -> (&'static str, String) {
    let text = ageing.map_or("none, the volume is fresh".to_owned(), |ageing| {
        let Ageing { fullness_percent, churn } = ageing;
        format!("to {fullness_percent} % full, churn {churn}")
    });
    ("ageing", text)
}

fn devices(devices: &Devices) -> Vec<(&'static str, String)> {
    if let Some(device) = &devices.device {
        let size = bytes_text(devices.size_bytes);
        let device = format!("{}, called {}, which is erased", device.path.display(), device.id);
        return vec![("size", size), ("device", device)];
    }
    let read_ahead = devices.read_ahead_bytes.map_or("the kernel's own".to_owned(), bytes_text);
    vec![
        ("size", bytes_text(devices.size_bytes)),
        ("layout", devices.layout.word().to_owned()),
        ("devices", devices.count.to_string()),
        ("scheduler", devices.scheduler.clone()),
        ("read_ahead", read_ahead),
    ]
}

fn workload(workload: &WorkloadPlan) -> Vec<(&'static str, String)> {
    let length = match workload.length {
        RunLength::DurationS(seconds) => ("duration", seconds_text(seconds)),
        RunLength::Transactions(count) => ("transactions", format!("{count} per client")),
        RunLength::Queries => ("length", "the queries below".to_owned()),
    };
    let arrivals = workload.arrivals.map_or("closed".to_owned(), |arrivals| {
        format!("open, {} per second, {}", arrivals.rate_per_s, arrivals.spacing.word())
    });
    let mut rows = vec![("kind", workload.work.kind().word().to_owned())];
    rows.extend(workload.work.scaled().into_iter().flat_map(|scaled| {
        let random = format!("{} %", scaled.filler_random_percent);
        [("scale", scaled.scale.to_string()), ("filler_random", random)]
    }));
    rows.extend([
        ("instances", workload.instances.to_string()),
        ("clients", workload.clients.to_string()),
        ("threads", workload.threads.to_string()),
        ("protocol", workload.protocol.word().to_owned()),
        ("max_tries", workload.max_tries.to_string()),
        ("cache", workload.cache.word().to_owned()),
        ("arrivals", arrivals),
        ("warmup", seconds_text(workload.warmup_s)),
        length,
    ]);
    if let Work::Slap(plan) = &workload.work {
        rows.extend(slap(plan));
    }
    rows
}

fn slap(plan: &SlapPlan) -> Vec<(&'static str, String)> {
    let queries = match plan.queries {
        Queries::OnePass => "one pass of the list per client".to_owned(),
        Queries::PerClient(count) => format!("{count} per client"),
        Queries::Total(count) => format!("{count} in all"),
    };
    let columns = |count: u32, indexed: bool| {
        if indexed { format!("{count}, each indexed") } else { count.to_string() }
    };
    let never = |count: u64| if count == 0 { "never".to_owned() } else { count.to_string() };
    vec![
        ("queries", queries),
        ("iterations", plan.iterations.to_string()),
        ("load_type", plan.load_type.word().to_owned()),
        ("key", plan.key.word().to_owned()),
        ("int_columns", columns(plan.int_columns, plan.int_indexes)),
        ("char_columns", columns(plan.char_columns, plan.char_indexes)),
        ("secondary_indexes", plan.secondary_indexes.to_string()),
        ("write_number", plan.write_number.to_string()),
        ("unique_write_number", plan.unique_write_number.to_string()),
        ("unique_query_number", plan.unique_query_number.to_string()),
        ("commit_every", never(plan.commit_every)),
        ("detach_every", never(plan.detach_every)),
        ("storage_engine", or_none(&plan.engine)),
        ("create", or_none(&plan.custom.create)),
        ("query", or_none(&plan.custom.query)),
        ("pre_query", or_none(&plan.custom.pre_query)),
        ("post_query", or_none(&plan.custom.post_query)),
        ("delimiter", format!("{:?}", plan.custom.delimiter)),
    ]
}

fn design(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("profile", plan.design.profile.word().to_owned()),
        ("blocks", plan.design.blocks.to_string()),
        ("seed", plan.design.seed.to_string()),
        ("baseline", assignments(&plan.design.baseline, "none")),
        ("metrics", plan.design.metrics.to_string()),
    ]
}

fn cells(
    plan: &Plan,
    engines: &[&EnginePlan],
    storages: &[&StoragePlan],
    workloads: &[&WorkloadPlan],
) -> String {
    let mut rows = vec![["", "cell", "engine", "storage", "workload", "levels"].map(str::to_owned)];
    for (index, cell) in plan.cells.iter().enumerate() {
        rows.push([
            (index + 1).to_string(),
            cell.label.clone(),
            place(engines, &cell.engine),
            place(storages, &cell.storage),
            place(workloads, &cell.workload),
            assignments(&cell.levels, "none"),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("  {:>width$}", row[0], width = widths[0]);
        for (value, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(line, "  {value:<width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Each reason once, with what would bring the cells and the cells that it keeps out.
pub(super) fn unavailable(plan: &Plan) -> String {
    if plan.unavailable.is_empty() {
        return String::new();
    }
    let why = |cell: &UnavailableCell| (cell.reason.clone(), cell.remedy.clone());
    let causes: Vec<(String, String)> = plan.unavailable.iter().map(why).collect();
    let width = plan.unavailable.iter().map(|cell| cell.label.chars().count()).max().unwrap_or(0);
    let mut text = "not available here\n".to_owned();
    for cause in distinct(causes.iter()) {
        let (reason, remedy) = cause;
        let _ = writeln!(text, "  {reason}\n    → {remedy}");
        for cell in plan.unavailable.iter().filter(|cell| why(cell) == *cause) {
            let levels = assignments(&cell.levels, "none");
            let _ = writeln!(text, "    {:<width$}  {levels}", cell.label);
        }
    }
    text
}

/// The items without repetition, in order of first appearance.
fn distinct<'a, T: PartialEq>(items: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
    let mut kept: Vec<&T> = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

fn place<T: PartialEq>(items: &[&T], wanted: &T) -> String {
    items.iter().position(|item| *item == wanted).map_or(0, |index| index + 1).to_string()
}

fn section(
    text: &mut String,
    title: &str,
    number: usize,
    count: usize,
    rows: &[(&'static str, String)],
) {
    let number = if count > 1 { format!(" {}", number + 1) } else { String::new() };
    let _ = writeln!(text, "\n{title}{number}");
    *text += &indented(rows);
}

fn indented(rows: &[(&'static str, String)]) -> String {
    fields(rows).lines().map(|line| format!("  {line}\n")).collect()
}

fn fields(rows: &[(&'static str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

fn assignments(map: &BTreeMap<String, String>, empty: &str) -> String {
    if map.is_empty() {
        return empty.to_owned();
    }
    let parts: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    parts.join(", ")
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}
