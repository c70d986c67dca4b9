//! Writing a run directory while its run goes on.

use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use bedplate_core::plan::Plan;
use bedplate_core::record::{Environment, Interval, MetricSample, TrialId, TrialRecord};
use bedplate_core::seam::RunSink;
use bedplate_core::{Error, Result};
use jiff::Timestamp;
use serde::Serialize;

use crate::frames::{frames, write_parquet};
use crate::read::Run;
use crate::stored::{
    COMPLETE, CompleteFile, ENVIRONMENT, ENVIRONMENT_AFTER, INTERVALS, IntervalLine, METRICS, PLAN,
    RECORD, RUN, RUN_VERSION, RunFile, SERVER_LOG, TRIALS, Totals, check_totals, failed,
    sync_directory, write_json, write_whole,
};

/// A run directory that this process writes; nobody else can as long as it lives.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    run_id: String,
    planned: usize,
    finished: usize,
    current: Option<CurrentTrial>,
    /// Holds the exclusive lock on the directory; the kernel releases it with the process.
    _lock: File,
}

#[derive(Debug)]
struct CurrentTrial {
    path: PathBuf,
    intervals: File,
    metrics: File,
    measured: Totals,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Every trial of the plan was executed, void ones included.
    Complete,
    /// The user or an error stopped it; what was finished stays readable.
    Stopped,
}

impl RunDirectory {
    /// Makes a fresh run directory below `parent` (made too, if it is not there), named
    /// `NAME-TIME-HEX` after the plan, the time in UTC and a random number.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn create(parent: &Path, plan: &Plan, environment: &Environment) -> Result<Self> {
        fs::create_dir_all(parent).map_err(|error| failed("create", parent, error))?;
        let now = Timestamp::now();
        let random = random_hex()?;
        let name = format!("{}-{}-{random}", file_name(&plan.name), now.strftime("%Y%m%dT%H%M%SZ"));
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|error| failed("create", &path, error))?;
        let lock = lock(&path)?;
        let trials = path.join(TRIALS);
        fs::create_dir(&trials).map_err(|error| failed("create", &trials, error))?;
        write_json(&path.join(PLAN), plan)?;
        write_json(&path.join(ENVIRONMENT), environment)?;
        let run_id = format!("{}{random}", base36(now.as_second().unsigned_abs()));
        let run = RunFile {
            run_version: RUN_VERSION,
            run: run_id.clone(),
            name: plan.name.clone(),
            plan_id: plan.plan_id(),
            started_at: now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        };
        write_json(&path.join(RUN), &run)?;
        sync_directory(parent)?;
        let planned = plan.design.order.iter().map(Vec::len).sum();
        Ok(Self { path, run_id, planned, finished: 0, current: None, _lock: lock })
    }

    /// Identifier of the run: at most 12 characters of `[a-z0-9]`, for names of resources.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stores what machine and software looked like after the run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn environment_after(&self, environment: &Environment) -> Result<()> {
        write_json(&self.path.join(ENVIRONMENT_AFTER), environment)
    }

    /// Ends the run and gives the directory free. A complete run gets its tables and then, last,
    /// its `COMPLETE` mark; a stopped one keeps what was finished and gets neither.
    ///
    /// # Errors
    /// A file cannot be written, or the run is said to be complete and is not.
    pub fn finish(self, end: RunEnd) -> Result<PathBuf> {
        if end == RunEnd::Complete {
            if self.finished != self.planned {
                return Err(Error::store(format!(
                    "only {} of {} trials are finished, so `{}` is not complete",
                    self.finished,
                    self.planned,
                    self.path.display(),
                )));
            }
            let frames = frames(&Run::open(&self.path)?)?;
            write_parquet(&self.path, frames)?;
            let complete =
                CompleteFile { trials: self.finished, ended_at: Timestamp::now().to_string() };
            write_json(&self.path.join(COMPLETE), &complete)?;
        }
        Ok(self.path)
    }
}

