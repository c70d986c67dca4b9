//! One trial, from a fresh volume to its record.
//!
//! volume → server → load → settle → warm-up → measure → verify → collect. Tearing down is not done
//! here but by [`crate::run`], for every end alike.

use std::time::{Duration, Instant};

use crate::check;
use crate::durability::Durability;
use crate::error::{ErrorKind, Result};
use crate::fill::{self, Filled, flush, number};
use crate::gather::{Lag, LoadReport};
use crate::jobs::{GRACE, Load, slap_rows, slap_writing_commits};
use crate::measure::{Phases, measure, seed};
use crate::plan::{CacheState, Cell, StorageKind, Work};
use crate::record::{Phase, ServerFacts, TrialId, TrialRecord, Trust, TrustLevel, VolumeFacts};
use crate::run::Study;
use crate::seam::{Contents, RunSink, Server, Session, Volume};
use crate::sizing::bytes_text;
use crate::watch::Watch;
use crate::workload;

/// How long the device may take to become idle after loading.
const SETTLE_AT_MOST: Duration = Duration::from_secs(30);
/// How far apart instances may start that are said to run together.
const STARTED_WITHIN: Duration = Duration::from_millis(50);
/// How long after its clients the end of a server becomes known.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
/// The share of arrivals that may find no client in the end, and the lag that is no sign of a queue.
const UNSERVED_SHARE: f64 = 0.01;
const LAG_MS_AT_EASE: f64 = 1.0;
/// The share of files that may still be in memory where the cache is said to be cold.
const COLD_SHARE: f64 = 0.01;

/// Executes one trial and fills `record` as it goes, so that a trial that fails half-way leaves what
/// is known. Intervals and metrics go to `sink` as they come, the server's log to `log`.
pub(crate) async fn run(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    log: &mut String,
    sink: &mut dyn RunSink,
) -> Result<()> {
    let started = Instant::now();
    let mut phases = Phases::new(study);
    phases.enter(record, cell, Phase::Volume);
    let volume = study.cancel.guard(study.site.create_volume(&record.id, &cell.storage)).await?;
    if let Some(ageing) = cell.storage.ageing {
        phases.enter(record, cell, Phase::Age);
        let aging = volume.age(ageing, seed(study, record));
        record.aged = Some(study.cancel.guard(aging).await?);
    }
    phases.enter(record, cell, Phase::Probe);
    match study.cancel.guard(volume.probe()).await {
        Ok(probe) => record.probe = probe,
        Err(error) if study.cancel.is_cancelled() => return Err(error),
        Err(error) => {
            record.trust.lower(TrustLevel::Caveat, format!("the volume was not probed: {error}"));
        }
    }
    phases.enter(record, cell, Phase::Server);
    let mut server = study
        .cancel
        .guard(study.site.start_server(
            &record.id,
            &cell.engine,
            cell.workload.instances,
            volume.as_ref(),
        ))
        .await?;
    let outcome =
        on_server(study, cell, record, sink, &mut phases, volume.as_ref(), server.as_mut()).await;
    // The log is evidence above all when something went wrong, so it is read before the error is
    // passed on; a log that cannot be read does not hide that error.
    match server.log().await {
        Ok(text) => *log = text,
        Err(error) => record.trust.lower(TrustLevel::Caveat, format!("no server log: {error}")),
    }
    if let Err(error) = &outcome
        && !study.cancel.is_cancelled()
    {
        let end = match error.kind {
            ErrorKind::Driver => ended_soon(server.as_ref()).await,
            _ => server.ended().await,
        };
        if let Some(end) = end {
            record.trust.lower(TrustLevel::Void, format!("the server ended: {end}"));
        }
    }
    if (outcome.is_err() || record.trust.level == TrustLevel::Void) && !study.cancel.is_cancelled()
    {
        explain(study, record, volume.as_ref(), started).await;
    }
    phases.enter(record, cell, Phase::Teardown);
    let stopped = if study.cancel.is_cancelled() { Ok(()) } else { server.stop().await };
    phases.leave(record);
    outcome.and(stopped)
}

