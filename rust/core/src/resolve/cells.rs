//! Cells: the cross product of engines, storages and workloads, and its labels.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{self, EngineChoice};
use super::storage::{self, Lack, StorageChoice};
use super::{Context, lengths, or_default};
use crate::error::{Error, Result};
use crate::plan::{
    Arrivals, CacheState, Cell, EngineKind, Provision, QueryProtocol, RunLength, Scaled, Spacing,
    StorageKind, UnavailableCell, Work, WorkloadKind, WorkloadPlan,
};
use crate::sizing;
use crate::spec::{EngineSpec, Level, SlapSpec, Spec, WorkloadSpec, storage_kinds};

/// What a factor is where it does not apply: the block size of a directory, say.
const NO_LEVEL: &str = "none";
/// pgbench's tables have 32-bit account numbers up to this scale.
const SCALE_MAX: u32 = 20_000;
/// PostgreSQL's limit of `max_connections`.
const CLIENTS_MAX: u32 = 262_143;

/// Instances are for a handful of schemas in one server.
const INSTANCES_MAX: u32 = 99;

/// No server answers more.
const RATE_MAX: f64 = 1e7;

/// More tries than this would hide a workload that cannot succeed.
const MAX_TRIES_MAX: u32 = 1000;

/// A workload with one level of each of its lists.
struct WorkloadChoice {
    plan: WorkloadPlan,
    levels: Vec<Level>,
}

/// All cells.
pub(super) struct Cells {
    pub(super) available: Vec<Cell>,
    pub(super) unavailable: Vec<UnavailableCell>,
}

/// All cells, engines outermost, in the order of the spec; at least one of them is available.
pub(super) fn cross(context: &Context<'_>) -> Result<Cells> {
    let workloads = workloads(context)?;
    let engines = engines(context)?;
    check_labels(
        "engine",
        context.spec.engines.iter().map(|engine| &engine.label),
        &first_labels(&engines),
    )?;
    let storages = storages(context, &engines)?;
    let needed = needed_by_scale(&engines, &workloads);
    let factors = factors(&engines, &storages, &workloads);
    let mut cells = Cells { available: Vec::new(), unavailable: Vec::new() };
    let mut first_lack = None;
    for engine in &engines {
        for storage in &storages {
            for workload in &workloads {
                engine::check_clients(engine, &workload.plan)?;
                check_work(engine, &workload.plan.work)?;
                check_cache(engine, workload.plan.cache)?;
                let scale = workload.plan.work.scale().unwrap_or(0);
                let needed_bytes = needed.get(&scale).copied().unwrap_or_default();
                let loaded_bytes = sizing::loaded_bytes(scale, workload.plan.instances);
                let made = storage::storage(context, storage, loaded_bytes, needed_bytes)?
                    .and_then(|made| match never_cold(&made.kind) {
                        Some(lack) if workload.plan.cache == CacheState::Cold => Err(lack),
                        _ => Ok(made),
                    });
                let known: BTreeMap<&str, &str> =
                    [&engine.levels, &storage.levels, &workload.levels]
                        .into_iter()
                        .flatten()
                        .map(|(factor, level)| (factor.as_str(), level.as_str()))
                        .collect();
                let mut levels = BTreeMap::from([
                    ("engine".to_owned(), engine.plan.label.clone()),
                    ("storage".to_owned(), storage.label.clone()),
                ]);
                let mut parts = vec![storage.label.clone()];
                if context.spec.engines.len() > 1 {
                    parts.insert(0, engine.plan.label.clone());
                }
                for factor in &factors {
                    let level = known.get(factor.as_str());
                    parts.extend(level.map(|level| format!("{factor}={level}")));
                    levels.insert(factor.clone(), (*level.unwrap_or(&NO_LEVEL)).to_owned());
                }
                let label = parts.join("/");
                match made {
                    Ok(storage) => cells.available.push(Cell {
                        label,
                        levels,
                        engine: engine.on(&storage),
                        storage,
                        workload: workload.plan.clone(),
                    }),
                    Err(lack) => {
                        first_lack.get_or_insert_with(|| storage::nothing_left(storage, &lack));
                        let Lack { reason, remedy } = lack;
                        cells.unavailable.push(UnavailableCell { label, levels, reason, remedy });
                    }
                }
            }
        }
    }
    check_unique(&cells)?;
    match first_lack {
        Some(error) if cells.available.is_empty() => Err(error),
        _ => Ok(cells),
    }
}

