//! One trial, from a fresh volume to its record.
//!
//! volume → server → load → settle → warm-up → measure → verify → collect. Tearing down is not done
//! here but by [`crate::run`], for every end alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::check;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Gatherer, LoadReport};
use crate::load::{Control, LoadDriver, ThreadEvent, ThreadJob};
use crate::plan::{Cell, RunLength};
use crate::record::{
    MetricSample, Outcomes, Phase, ServerFacts, TrialId, TrialRecord, Trust, TrustLevel,
    VolumeFacts,
};
use crate::run::Study;
use crate::sampler::Sampler;
use crate::seam::{Endpoint, Event, RunSink, Server, Session, Volume};
use crate::workload::{self, LoadStep};

/// How long the device may take to become idle after loading.
const SETTLE_AT_MOST: Duration = Duration::from_secs(30);
/// How long a transaction may go on after the end of the window before it counts as stuck.
const GRACE: Duration = Duration::from_secs(30);
/// How long after its clients the end of a server becomes known.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of COPY data sent at once.
const COPY_CHUNK_BYTES: usize = 256 * 1024;

/// Executes one trial and fills `record` as it goes, so that a trial that fails half-way leaves what
/// is known. Intervals go to `sink` as they close, metrics are appended to `metrics`, the server's
/// log to `log`.
pub(crate) async fn run(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    metrics: &mut Vec<MetricSample>,
    log: &mut String,
    sink: &mut dyn RunSink,
) -> Result<()> {
    let mut phases = Phases { study, started: Instant::now(), current: None };
    phases.enter(record, cell, Phase::Provision);
    let volume = study.cancel.guard(study.site.create_volume(&record.id, &cell.storage)).await?;
    let server = study
        .cancel
        .guard(study.site.start_server(&record.id, &cell.engine, volume.as_ref()))
        .await?;
    let outcome = on_server(
        study,
        cell,
        record,
        metrics,
        sink,
        &mut phases,
        volume.as_ref(),
        server.as_ref(),
    )
    .await;
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
    phases.enter(record, cell, Phase::Teardown);
    let stopped = if study.cancel.is_cancelled() { Ok(()) } else { server.stop().await };
    phases.leave(record);
    outcome.and(stopped)
}

/// Everything between the start of the server and its stop.
#[expect(clippy::too_many_arguments, reason = "the parts of one trial, handed on once")]
async fn on_server(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    metrics: &mut Vec<MetricSample>,
    sink: &mut dyn RunSink,
    phases: &mut Phases<'_>,
    volume: &dyn Volume,
    server: &dyn Server,
) -> Result<()> {
    let cancel = study.cancel;
    record.server = cancel.guard(server.facts()).await?;
    record.volume = cancel.guard(volume.facts()).await?;
    judge_provision(cell, record)?;

    phases.enter(record, cell, Phase::Load);
    let mut session = cancel.guard(server.session()).await?;
    cancel.guard(load(cell, session.as_mut(), study, &record.server.version)).await?;
    record.database_bytes = cancel.guard(database_bytes(session.as_mut())).await?;

    phases.enter(record, cell, Phase::Settle);
    if let Err(error) = cancel.guard(session.execute("checkpoint")).await {
        if cancel.is_cancelled() {
            return Err(error);
        }
        let reason = format!("no checkpoint before measuring: {error}");
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    if !cancel.guard(volume.settle(SETTLE_AT_MOST)).await? {
        let reason = format!("the device was not idle after {} s", SETTLE_AT_MOST.as_secs());
        record.trust.lower(TrustLevel::Caveat, reason);
    }

    let report =
        measure(study, cell, record, metrics, sink, phases, server.endpoint().clone()).await?;

    phases.enter(record, cell, Phase::Verify);
    judge_load(record, &report);
    let end = match record.clients_lost {
        0 => server.ended().await,
        _ => cancel.guard(async { Ok(ended_soon(server).await) }).await?,
    };
    if let Some(end) = end {
        record.trust.lower(TrustLevel::Void, format!("the server ended: {end}"));
        return Ok(());
    }
    // A fresh session: the one that loaded has been idle for as long as the load took.
    drop(session);
    let mut session = cancel.guard(server.session()).await?;
    cancel.guard(verify(cell, session.as_mut(), record)).await
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
    check::check_settings(&cell.engine, &record.server)?;
    let asked = &cell.engine.version;
    if !cell.engine.is_version(&record.server.version) {
        let ran = &record.server.version;
        let reason = format!("PostgreSQL {ran} ran where {asked} was asked for");
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        if let Some(value) = record.server.settings.get(setting)
            && value != "on"
        {
            let reason = format!("{setting} is {value}: a crash may lose or tear commits");
            record.trust.lower(TrustLevel::Caveat, reason);
        }
    }
    for caveat in &record.volume.caveats {
        record.trust.lower(TrustLevel::Caveat, caveat.clone());
    }
    if cfg!(debug_assertions) {
        let reason = "Bedplate itself is a debug build; build it with --release";
        record.trust.lower(TrustLevel::Caveat, reason);
    }
    Ok(())
}

/// Fills the database.
async fn load(
    cell: &Cell,
    session: &mut dyn Session,
    study: &Study<'_>,
    server_version: &str,
) -> Result<()> {
    for step in workload::load_steps(cell.workload.scale, server_version) {
        match step {
            LoadStep::Execute(sql) => session.execute(&sql).await?,
            LoadStep::CopyAccounts { sql, rows } => {
                let mut next_aid = 1;
                let mut chunk = || {
                    if next_aid > rows {
                        return None;
                    }
                    let mut lines = Vec::with_capacity(COPY_CHUNK_BYTES + 64);
                    while next_aid <= rows && lines.len() < COPY_CHUNK_BYTES {
                        workload::append_account(next_aid, &mut lines);
                        next_aid += 1;
                    }
                    let fraction = (next_aid - 1) as f64 / rows as f64;
                    study.observer.event(&Event::Progress { fraction });
                    Some(lines)
                };
                let copied = session.copy_in(&sql, &mut chunk).await?;
                if copied != rows {
                    return Err(Error::workload(format!(
                        "the load copied {copied} rows into pgbench_accounts where {rows} were sent"
                    )));
                }
            }
        }
    }
    Ok(())
}

async fn database_bytes(session: &mut dyn Session) -> Result<u64> {
    number(
        session,
        "select sum(pg_total_relation_size(name)) from unnest(array['pgbench_accounts', \
         'pgbench_branches', 'pgbench_tellers', 'pgbench_history']::regclass[]) as name",
    )
    .await
}

/// Runs a query whose result is one number.
async fn number(session: &mut dyn Session, sql: &str) -> Result<u64> {
    let rows = session.query(sql).await?;
    rows.first()
        .and_then(|row| row.first())
        .and_then(|value| value.as_deref())
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::driver(format!("`{sql}` gave {rows:?} where a number is expected")))
}