impl RunSink for RunDirectory {
    fn trial_started(&mut self, id: &TrialId) -> Result<()> {
        let path = self.path.join(TRIALS).join(format!("t{:04}", id.trial));
        fs::create_dir(&path).map_err(|error| failed("create", &path, error))?;
        let create = |name| {
            let file = path.join(name);
            File::create(&file).map_err(|error| failed("create", &file, error))
        };
        let (intervals, metrics) = (create(INTERVALS)?, create(METRICS)?);
        self.current = Some(CurrentTrial { path, intervals, metrics, measured: Totals::default() });
        Ok(())
    }

    fn interval(&mut self, interval: &Interval) -> Result<()> {
        let current = current(&mut self.current)?;
        let path = current.path.join(INTERVALS);
        append(&mut current.intervals, &path, [IntervalLine::of(interval)?])?;
        current.measured.add(interval);
        Ok(())
    }

    fn metrics(&mut self, samples: &[MetricSample]) -> Result<()> {
        let current = current(&mut self.current)?;
        // What is not a number is not a reading.
        let readings = samples.iter().filter(|sample| sample.value.is_finite());
        append(&mut current.metrics, &current.path.join(METRICS), readings)
    }

    fn trial_ended(&mut self, record: &TrialRecord, log: &str) -> Result<()> {
        let CurrentTrial { path, intervals, metrics, measured } =
            self.current.take().ok_or_else(no_trial)?;
        for (file, name) in [(intervals, INTERVALS), (metrics, METRICS)] {
            file.sync_all().map_err(|error| failed("write", &path.join(name), error))?;
        }
        write_whole(&path.join(SERVER_LOG), |file| {
            file.write_all(log.as_bytes()).map_err(|error| error.to_string())
        })?;
        let mut record = record.clone();
        check_totals(&mut record, &measured);
        write_json(&path.join(RECORD), &record)?;
        sync_directory(&self.path.join(TRIALS))?;
        self.finished += 1;
        Ok(())
    }
}

fn current(current: &mut Option<CurrentTrial>) -> Result<&mut CurrentTrial> {
    current.as_mut().ok_or_else(no_trial)
}

fn no_trial() -> Error {
    Error::store("no trial has been started in the run directory")
}

/// Adds one line for each value.
fn append<T: Serialize>(
    file: &mut File,
    path: &Path,
    values: impl IntoIterator<Item = T>,
) -> Result<()> {
    let mut lines = Vec::new();
    for value in values {
        serde_json::to_writer(&mut lines, &value).map_err(|error| failed("write", path, error))?;
        lines.push(b'\n');
    }
    file.write_all(&lines).map_err(|error| failed("write", path, error))
}

/// Takes the exclusive lock on a directory, or says who cannot have it.
fn lock(path: &Path) -> Result<File> {
    let directory = File::open(path).map_err(|error| failed("open", path, error))?;
    match directory.try_lock() {
        Ok(()) => Ok(directory),
        Err(TryLockError::WouldBlock) => {
            Err(Error::store(format!("another process works on `{}`", path.display()))
                .hint("wait until it has ended"))
        }
        Err(TryLockError::Error(error)) => Err(failed("lock", path, error)),
    }
}

/// The plan's name as part of a file name.
fn file_name(name: &str) -> String {
    let safe: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '-' })
        .take(80)
        .collect();
    match safe.trim_start_matches('.') {
        "" => "run".to_owned(),
        name => name.to_owned(),
    }
}

fn random_hex() -> Result<String> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 2];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| failed("read", source, error))?;
    Ok(format!("{:02x}{:02x}", bytes[0], bytes[1]))
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_holds_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).unwrap();
        let error = lock(directory.path()).unwrap_err();
        assert!(error.message.starts_with("another process works on"), "{error}");
        drop(held);
        lock(directory.path()).unwrap();
    }

    #[test]
    fn names_are_safe_in_a_path() {
        assert_eq!(file_name("postgresql on zfs"), "postgresql-on-zfs");
        assert_eq!(file_name("../../etc"), "-..-etc");
        assert_eq!(file_name(""), "run");
        assert_eq!(base36(36 * 36 + 35), "10z");
    }
}