/// Looks for what made a trial void below the server: a volume without room, a device that failed.
async fn explain(
    study: &Study<'_>,
    record: &mut TrialRecord,
    volume: &dyn Volume,
    started: Instant,
) {
    record.kernel_messages = study.monitor.kernel_messages(started.elapsed());
    if let Some(room) = volume.room().await.filter(|room| room.is_full()) {
        let (free, all) = (bytes_text(room.free_bytes), bytes_text(room.bytes));
        record
            .trust
            .lower(TrustLevel::Void, format!("the volume is full: {free} of {all} are free"));
    }
    // What the block layer says of a request that failed: `critical space allocation error, dev loop3`.
    let marks: Vec<String> =
        volume.devices().iter().flatten().map(|name| format!(" error, dev {name}, ")).collect();
    let failed = |message: &&String| marks.iter().any(|mark| message.contains(mark));
    if let Some(message) = record.kernel_messages.iter().find(failed) {
        record.trust.lower(TrustLevel::Void, format!("the kernel says: {message}"));
    }
}

/// Everything between the start of the server and its stop.
async fn on_server(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    sink: &mut dyn RunSink,
    phases: &mut Phases<'_>,
    volume: &dyn Volume,
    server: &mut dyn Server,
) -> Result<()> {
    let cancel = study.cancel;
    record.server = cancel.guard(server.facts()).await?;
    record.volume = cancel.guard(volume.facts()).await?;
    judge_provision(cell, record)?;

    let iterations = match &cell.workload.work {
        Work::Slap(plan) => plan.iterations,
        Work::Tpcb(_) | Work::SimpleUpdate(_) | Work::SelectOnly(_) => 1,
    };
    for iteration in 0..iterations {
        phases.enter(record, cell, Phase::Load);
        let filled =
            cancel.guard(fill_instances(study, cell, record, server, iteration > 0)).await?;

        phases.enter(record, cell, Phase::Settle);
        settle(study, cell, record, server, volume).await?;
        record.volume_used_bytes = volume.room().await.map(|room| room.used_bytes);
        let Contents { cached_share, compressed_share } = volume.contents().await;
        (record.cached_share, record.compressed_share) = (cached_share, compressed_share);
        if cell.workload.cache == CacheState::Cold {
            cancel.guard(make_cold(record, server, volume)).await?;
        }
        let server = &*server;

        let seed = seed(study, record).wrapping_add(u64::from(iteration) << 32);
        let loads = (0..).zip(&filled).map(|(instance, filled)| match filled {
            Filled::Scaled(scale) => Load::scripted(cell, *scale),
            Filled::Slap { queries, statements, keys } => {
                Ok(Load::slap(&cell.workload, instance, statements, keys, *queries, seed))
            }
        });
        let loads = loads.collect::<Result<_>>()?;
        let watch = Watch::new(study, cell, record, volume, server).await;
        let endpoints = server.instances();
        let report = measure(study, cell, loads, endpoints, watch, record, sink, phases).await?;

        phases.enter(record, cell, Phase::Verify);
        judge_load(record, &report);
        judge_arrivals(cell, record, &report);
        let end = match record.clients_lost {
            0 => server.ended().await,
            _ => cancel.guard(async { Ok(ended_soon(server).await) }).await?,
        };
        if let Some(end) = end {
            record.trust.lower(TrustLevel::Void, format!("the server ended: {end}"));
            return Ok(());
        }
        for (instance, filled) in filled.iter().enumerate() {
            let mut session = cancel.guard(server.session(&endpoints[instance])).await?;
            cancel.guard(verify(cell, instance, filled, session.as_mut(), record)).await?;
        }
        if record.trust.level == TrustLevel::Void {
            return Ok(());
        }
        count_writing_commits(cell, &filled, record);
    }
    judge_durability(cell, record);
    Ok(())
}

/// Fills the schema of each instance, once what was there before is gone.
async fn fill_instances(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    server: &dyn Server,
    again: bool,
) -> Result<Vec<Filled>> {
    let mut all = Vec::new();
    record.database_bytes = 0;
    for endpoint in server.instances() {
        let mut session = server.session(endpoint).await?;
        if again {
            fill::empty(session.as_mut()).await?;
        }
        let version = &record.server.version;
        all.push(fill::fill(cell, session.as_mut(), study.observer, version).await?);
        let bytes = workload::database_bytes_query(cell.engine.kind);
        record.database_bytes += number(session.as_mut(), bytes).await?;
    }
    Ok(all)
}

