//! Reading a run directory, complete or not.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use bedplate_core::plan::{PLAN_VERSION, Plan};
use bedplate_core::record::{
    Environment, Interval, MetricSample, OpenTimes, Outcomes, Phase, TrialRecord,
};
use bedplate_core::{Error, Result};
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::rows::Quantiles;
use crate::stored::{
    COMPLETE, ENVIRONMENT, INTERVALS, IntervalLine, METRICS, PLAN, RECORD, RUN, RUN_VERSION,
    RunFile, SERVER_LOG, TRIALS, Totals, check_totals, failed,
};

/// A run as its directory tells it.
#[derive(Debug, Clone)]
pub struct Run {
    /// The directory.
    pub path: PathBuf,
    /// Identifier of the run.
    pub run_id: String,
    /// Whether every trial of the plan is finished and the `COMPLETE` mark is there.
    pub complete: bool,
    /// Wall-clock start, RFC 3339 in UTC.
    pub started_at: String,
    /// What was to be executed.
    pub plan: Plan,
    /// Machine and software before the run.
    pub environment: Environment,
    /// The finished trials, in order of execution.
    pub trials: Vec<Trial>,
    /// Numbers of the trials that were started and not finished.
    pub unfinished: Vec<u32>,
}

/// A finished trial.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Its record; void when its intervals do not add up to it.
    pub record: TrialRecord,
    /// Its intervals, those of all instances together, in order.
    pub intervals: Vec<IntervalRow>,
    /// Service times in nanoseconds of the measured window: its intervals' histograms merged.
    pub service_time_ns: Histogram<u64>,
    /// Its response times and lags in the same way; none in a closed loop.
    pub open: Option<OpenTimes>,
    /// The service times of each instance.
    pub instance_service_time_ns: Vec<Histogram<u64>>,
    /// Its readings of metrics.
    pub metrics: Vec<MetricSample>,
}

/// An interval without its histogram, of which only the quantiles are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalRow {
    /// [`Phase::Warmup`] or [`Phase::Measure`].
    pub phase: Phase,
    /// Seconds from the start of the load to the start of the interval.
    pub start_s: f64,
    /// Length in seconds.
    pub length_s: f64,
    /// Outcomes.
    pub outcomes: Outcomes,
    /// Clients that were connected at its end.
    pub live_clients: u32,
    /// Quantiles of the service times.
    pub service_time: Quantiles,
}

impl IntervalRow {
    fn of(interval: &Interval) -> Self {
        Self {
            phase: interval.phase,
            start_s: interval.start_s,
            length_s: interval.length_s,
            live_clients: interval.live_clients,
            service_time: Quantiles::of(&interval.service_time_ns),
            outcomes: interval.outcomes.clone(),
        }
    }
}

impl Run {
    /// Reads a run directory.
    ///
    /// # Errors
    /// It is not a run directory, is of another version, or a file of a finished trial is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let run = read_run_file(path)?;
        let (trials, unfinished) = read_trials(&path.join(TRIALS))?;
        Ok(Self {
            path: path.to_owned(),
            run_id: run.run,
            complete: path.join(COMPLETE).is_file(),
            started_at: run.started_at,
            plan: read_plan(&path.join(PLAN))?,
            environment: read_json(&path.join(ENVIRONMENT))?,
            trials,
            unfinished,
        })
    }

    /// Trials the plan asks for.
    pub fn planned(&self) -> usize {
        self.plan.design.order.iter().map(Vec::len).sum()
    }

    /// The server's log of a trial.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn server_log(&self, trial: u32) -> Result<String> {
        let path = self.path.join(TRIALS).join(format!("t{trial:04}")).join(SERVER_LOG);
        fs::read_to_string(&path).map_err(|error| failed("read", &path, error))
    }
}

fn read_run_file(path: &Path) -> Result<RunFile> {
    #[derive(Deserialize)]
    struct Version {
        run_version: u32,
    }
    let file = path.join(RUN);
    if !file.is_file() {
        return Err(Error::store(format!("`{}` is not a run directory", path.display()))
            .hint(format!("name a directory that holds `{RUN}`, as `bedplate run` makes them")));
    }
    let version = read_json::<Version>(&file)?.run_version;
    if version != RUN_VERSION {
        return Err(Error::store(format!(
            "`{}` is a run directory of version {version}, this is version {RUN_VERSION}",
            path.display(),
        ))
        .hint("read it with the release of bedplate that wrote it"));
    }
    read_json(&file)
}