/// Warm-up and measured window.
async fn measure(
    study: &Study<'_>,
    cell: &Cell,
    record: &mut TrialRecord,
    metrics: &mut Vec<MetricSample>,
    sink: &mut dyn RunSink,
    phases: &mut Phases<'_>,
    endpoint: Endpoint,
) -> Result<LoadReport> {
    phases.enter(record, cell, Phase::Warmup);
    let (tell, mut events) = mpsc::unbounded_channel();
    let control = Arc::new(Control::default());
    let jobs = jobs(cell, study.plan.design.seed, record.id.block, endpoint)?;
    let warmup = jobs.first().map_or(Duration::ZERO, |job| job.warmup);
    let mut gatherer = Gatherer::new(jobs.len());
    let connect_started = Instant::now();
    let threads: Vec<_> = jobs
        .into_iter()
        .enumerate()
        .map(|(number, job)| {
            spawn(study.driver.clone(), number, job, control.clone(), tell.clone())
        })
        .collect();
    drop(tell);

    let mut sampler = Sampler::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut zero = None;
    let (mut measuring, mut measure_at) = (false, Instant::now());
    let mut interrupted = false;
    let mut stored = Ok(());
    while !gatherer.all_ended() {
        tokio::select! {
            () = study.cancel.cancelled(), if !interrupted => {
                interrupted = true;
                control.stop();
            }
            _ = ticks.tick(), if zero.is_some() => {
                let at = zero.map_or(Duration::ZERO, |zero: Instant| zero.elapsed());
                metrics.extend(sampler.samples(at, &study.monitor.read()));
            }
            () = tokio::time::sleep_until(measure_at.into()), if zero.is_some() && !measuring => {
                measuring = true;
                phases.enter(record, cell, Phase::Measure);
            }
            event = events.recv() => {
                let Some((thread, event)) = event else { break };
                for interval in gatherer.take(thread, event) {
                    let committed = interval.outcomes.committed;
                    study.observer.event(&Event::Second { committed });
                    if interval.phase == Phase::Measure {
                        record.outcomes.merge(&interval.outcomes);
                    }
                    if stored.is_ok() {
                        stored = sink.interval(&interval);
                        if stored.is_err() {
                            control.stop();
                        }
                    }
                }
                if zero.is_none() && gatherer.all_connected() {
                    record.connect_s = connect_started.elapsed().as_secs_f64();
                    // Clients that could not connect make the trial void: it need not run.
                    if gatherer.refused().is_empty() {
                        let now = Instant::now();
                        zero = Some(now);
                        measure_at = now + warmup;
                        ticks.reset();
                        metrics.extend(sampler.samples(Duration::ZERO, &study.monitor.read()));
                        control.start(now);
                    } else {
                        control.stop();
                    }
                }
            }
        }
    }
    let joined = tokio::task::spawn_blocking(move || {
        threads.into_iter().all(|thread| thread.join().is_ok())
    })
    .await
    .unwrap_or(false);
    if interrupted {
        return Err(Error::interrupted());
    }
    stored?;
    if !joined {
        return Err(Error::driver("a load thread panicked")
            .hint("this is a defect of bedplate; please report it with the run directory"));
    }
    Ok(gatherer.finish())
}