fn check_work(engine: &EngineChoice, work: &Work) -> Result<()> {
    if matches!(work, Work::Slap(_)) && engine.plan.kind != EngineKind::MariaDb {
        return Err(Error::spec(format!(
            "`workload.kind` is \"slap\", but `{}.kind` is \"{}\"",
            engine.path,
            engine.plan.kind.word()
        ))
        .hint("slap is for kind \"mariadb\""));
    }
    Ok(())
}

fn check_cache(engine: &EngineChoice, cache: CacheState) -> Result<()> {
    if cache == CacheState::Cold && matches!(engine.plan.provision, Provision::Url { .. }) {
        return Err(Error::spec(format!(
            "`workload.cache` is \"cold\", but `{}.provision` is \"url\", a server that is not ours \
             to be started again",
            engine.path
        ))
        .hint("leave `cache` out, or let Bedplate start the server"));
    }
    Ok(())
}

/// Why nothing on a storage is ever only there and not in memory.
fn never_cold(storage: &StorageKind) -> Option<Lack> {
    let reason = match storage {
        StorageKind::Tmpfs { .. } => "tmpfs is memory, which is never cold",
        StorageKind::Zfs(_) => "the cache of ZFS cannot be told to forget a volume",
        StorageKind::Directory { .. } | StorageKind::Loop(_) | StorageKind::Existing => {
            return None;
        }
    };
    let remedy = "leave \"cold\" out of `workload.cache` for it";
    Some(Lack { reason: reason.to_owned(), remedy: remedy.to_owned() })
}

/// Levels that were written differently can still mean the same.
fn check_unique(cells: &Cells) -> Result<()> {
    let available = cells.available.iter().map(|cell| cell.label.as_str());
    let mut labels = available.chain(cells.unavailable.iter().map(|cell| cell.label.as_str()));
    let mut seen = BTreeSet::new();
    match labels.find(|label| !seen.insert(*label)) {
        Some(label) => Err(Error::spec(format!("two cells are the same: {label}"))
            .hint("look for two levels of one list that mean the same")),
        None => Ok(()),
    }
}

fn engines(context: &Context<'_>) -> Result<Vec<EngineChoice>> {
    let default = [EngineSpec::default()];
    let specs: &[EngineSpec] = match context.spec.engines.as_slice() {
        [] => &default,
        engines => engines,
    };
    let mut choices = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        choices.extend(engine::choices(context, index, spec)?);
    }
    Ok(choices)
}

/// One label for each engine of the spec.
fn first_labels(engines: &[EngineChoice]) -> Vec<String> {
    let mut labels: Vec<(&str, &str)> = Vec::new();
    for engine in engines {
        if labels.last().is_none_or(|(path, _)| *path != engine.path) {
            labels.push((&engine.path, &engine.plan.label));
        }
    }
    labels.into_iter().map(|(_, label)| label.to_owned()).collect()
}

/// Checks that no two levels have the same name.
fn check_labels<'a>(
    key: &str,
    stated: impl Iterator<Item = &'a Option<String>>,
    labels: &[String],
) -> Result<()> {
    let stated: Vec<bool> = stated.map(Option::is_some).collect();
    for (index, label) in labels.iter().enumerate() {
        let Some(first) = labels[..index].iter().position(|other| other == label) else {
            continue;
        };
        let error = Error::spec(format!(
            "`{key}[{first}]` and `{key}[{index}]` have the same label \"{label}\""
        ));
        return Err(if stated.get(index) == Some(&true) && stated.get(first) == Some(&true) {
            error.hint("labels tell levels apart: change one of them")
        } else {
            error.hint(format!("give each `{key}` a `label` of its own"))
        });
    }
    Ok(())
}