fn read_plan(path: &Path) -> Result<Plan> {
    #[derive(Deserialize)]
    struct Version {
        plan_version: u32,
    }
    let version = read_json::<Version>(path)?.plan_version;
    if version != PLAN_VERSION {
        return Err(Error::store(format!(
            "`{}` is a plan of version {version}, this is version {PLAN_VERSION}",
            path.display(),
        ))
        .hint("read it with the release of bedplate that wrote it"));
    }
    read_json(path)
}

/// The finished trials, and the numbers of the others.
fn read_trials(path: &Path) -> Result<(Vec<Trial>, Vec<u32>)> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed("read", path, error))? {
        let name = entry.map_err(|error| failed("read", path, error))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('t')?.parse::<u32>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    let (mut trials, mut unfinished) = (Vec::new(), Vec::new());
    for number in numbers {
        let directory = path.join(format!("t{number:04}"));
        if directory.join(RECORD).is_file() {
            trials.push(read_trial(&directory)?);
        } else {
            unfinished.push(number);
        }
    }
    Ok((trials, unfinished))
}

fn read_trial(path: &Path) -> Result<Trial> {
    let mut record: TrialRecord = read_json(&path.join(RECORD))?;
    let mut measured = Totals::default();
    let mut intervals = Vec::new();
    let mut service_times = vec![None; record.instances.len()];
    let mut open: Option<OpenTimes> = None;
    // The instances of a second follow each other in the order of their numbers.
    let mut second: Option<(u32, Interval)> = None;
    let file = path.join(INTERVALS);
    read_lines(&file, |line: IntervalLine| {
        let interval = line.interval()?;
        measured.add(&interval);
        if interval.phase == Phase::Measure
            && let Some(merged) = service_times.get_mut(interval.instance as usize)
        {
            merge(merged, &interval.service_time_ns)?;
            match (&mut open, &interval.open) {
                (Some(open), Some(of_interval)) => open.merge(of_interval).map_err(unlike)?,
                (open, of_interval) => *open = of_interval.clone(),
            }
        }
        match &mut second {
            Some((last, second))
                if interval.instance > *last && interval.start_s == second.start_s =>
            {
                *last = interval.instance;
                second.merge(&interval).map_err(unlike)
            }
            second => {
                let before = second.replace((interval.instance, interval));
                intervals.extend(before.map(|(_, interval)| IntervalRow::of(&interval)));
                Ok(())
            }
        }
    })?;
    intervals.extend(second.map(|(_, interval)| IntervalRow::of(&interval)));
    check_totals(&mut record, &measured);
    let mut metrics = Vec::new();
    read_lines(&path.join(METRICS), |sample| {
        metrics.push(sample);
        Ok(())
    })?;
    let mut merged = None;
    for of_instance in service_times.iter().flatten() {
        merge(&mut merged, of_instance).map_err(|error| failed("read", &file, error))?;
    }
    Ok(Trial {
        record,
        intervals,
        service_time_ns: merged.unwrap_or_else(bedplate_core::load::histogram),
        open,
        instance_service_time_ns: service_times
            .into_iter()
            .map(|of_instance| of_instance.unwrap_or_else(bedplate_core::load::histogram))
            .collect(),
        metrics,
    })
}

fn merge(
    merged: &mut Option<Histogram<u64>>,
    histogram: &Histogram<u64>,
) -> std::result::Result<(), String> {
    match merged {
        None => {
            let mut first = histogram.clone();
            first.auto(true);
            *merged = Some(first);
            Ok(())
        }
        Some(merged) => merged.add(histogram).map_err(unlike),
    }
}

fn unlike(error: hdrhistogram::errors::AdditionError) -> String {
    format!("histograms cannot be merged: {error}")
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(|error| failed("read", path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| failed("understand", path, error))
}

/// Hands each line of a finished trial's file on.
fn read_lines<T: DeserializeOwned>(
    path: &Path,
    mut each: impl FnMut(T) -> std::result::Result<(), String>,
) -> Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::store(format!("`{}` is missing", path.display())));
        }
        opened => opened.map_err(|error| failed("read", path, error))?,
    };
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| failed("read", path, error))?;
        serde_json::from_str(&line)
            .map_err(|error| error.to_string())
            .and_then(&mut each)
            .map_err(|error| {
                Error::store(format!("`{}`, line {}: {error}", path.display(), number + 1))
            })?;
    }
    Ok(())
}
