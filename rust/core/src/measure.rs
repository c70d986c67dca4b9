//! Running the load threads of a trial and gathering what they tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::gather::{Gatherer, LoadReport};
use crate::jobs::Load;
use crate::load::{Control, LoadDriver, ThreadEvent, ThreadJob};
use crate::plan::{Cell, RunLength};
use crate::record::{InstanceRecord, Phase, TrialRecord};
use crate::run::Study;
use crate::seam::{Endpoint, Event, RunSink};
use crate::watch::Watch;

/// The seed of a trial's random values: all cells of a block draw alike, each block anew.
pub(crate) fn seed(study: &Study<'_>, record: &TrialRecord) -> u64 {
    study.plan.design.seed.wrapping_add(u64::from(record.id.block))
}

#[expect(clippy::too_many_arguments, reason = "the parts of one trial, handed on once")]
/// Warm-up and measured window of one load for each instance. Intervals and metrics go to `sink` as they come.
pub(crate) async fn measure(
    study: &Study<'_>,
    cell: &Cell,
    loads: Vec<Load>,
    endpoints: &[Endpoint],
    mut watch: Watch<'_>,
    record: &mut TrialRecord,
    sink: &mut dyn RunSink,
    phases: &mut Phases<'_>,
) -> Result<LoadReport> {
    phases.enter(record, cell, Phase::Warmup);
    let (tell, mut events) = mpsc::unbounded_channel();
    let control = Arc::new(Control::default());
    let warmup = loads.iter().map(Load::warmup).max().unwrap_or_default();
    let seed = seed(study, record);
    let jobs: Vec<(u32, ThreadJob)> = (0..)
        .zip(loads.into_iter().zip(endpoints))
        .flat_map(|(instance, (load, endpoint))| {
            let jobs = load.jobs(&cell.workload, instance, endpoint, seed);
            jobs.into_iter().map(move |job| (instance, job))
        })
        .collect();
    let mut gatherer = Gatherer::new(jobs.iter().map(|(instance, _)| *instance));
    record.instances.resize_with(endpoints.len(), InstanceRecord::default);
    let driver = (study.driver)(&cell.engine)?;
    let connect_started = Instant::now();
    let threads: Vec<_> = jobs
        .into_iter()
        .enumerate()
        .map(|(number, (_, job))| spawn(driver.clone(), number, job, control.clone(), tell.clone()))
        .collect();
    drop(tell);

    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut zero: Option<Instant> = None;
    let mut connect = Duration::ZERO;
    let (mut measuring, mut measure_at) = (false, Instant::now());
    let mut interrupted = false;
    let mut stored = Ok(());
    while !gatherer.all_ended() {
        if stored.is_err() {
            control.stop();
        }
        tokio::select! {
            () = study.cancel.cancelled(), if !interrupted => {
                interrupted = true;
                control.stop();
            }
            _ = ticks.tick(), if zero.is_some() => {
                stored = stored.and_then(|()| sink.metrics(&watch.tick()));
            }
            samples = watch.told(), if zero.is_some() => {
                stored = stored.and_then(|()| sink.metrics(&samples));
            }
            () = tokio::time::sleep_until(measure_at.into()), if zero.is_some() && !measuring => {
                measuring = true;
                phases.enter(record, cell, Phase::Measure);
            }
            event = events.recv() => {
                let Some((thread, event)) = event else { break };
                let intervals = gatherer.take(thread, event);
                for second in intervals.chunk_by(|one, next| one.instance < next.instance) {
                    let committed = second.iter().map(|part| part.outcomes.committed).sum();
                    study.observer.event(&Event::Second { committed });
                }
                for interval in intervals {
                    if interval.phase == Phase::Measure
                        && let Some(of) = record.instances.get_mut(interval.instance as usize)
                    {
                        of.outcomes.merge(&interval.outcomes);
                    }
                    stored = stored.and_then(|()| sink.interval(&interval));
                }
                if zero.is_none() && gatherer.all_connected() {
                    connect = connect_started.elapsed();
                    // Clients that could not connect make the trial void: it need not run.
                    if gatherer.refused().is_empty() {
                        stored = sink.metrics(&watch.begin().await);
                        let now = Instant::now();
                        zero = Some(now);
                        measure_at = now + warmup;
                        ticks.reset();
                        control.start(now);
                    } else {
                        control.stop();
                    }
                }
            }
        }
    }
    let connected_window = connect_started.elapsed();
    if zero.is_some() && !interrupted {
        watch.end(record).await;
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
    Ok(LoadReport { connect, connected_window, ..gatherer.finish() })
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

/// Keeps the time of phases and tells the observer.
pub(crate) struct Phases<'a> {
    study: &'a Study<'a>,
    started: Instant,
    current: Option<Phase>,
}

impl<'a> Phases<'a> {
    pub(crate) fn new(study: &'a Study<'a>) -> Self {
        Self { study, started: Instant::now(), current: None }
    }

    pub(crate) fn enter(&mut self, record: &mut TrialRecord, cell: &Cell, phase: Phase) {
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

    pub(crate) fn leave(&mut self, record: &mut TrialRecord) {
        let now = Instant::now();
        if let Some(phase) = self.current.take() {
            record.phase_s.push((phase, (now - self.started).as_secs_f64()));
        }
        self.started = now;
    }
}