fn storages<'a>(context: &Context<'a>, engines: &[EngineChoice]) -> Result<Vec<StorageChoice<'a>>> {
    let spec: &Spec = context.spec;
    for engine in engines {
        let exists = matches!(engine.plan.provision, Provision::Url { .. });
        match spec.storages.first() {
            Some(storage) if exists => {
                return Err(Error::spec(format!(
                    "`{}.kind` is \"{}\", but `{}.provision` is \"url\", a server that has its \
                     storage already",
                    spec.storage_path(0),
                    storage.kind.word(),
                    engine.path
                ))
                .hint("leave `storage` out"));
            }
            None if !exists => {
                return Err(Error::spec("`storage` is missing")
                    .hint(format!("add `[[storage]]` with a `kind`: {}", storage_kinds())));
            }
            _ => {}
        }
    }
    let labels: Vec<String> = spec
        .storages
        .iter()
        .map(|storage| storage.label.clone().unwrap_or_else(|| storage.kind.word().to_owned()))
        .collect();
    check_labels("storage", spec.storages.iter().map(|storage| &storage.label), &labels)?;
    storage::choices(context)
}

fn workloads(context: &Context<'_>) -> Result<Vec<WorkloadChoice>> {
    let spec = &context.spec.workload;
    let (length, warmup_s) = length(context)?;
    check_range("scale", &spec.scale, SCALE_MAX)?;
    check_range("instances", &spec.instances, INSTANCES_MAX)?;
    check_range("clients", &spec.clients, CLIENTS_MAX)?;
    check_range("threads", &spec.threads, CLIENTS_MAX)?;
    let max_tries = spec.max_tries.unwrap_or(1);
    check_range("max_tries", &[max_tries], MAX_TRIES_MAX)?;
    let arrivals = arrivals(spec)?;
    let threads: Vec<Option<u32>> = match spec.threads.as_slice() {
        [] => vec![None],
        threads => threads.iter().copied().map(Some).collect(),
    };
    let mut choices = Vec::new();
    for (work, own_levels) in works(spec)? {
        let (length, warmup_s) = match work {
            Work::Slap(_) => (RunLength::Queries, 0.0),
            _ => (length, warmup_s),
        };
        for instances in or_default(&spec.instances, 1) {
            for clients in or_default(&spec.clients, 1) {
                for &threads in &threads {
                    let cpus = context.capabilities.cpus / instances;
                    let threads = thread_count(threads, clients, cpus)?;
                    for protocol in or_default(&spec.protocol, QueryProtocol::Simple) {
                        for cache in or_default(&spec.cache, CacheState::Warm) {
                            for &arrivals in of_work(&work, &arrivals) {
                                let plan = WorkloadPlan {
                                    work: work.clone(),
                                    instances,
                                    clients,
                                    threads,
                                    protocol,
                                    max_tries,
                                    cache,
                                    arrivals,
                                    length,
                                    warmup_s,
                                };
                                let mut levels = levels(spec, &plan);
                                levels.extend(own_levels.iter().cloned());
                                choices.push(WorkloadChoice { plan, levels });
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(choices)
}

/// What arrivals there are; one closed loop where no rate is stated.
fn arrivals(spec: &WorkloadSpec) -> Result<Vec<Option<Arrivals>>> {
    if spec.rate_per_s.is_empty() {
        return match spec.spacing.first() {
            None => Ok(vec![None]),
            Some(spacing) => Err(Error::spec(format!(
                "`workload.spacing` is \"{}\", but no `workload.rate` says how many there are",
                spacing.word()
            ))
            .hint("set `rate` to transactions per second, or leave `spacing` out")),
        };
    }
    if let Some(rate) = spec.rate_per_s.iter().find(|rate| !(**rate > 0.0 && **rate <= RATE_MAX)) {
        return Err(Error::spec(format!(
            "`workload.rate` is {rate}, but must be above 0 and at most {RATE_MAX}"
        )));
    }
    if let Some(count) = spec.transactions {
        return Err(Error::spec(format!(
            "`workload.rate` and `workload.transactions` = {count} contradict each other: with a rate it \
             is the schedule that decides how many there are"
        ))
        .hint("use `workload.duration`"));
    }
    let spacings = or_default(&spec.spacing, Spacing::Poisson);
    let with = |rate_per_s: &f64| {
        let rate_per_s = *rate_per_s;
        spacings.iter().map(move |&spacing| Some(Arrivals { rate_per_s, spacing }))
    };
    Ok(spec.rate_per_s.iter().flat_map(with).collect())
}

/// slap's clients know no arrivals.
fn of_work<'a>(work: &Work, arrivals: &'a [Option<Arrivals>]) -> &'a [Option<Arrivals>] {
    match work {
        Work::Slap(_) => &[None],
        _ => arrivals,
    }
}

/// Every combination of kind and scale, and of slap, which has no scale, each of its own levels.
fn works(spec: &WorkloadSpec) -> Result<Vec<(Work, Vec<Level>)>> {
    let kinds = or_default(&spec.kind, WorkloadKind::Tpcb);
    let slap = kinds.contains(&WorkloadKind::Slap);
    if !spec.slap.is_empty() && !slap {
        return Err(Error::spec("`workload.slap` is given, but `workload.kind` is not \"slap\"")
            .hint("set `kind = \"slap\"`, or leave the table out"));
    }
    let foreign = [
        ("scale", !spec.scale.is_empty(), "the size of its table is `workload.slap.write_number`"),
        (
            "filler_random",
            !spec.filler_random_percent.is_empty(),
            "mysqlslap's columns are random text already",
        ),
        ("duration", spec.duration_s.is_some(), "its length is `workload.slap.queries_per_client`"),
        ("transactions", spec.transactions.is_some(), "say `workload.slap.queries_per_client`"),
        ("warmup", spec.warmup_s.is_some(), "mysqlslap has none"),
        ("rate", !spec.rate_per_s.is_empty(), "its clients send one query after another"),
    ];
    for (key, stated, hint) in foreign {
        if kinds == [WorkloadKind::Slap] && stated {
            let message = format!("`workload.{key}` does not go with `workload.kind` \"slap\"");
            return Err(Error::spec(message).hint(hint));
        }
    }
    if let Some(percent) = spec.filler_random_percent.iter().find(|percent| **percent > 100) {
        return Err(Error::spec(format!(
            "`workload.filler_random` is {percent}, but is a percentage, from 0 to 100"
        )));
    }
    let mut works = Vec::new();
    for kind in kinds {
        let fillers = or_default(&spec.filler_random_percent, 0);
        let scaled = or_default(&spec.scale, 1).into_iter().flat_map(|scale| {
            fillers
                .iter()
                .map(move |&filler_random_percent| Scaled { scale, filler_random_percent })
        });
        let without_levels = |work| (work, Vec::new());
        match kind {
            WorkloadKind::Tpcb => works.extend(scaled.map(Work::Tpcb).map(without_levels)),
            WorkloadKind::SimpleUpdate => {
                works.extend(scaled.map(Work::SimpleUpdate).map(without_levels));
            }
            WorkloadKind::SelectOnly => {
                works.extend(scaled.map(Work::SelectOnly).map(without_levels));
            }
            WorkloadKind::Slap => works.extend(
                or_default(&spec.slap, SlapSpec::default())
                    .into_iter()
                    .map(|SlapSpec { levels, plan }| (Work::Slap(Box::new(plan)), levels)),
            ),
        }
    }
    Ok(works)
}

fn levels(spec: &WorkloadSpec, plan: &WorkloadPlan) -> Vec<Level> {
    [
        ("workload", spec.kind.len(), plan.work.kind().word().to_owned()),
        ("scale", spec.scale.len(), scale(&plan.work)),
        ("filler_random", spec.filler_random_percent.len(), filler(&plan.work)),
        ("instances", spec.instances.len(), plan.instances.to_string()),
        ("clients", spec.clients.len(), plan.clients.to_string()),
        ("threads", spec.threads.len(), plan.threads.to_string()),
        ("protocol", spec.protocol.len(), plan.protocol.word().to_owned()),
        ("cache", spec.cache.len(), plan.cache.word().to_owned()),
        ("rate", spec.rate_per_s.len(), of_arrivals(plan, |it| it.rate_per_s.to_string())),
        ("spacing", spec.spacing.len(), of_arrivals(plan, |it| it.spacing.word().to_owned())),
    ]
    .into_iter()
    .filter(|(_, count, _)| *count > 1)
    .map(|(factor, _, level)| (factor.to_owned(), level))
    .collect()
}

fn of_arrivals(plan: &WorkloadPlan, level: impl Fn(&Arrivals) -> String) -> String {
    plan.arrivals.as_ref().map_or_else(|| NO_LEVEL.to_owned(), level)
}

fn filler(work: &Work) -> String {
    let percent = work.scaled().map(|scaled| scaled.filler_random_percent);
    percent.map_or_else(|| NO_LEVEL.to_owned(), |percent| percent.to_string())
}

fn scale(work: &Work) -> String {
    work.scale().map_or_else(|| NO_LEVEL.to_owned(), |scale| scale.to_string())
}

fn length(context: &Context<'_>) -> Result<(RunLength, f64)> {
    let spec = &context.spec.workload;
    let profile = lengths(&context.spec.design);
    if let Some(warmup_s) = spec.warmup_s.filter(|seconds| *seconds < 0.0) {
        return Err(Error::spec(format!(
            "`workload.warmup` is {warmup_s}, but must not be negative"
        )));
    }
    // What is warmed up is not cold; and cells that are compared have the same warm-up.
    let cold = spec.cache.contains(&CacheState::Cold);
    if let Some(warmup_s) = spec.warmup_s.filter(|seconds| cold && *seconds > 0.0) {
        return Err(Error::spec(format!(
            "`workload.warmup` is {warmup_s}, but `workload.cache` has \"cold\": a warm-up would fill \
             the caches before anything is measured"
        ))
        .hint("leave `warmup` out, or \"cold\""));
    }
    let Some(transactions) = spec.transactions else {
        let duration_s = spec.duration_s.unwrap_or(profile.duration_s);
        if duration_s <= 0.0 {
            return Err(Error::spec(format!(
                "`workload.duration` is {duration_s}, but must be above 0"
            )));
        }
        let by_profile_s = if cold { 0.0 } else { profile.warmup_s };
        let warmup_s = spec.warmup_s.unwrap_or(by_profile_s);
        return Ok((RunLength::DurationS(duration_s), warmup_s));
    };
    if transactions == 0 {
        return Err(Error::spec("`workload.transactions` is 0, but must be at least 1"));
    }
    if spec.duration_s.is_some() {
        return Err(Error::spec(
            "`workload.duration` and `workload.transactions` contradict each other",
        )
        .hint("keep one of them"));
    }
    if spec.warmup_s.is_some_and(|seconds| seconds > 0.0) {
        return Err(Error::spec(
            "`workload.warmup` and `workload.transactions` contradict each other: every \
             transaction counts",
        )
        .hint("set `workload.warmup` to 0, or use `workload.duration`"));
    }
    Ok((RunLength::Transactions(transactions), 0.0))
}

/// A statement costs the server more than the client, so half of the CPUs can carry what all of them
/// serve; and the fewer threads there are, the more replies each finds when it is woken.
fn thread_count(stated: Option<u32>, clients: u32, cpus: u32) -> Result<u32> {
    match stated {
        None => Ok(clients.min(cpus / 2).max(1)),
        Some(threads) if threads > clients => Err(Error::spec(format!(
            "`workload.threads` is {threads}, more than `workload.clients`, which is {clients}"
        ))
        .hint("a thread carries at least one client; leave `threads` out to have it chosen")),
        Some(threads) => Ok(threads),
    }
}

fn check_range(key: &str, levels: &[u32], most: u32) -> Result<()> {
    match levels.iter().find(|level| **level == 0 || **level > most) {
        Some(level) => {
            let bound =
                if *level == 0 { "at least 1".to_owned() } else { format!("at most {most}") };
            Err(Error::spec(format!("`workload.{key}` is {level}, but must be {bound}")))
        }
        None => Ok(()),
    }
}

/// For each scale, the most that any of its cells needs: cells that are compared get equal volumes.
fn needed_by_scale(engines: &[EngineChoice], workloads: &[WorkloadChoice]) -> BTreeMap<u32, u64> {
    let mut needed: BTreeMap<u32, u64> = BTreeMap::new();
    for engine in engines {
        for workload in workloads {
            let bytes = sizing::needed_bytes(&workload.plan, &engine.plan.settings);
            let most = needed.entry(workload.plan.work.scale().unwrap_or(0)).or_default();
            *most = bytes.max(*most);
        }
    }
    needed
}

/// The factors that vary beside engine and storage, in the order of labels.
fn factors(
    engines: &[EngineChoice],
    storages: &[StorageChoice<'_>],
    workloads: &[WorkloadChoice],
) -> Vec<String> {
    let engines = engines.iter().map(|choice| &choice.levels);
    let storages = storages.iter().map(|choice| &choice.levels);
    let workloads = workloads.iter().map(|choice| &choice.levels);
    let mut factors: Vec<String> = Vec::new();
    for (factor, _) in engines.chain(storages).chain(workloads).flatten() {
        if !factors.contains(factor) {
            factors.push(factor.clone());
        }
    }
    factors
}