/// The jobs of a cell's threads: clients are dealt as evenly as possible, contiguous.
///
/// All cells of a block draw from the same seed, and each block from its own.
fn jobs(cell: &Cell, seed: u64, block: u32, endpoint: Endpoint) -> Result<Vec<ThreadJob>> {
    let workload = &cell.workload;
    let script = Arc::new(workload::script(workload.kind)?);
    let threads = workload.threads.min(workload.clients).max(1);
    let first = |thread: u32| {
        let product = u64::from(workload.clients) * u64::from(thread) / u64::from(threads);
        u32::try_from(product).unwrap_or(u32::MAX)
    };
    let warmup = match workload.length {
        RunLength::DurationS(_) => Duration::from_secs_f64(workload.warmup_s),
        RunLength::Transactions(_) => Duration::ZERO,
    };
    Ok((0..threads)
        .map(|thread| ThreadJob {
            script: script.clone(),
            given: vec![i64::from(workload.scale)],
            protocol: workload.protocol,
            endpoint: endpoint.clone(),
            clients: first(thread)..first(thread + 1),
            seed: seed.wrapping_add(u64::from(block)),
            warmup,
            length: workload.length,
            grace: GRACE,
        })
        .collect())
}

type ToldEvent = (usize, ThreadEvent);

fn spawn(
    driver: Arc<dyn LoadDriver>,
    number: usize,
    job: ThreadJob,
    control: Arc<Control>,
    tell: mpsc::UnboundedSender<ToldEvent>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        driver.run_thread(job, &control, &mut |event| {
            // The other end is gone only when the trial has been given up.
            let _ = tell.send((number, event));
        });
    })
}

/// What the load itself says about trust.
fn judge_load(record: &mut TrialRecord, report: &LoadReport) {
    record.window_s = report.window.as_secs_f64();
    record.committed_all = report.committed_all;
    record.client_cpu_s = report.cpu_in_window.as_secs_f64();
    let lost = report.lost.len() + report.refused.len();
    record.clients_lost = u32::try_from(lost).unwrap_or(u32::MAX);
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
    if report.refused.is_empty() && record.outcomes.committed == 0 {
        trust.lower(TrustLevel::Void, "nothing was committed in the measured window");
    }
    let failed = record.outcomes.failed_total();
    if failed > 0 {
        // 0.1 %: methodology, "validity of a run".
        let all = failed + record.outcomes.committed;
        let level = if failed * 1000 > all { TrustLevel::Void } else { TrustLevel::Caveat };
        let states: Vec<&str> = record.outcomes.failed.keys().map(String::as_str).collect();
        let states = states.join(", ");
        trust.lower(level, format!("{failed} of {all} transactions failed (SQLSTATE {states})"));
    }
    let counted: u64 = report.committed_by_client.iter().sum();
    if counted != record.outcomes.committed {
        let intervals = record.outcomes.committed;
        trust.lower(
            TrustLevel::Void,
            format!("clients counted {counted} commits, the intervals {intervals}"),
        );
    }
}

/// Checks the workload's invariants on the live database.
async fn verify(cell: &Cell, session: &mut dyn Session, record: &mut TrialRecord) -> Result<()> {
    let kind = cell.workload.kind;
    for invariant in workload::invariants(kind) {
        let rows = session.query(invariant.sql).await?;
        let holds = rows.len() == 1 && rows[0].windows(2).all(|pair| pair[0] == pair[1]);
        if !holds {
            let reason = format!("it does not hold that {}: {rows:?}", invariant.claim);
            record.trust.lower(TrustLevel::Void, reason);
        }
    }
    let rows = number(session, workload::HISTORY_ROWS).await?;
    let expected = workload::expected_history_rows(kind, record.committed_all);
    if rows != expected {
        let reason =
            format!("the history has {rows} rows where {expected} transactions were committed");
        record.trust.lower(TrustLevel::Void, reason);
    }
    Ok(())
}

/// Keeps the time of phases and tells the observer.
struct Phases<'a> {
    study: &'a Study<'a>,
    started: Instant,
    current: Option<Phase>,
}

impl Phases<'_> {
    fn enter(&mut self, record: &mut TrialRecord, cell: &Cell, phase: Phase) {
        self.leave(record);
        self.current = Some(phase);
        let expected_s = match (phase, cell.workload.length) {
            (Phase::Warmup, RunLength::DurationS(_)) => Some(cell.workload.warmup_s),
            (Phase::Measure, RunLength::DurationS(seconds)) => Some(seconds),
            _ => None,
        };
        self.study.observer.event(&Event::PhaseStarted {
            trial: record.id.trial,
            cell: cell.label.clone(),
            phase,
            expected_s,
        });
    }

    fn leave(&mut self, record: &mut TrialRecord) {
        let now = Instant::now();
        if let Some(phase) = self.current.take() {
            record.phase_s.push((phase, (now - self.started).as_secs_f64()));
        }
        self.started = now;
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
        window_s: 0.0,
        outcomes: Outcomes::default(),
        committed_all: 0,
        clients_lost: 0,
        client_cpu_s: 0.0,
        connect_s: 0.0,
        database_bytes: 0,
        server: ServerFacts::default(),
        volume: VolumeFacts::default(),
        driver,
        error: None,
    }
}