/// Has what was loaded written to storage and waits until the device is idle.
async fn settle(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    server: &dyn Server,
    volume: &dyn Volume,
) -> Result<()> {
    let cancel = study.cancel;
    let seconds = SETTLE_AT_MOST.as_secs();
    // The session ends here: it would be one more connection while measuring.
    let flushing = async {
        let mut session = server.session(server.endpoint()).await?;
        flush(cell.engine.kind, session.as_mut(), SETTLE_AT_MOST).await
    };
    let flushed = match cancel.guard(flushing).await {
        Ok(true) => None,
        Ok(false) => Some(format!("not everything was written after {seconds} s")),
        Err(error) if cancel.is_cancelled() => return Err(error),
        Err(error) => Some(format!("nothing was flushed before measuring: {error}")),
    };
    if let Some(reason) = flushed {
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    if !cancel.guard(volume.settle(SETTLE_AT_MOST)).await? {
        let reason = format!("the device was not idle after {seconds} s");
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    Ok(())
}

/// Starts the server again after the kernel forgot its files.
async fn make_cold(
    record: &mut TrialRecord,
    server: &mut dyn Server,
    volume: &dyn Volume,
) -> Result<()> {
    server.stop().await?;
    record.cached_share = volume.forget().await?;
    let reason = match record.cached_share {
        Some(share) if share <= COLD_SHARE => None,
        Some(share) => Some(format!("{:.0} % of the files were still in memory", share * 100.0)),
        None => Some("it could not be seen whether the files were still in memory".to_owned()),
    };
    if let Some(reason) = reason {
        record.trust.lower(TrustLevel::Caveat, format!("the cache was not cold: {reason}"));
    }
    server.start_again().await
}

/// How the server ended, where its connections say that it has. Whoever runs it may know of its end a
/// moment later than its clients do.
async fn ended_soon(server: &dyn Server) -> Option<String> {
    let deadline = tokio::time::Instant::now() + KNOWN_WITHIN;
    loop {
        let ended = server.ended().await;
        if ended.is_some() || tokio::time::Instant::now() >= deadline {
            return ended;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What version, settings and volume say about trust, before anything is measured.
fn judge_provision(cell: &Cell, record: &mut TrialRecord) -> Result<()> {
    check::check_version(&cell.engine, &record.server)?;
    check::check_pages(&cell.engine, &record.server)?;
    check::check_settings(&cell.engine, &record.server)?;
    let asked = &cell.engine.version;
    if !cell.engine.is_version(&record.server.version) {
        let ran = &record.server.version;
        let reason = format!("{} {ran} ran where {asked} was asked for", cell.engine.kind.name());
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    let page_bytes = check::page_bytes(cell.engine.kind, &record.server);
    let whole = page_bytes.is_some_and(|bytes| cell.storage.kind.writes_whole(bytes));
    for (setting, safe) in check::durability(cell.engine.kind) {
        if let Some(value) = record.server.settings.get(*setting)
            && !value.eq_ignore_ascii_case(safe)
            && !(whole && check::guards_pages(setting))
        {
            let reason = format!("{setting} is {value}: a crash may lose or tear commits");
            record.trust.lower(TrustLevel::Caveat, reason);
        }
    }
    // ZFS has a cache of its own, which the kernel cannot be told to empty.
    let own_cache = matches!(cell.storage.kind, StorageKind::Zfs(_));
    let probed = record.probe.map(|probe| probe.caveats(own_cache)).unwrap_or_default();
    for caveat in record.volume.caveats.iter().chain(&probed) {
        record.trust.lower(TrustLevel::Caveat, caveat.clone());
    }
    if cfg!(debug_assertions) {
        let reason = "Bedplate itself is a debug build; build it with --release";
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    Ok(())
}

/// What the load itself says about trust.
fn judge_load(record: &mut TrialRecord, report: &LoadReport) {
    for (of, report) in record.instances.iter_mut().zip(&report.instances) {
        of.started_s = of.started_s.max(report.started_after.as_secs_f64());
        of.window_s += report.window.as_secs_f64();
        of.committed_all += report.committed_all;
        of.counted_by_clients += report.counted_by_clients;
        of.scheduled += report.scheduled;
    }
    record.client_cpu_s += report.cpu_in_window.as_secs_f64();
    record.connect_s += report.connect.as_secs_f64();
    record.connected_windows_s.push(report.connected_window.as_secs_f64());
    let lost = report.lost.len() + report.refused.len();
    record.clients_lost += u32::try_from(lost).unwrap_or(u32::MAX);
    let outcomes = record.outcomes();
    let trust = &mut record.trust;
    if let Some(first) = report.refused.first() {
        let count = report.refused.len();
        trust.lower(TrustLevel::Void, format!("{count} clients could not connect: {first}"));
    }
    if let Some(first) = report.lost.first() {
        let count = report.lost.len();
        trust.lower(TrustLevel::Void, format!("{count} clients were lost: {first}"));
    }
    if report.unfinished > 0 {
        let count = report.unfinished;
        trust.lower(
            TrustLevel::Void,
            format!(
                "{count} clients were still in a transaction {} s after the end",
                GRACE.as_secs()
            ),
        );
    }
    if report.refused.is_empty() && outcomes.committed == 0 {
        trust.lower(TrustLevel::Void, "nothing was committed in the measured window");
    }
    let failed = outcomes.failed_total();
    if failed > 0 {
        // 0.1 %: methodology, "validity of a run".
        let all = failed + outcomes.committed;
        let level = if failed * 1000 > all { TrustLevel::Void } else { TrustLevel::Caveat };
        let states: Vec<&str> = outcomes.failed.keys().map(String::as_str).collect();
        let states = states.join(", ");
        trust.lower(level, format!("{failed} of {all} transactions failed (SQLSTATE {states})"));
    }
    for instance in &record.instances {
        let (counted, intervals) = (instance.counted_by_clients, instance.outcomes.committed);
        if counted != intervals {
            trust.lower(
                TrustLevel::Void,
                format!("clients counted {counted} commits, the intervals {intervals}"),
            );
        }
    }
    let starts = || report.instances.iter().map(|instance| instance.started_after);
    let apart = starts().max().unwrap_or_default() - starts().min().unwrap_or_default();
    if apart > STARTED_WITHIN {
        let reason = format!("the instances started {} ms apart", apart.as_millis());
        trust.lower(TrustLevel::Caveat, reason);
    }
}

/// Whether the server could serve what an open loop asked of it. Where it could not, transactions wait in a queue
/// that grows as long as the load goes on, and their response times tell only how long that was (methodology,
/// "validity of an open run").
fn judge_arrivals(cell: &Cell, record: &mut TrialRecord, report: &LoadReport) {
    if cell.workload.arrivals.is_none() {
        return;
    }
    let scheduled: u64 = record.instances.iter().map(|instance| instance.scheduled).sum();
    let unserved = report.unserved;
    // Of the intervals of the first and of the last third of the window. A stall makes a few of them late, a queue
    // that grows all.
    let start_s = report.lags.first().map_or(0.0, |lag| lag.start_s);
    let window_s = record.window_s();
    let third = |from: f64, to: f64| {
        let at = move |lag: &Lag| (lag.start_s - start_s) / window_s;
        let within = move |lag: &&Lag| lag.count > 0 && at(lag) >= from && at(lag) < to;
        report.lags.iter().filter(within).map(|lag| lag.mean_ms).fold(f64::INFINITY, f64::min)
    };
    let (first_ms, last_ms) = (third(0.0, 1.0 / 3.0), third(2.0 / 3.0, 1.0));
    let growing = last_ms.is_finite() && last_ms > LAG_MS_AT_EASE && last_ms > 2.0 * first_ms;
    let overloaded = unserved as f64 > UNSERVED_SHARE * scheduled as f64 || growing;
    record.overloaded = Some(overloaded);
    if overloaded {
        let reason = format!(
            "overloaded: of {scheduled} transactions that were to start, {unserved} had not when the \
             window ended; those that had started {first_ms:.1} ms late or more in its first third and \
             {last_ms:.1} ms in its last"
        );
        record.trust.lower(TrustLevel::Caveat, reason);
    }
}

/// Checks the workload's invariants on the live database of an instance.
async fn verify(
    cell: &Cell,
    instance: usize,
    filled: &Filled,
    session: &mut dyn Session,
    record: &mut TrialRecord,
) -> Result<()> {
    let kind = cell.workload.work.kind();
    for invariant in workload::invariants(kind) {
        let rows = session.query(invariant.sql).await?;
        let holds = rows.len() == 1 && rows[0].windows(2).all(|pair| pair[0] == pair[1]);
        if !holds {
            let reason = format!("it does not hold that {}: {rows:?}", invariant.claim);
            record.trust.lower(TrustLevel::Void, reason);
        }
    }
    match filled {
        Filled::Scaled(_) => {
            let rows = number(session, workload::HISTORY_ROWS).await?;
            let committed = record.instances.get(instance).map_or(0, |of| of.committed_all);
            let expected = workload::expected_history_rows(kind, committed);
            if rows != expected {
                let reason = format!(
                    "the history has {rows} rows where {expected} transactions were committed"
                );
                record.trust.lower(TrustLevel::Void, reason);
            }
        }
        Filled::Slap { statements, .. } => {
            for sql in &statements.post_query {
                session.execute(sql).await?;
            }
            let clients = cell.workload.clients;
            if let Some(expected) = slap_rows(&cell.workload.work, clients, statements) {
                let rows = number(session, "select count(*) from t1").await?;
                if rows != expected {
                    let reason =
                        format!("the table has {rows} rows where {expected} were inserted");
                    record.trust.lower(TrustLevel::Void, reason);
                }
            }
        }
    }
    Ok(())
}

/// Adds the commits of one iteration that wrote something.
fn count_writing_commits(cell: &Cell, filled: &[Filled], record: &mut TrialRecord) {
    let clients = cell.workload.clients;
    let commits = match &cell.workload.work {
        Work::Tpcb(_) | Work::SimpleUpdate(_) => {
            Some(record.instances.iter().map(|instance| instance.committed_all).sum())
        }
        Work::SelectOnly(_) => Some(0),
        Work::Slap(plan) => filled
            .iter()
            .map(|filled| match filled {
                Filled::Slap { statements, .. } => slap_writing_commits(plan, clients, statements),
                Filled::Scaled(_) => None,
            })
            .sum(),
    };
    record.writing_commits = commits.map(|commits| record.writing_commits.unwrap_or(0) + commits);
}

/// What flushes say of commits.
fn judge_durability(cell: &Cell, record: &mut TrialRecord) {
    let clients = cell.workload.clients_in_all();
    let flushes = record.devices.map(|devices| devices.flushes);
    let loses_flushes = record.probe.is_some_and(|probe| probe.loses_flushes());
    let facts = &record.volume.facts;
    record.durability =
        Durability::of(record.writing_commits, clients, flushes, loses_flushes, facts);
    if let (Durability::NotDurable, Some(commits), Some(flushes)) =
        (record.durability, record.writing_commits, flushes)
    {
        let reason = format!(
            "{commits} commits had {flushes} flushes of the device: not all were on stable storage \
             when the server said so"
        );
        record.trust.lower(TrustLevel::Caveat, reason);
    }
}

/// The record of a trial that has not begun.
pub(crate) fn blank(id: TrialId, cell: &Cell, driver: String, started_at: String) -> TrialRecord {
    TrialRecord {
        id,
        cell_label: cell.label.clone(),
        started_at,
        phase_s: Vec::new(),
        trust: Trust::sound(),
        instances: Vec::new(),
        clients_lost: 0,
        client_cpu_s: 0.0,
        connect_s: 0.0,
        connected_windows_s: Vec::new(),
        database_bytes: 0,
        volume_used_bytes: None,
        compressed_share: None,
        cached_share: None,
        server: ServerFacts::default(),
        volume: VolumeFacts::default(),
        overloaded: None,
        aged: None,
        probe: None,
        devices: None,
        server_work: None,
        writing_commits: None,
        durability: Durability::Unknown,
        driver,
        error: None,
        kernel_messages: Vec::new(),
    }
}
