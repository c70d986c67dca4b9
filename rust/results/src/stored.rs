//! The forms in which things lie in a run directory, and how a file gets there whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bedplate_core::record::{Interval, OpenTimes, Outcomes, Phase, TrialRecord, TrustLevel};
use bedplate_core::{Error, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// Version of the run directory's form; a directory of another version is refused.
pub const RUN_VERSION: u32 = 1;

pub(crate) const RUN: &str = "run.json";
pub(crate) const PLAN: &str = "plan.json";
pub(crate) const ENVIRONMENT: &str = "environment.json";
pub(crate) const ENVIRONMENT_AFTER: &str = "environment_after.json";
pub(crate) const TRIALS: &str = "trials";
pub(crate) const RECORD: &str = "record.json";
pub(crate) const INTERVALS: &str = "intervals.jsonl";
pub(crate) const METRICS: &str = "metrics.jsonl";
pub(crate) const SERVER_LOG: &str = "server.log";
pub(crate) const COMPLETE: &str = "COMPLETE";

/// `run.json`: what makes a directory a run directory. Written after the plan and the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFile {
    pub(crate) run_version: u32,
    pub(crate) run: String,
    pub(crate) name: String,
    pub(crate) plan_id: String,
    pub(crate) started_at: String,
}

/// `COMPLETE`: written last.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CompleteFile {
    pub(crate) trials: usize,
    pub(crate) ended_at: String,
}

/// One line of `intervals.jsonl`. The histogram is HdrHistogram's V2 form, deflated, in base64, as
/// in an HdrHistogram interval log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IntervalLine {
    pub(crate) instance: u32,
    pub(crate) phase: Phase,
    pub(crate) start_s: f64,
    pub(crate) length_s: f64,
    pub(crate) committed: u64,
    pub(crate) retried: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) live_clients: u32,
    pub(crate) service_time_ns: String,
    /// The next two are those of an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response_time_ns: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lag_ns: Option<String>,
}

fn encode(histogram: &Histogram<u64>) -> Result<String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).map_err(|error| {
        Error::store(format!("an interval's histogram cannot be written: {error}"))
    })?;
    Ok(BASE64.encode(bytes))
}

fn decode(text: &str) -> std::result::Result<Histogram<u64>, String> {
    let bytes =
        BASE64.decode(text).map_err(|error| format!("a histogram is not base64: {error}"))?;
    Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| format!("a histogram cannot be read: {error}"))
}

impl IntervalLine {
    pub(crate) fn of(interval: &Interval) -> Result<Self> {
        let open = interval.open.as_ref();
        Ok(Self {
            instance: interval.instance,
            phase: interval.phase,
            start_s: interval.start_s,
            length_s: interval.length_s,
            committed: interval.outcomes.committed,
            retried: interval.outcomes.retried,
            failed: interval.outcomes.failed.clone(),
            live_clients: interval.live_clients,
            service_time_ns: encode(&interval.service_time_ns)?,
            response_time_ns: open.map(|open| encode(&open.response_time_ns)).transpose()?,
            lag_ns: open.map(|open| encode(&open.lag_ns)).transpose()?,
        })
    }

    /// The interval that was stored.
    ///
    /// The reason of a failure is in words that follow the name of the file.
    pub(crate) fn interval(self) -> std::result::Result<Interval, String> {
        let open = match (self.response_time_ns, self.lag_ns) {
            (Some(response_time), Some(lag)) => {
                Some(OpenTimes { response_time_ns: decode(&response_time)?, lag_ns: decode(&lag)? })
            }
            _ => None,
        };
        Ok(Interval {
            instance: self.instance,
            phase: self.phase,
            start_s: self.start_s,
            length_s: self.length_s,
            outcomes: Outcomes {
                committed: self.committed,
                retried: self.retried,
                failed: self.failed,
            },
            live_clients: self.live_clients,
            service_time_ns: decode(&self.service_time_ns)?,
            open,
        })
    }
}

/// What the measured intervals of a trial add up to, instance by instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals(pub BTreeMap<u32, InstanceTotals>);

/// What the measured intervals of an instance add up to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceTotals {
    /// Outcomes of all measured intervals.
    pub outcomes: Outcomes,
    /// Values in the service-time histograms of all measured intervals.
    pub service_times: u64,
}

impl Totals {
    /// Counts an interval, if it is a measured one.
    pub fn add(&mut self, interval: &Interval) {
        if interval.phase == Phase::Measure {
            let totals = self.0.entry(interval.instance).or_default();
            totals.outcomes.merge(&interval.outcomes);
            totals.service_times += interval.service_time_ns.len();
        }
    }
}

/// Makes a trial void when its measured intervals do not add up to what its record says.
///
/// A trial that is void already may have ended anywhere, so it is left as it is.
pub fn check_totals(record: &mut TrialRecord, measured: &Totals) {
    if record.trust.level == TrustLevel::Void {
        return;
    }
    for (number, instance) in (0..).zip(&record.instances) {
        let InstanceTotals { outcomes, service_times } =
            measured.0.get(&number).cloned().unwrap_or_default();
        let recorded = &instance.outcomes;
        if outcomes != *recorded {
            let reason = format!(
                "the measured intervals add up to {} committed and {} failed transactions, the \
                 record says {} and {}",
                outcomes.committed,
                outcomes.failed_total(),
                recorded.committed,
                recorded.failed_total(),
            );
            record.trust.lower(TrustLevel::Void, reason);
        }
        if service_times != recorded.committed {
            let reason = format!(
                "the measured intervals hold {service_times} service times of {} committed \
                 transactions",
                recorded.committed,
            );
            record.trust.lower(TrustLevel::Void, reason);
        }
    }
}

/// `doing` something with `path` failed.
pub(crate) fn failed(doing: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    Error::store(format!("cannot {doing} `{}`: {error}", path.display()))
}

/// Writes a file under a temporary name, to the disk, and renames it: it is there whole or not at
/// all, also after a crash.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".part");
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary).map_err(|error| failed("create", &temporary, error))?;
    write(&mut file).map_err(|error| failed("write", &temporary, error))?;
    file.sync_all().map_err(|error| failed("write", &temporary, error))?;
    fs::rename(&temporary, path).map_err(|error| failed("rename to", path, error))?;
    if let Some(parent) = path.parent() {
        sync_directory(parent)?;
    }
    Ok(())
}

/// Writes a value as indented JSON by [`write_whole`].
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut bytes =
        serde_json::to_vec_pretty(value).map_err(|error| failed("write", path, error))?;
    bytes.push(b'\n');
    write_whole(path, |file| file.write_all(&bytes).map_err(|error| error.to_string()))
}

/// Brings the names in a directory to the disk.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed("write", path, error))
}
