//! What a trial leaves behind, as plain values; the results crate turns them into tables.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use hdrhistogram::errors::AdditionError;
use serde::{Deserialize, Serialize};

use crate::durability::Durability;
use crate::load::histogram;
use crate::probe::Probe;
use crate::sampler::DeviceCounts;

/// One measured execution of one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialId {
    /// Identifier of the run, as in its directory's name.
    pub run: String,
    /// Number of the trial within the run, from 0 in order of execution.
    pub trial: u32,
    /// Block it belongs to, from 0.
    pub block: u32,
    /// Index of the cell in the plan.
    pub cell: usize,
}

impl TrialId {
    /// Short name, usable in file, container and volume names: `bedplate-RUN-t0007`.
    pub fn resource_name(&self) -> String {
        format!("bedplate-{}-t{:04}", self.run, self.trial)
    }
}

/// Phases of a trial, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Making the volume.
    Volume,
    /// Filling it with files, where it is to be aged.
    Age,
    /// Measuring what it takes to write to it and to read from it.
    Probe,
    /// Starting the server.
    Server,
    /// Filling the database.
    Load,
    /// Checkpoint and an idle device.
    Settle,
    /// Load that is not counted.
    Warmup,
    /// Load that is counted.
    Measure,
    /// Invariants, and what the server says.
    Verify,
    /// Stopping the server, and undoing all that was made.
    Teardown,
}

/// What ageing a volume left on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aged {
    /// Files that are there.
    pub files: u64,
    /// Bytes that were written, those of files that were deleted again among them.
    pub written_bytes: u64,
    /// What files take then, as the file system counts it, in bytes.
    pub used_bytes: u64,
    /// Size of the file system in bytes.
    pub bytes: u64,
}

/// Whether a trial's numbers may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustLevel {
    /// Nothing speaks against them.
    Sound,
    /// They may be used by someone who has read the reasons.
    Caveat,
    /// They may not be used.
    Void,
}

/// A trust level with its reasons (empty when sound).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// The level.
    pub level: TrustLevel,
    /// One plain sentence each.
    pub reasons: Vec<String>,
}

impl Trust {
    /// Sound, with no reasons.
    pub fn sound() -> Self {
        Self { level: TrustLevel::Sound, reasons: Vec::new() }
    }

    /// Lowers the level to at least `level` and adds the reason. The one that made the level what it
    /// is comes first, as where there is room for one reason the first is shown.
    pub fn lower(&mut self, level: TrustLevel, reason: impl Into<String>) {
        let at = if level > self.level { 0 } else { self.reasons.len() };
        self.level = self.level.max(level);
        self.reasons.insert(at, reason.into());
    }
}

/// Counts of what became of transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Transactions committed.
    pub committed: u64,
    /// Tries that failed and were repeated with the same values.
    pub retried: u64,
    /// Transactions failed for good, by SQLSTATE.
    pub failed: BTreeMap<String, u64>,
}

impl Outcomes {
    /// Failed transactions of every SQLSTATE.
    pub fn failed_total(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Adds another count to this one.
    pub fn merge(&mut self, other: &Self) {
        self.committed += other.committed;
        self.retried += other.retried;
        for (sqlstate, count) in &other.failed {
            *self.failed.entry(sqlstate.clone()).or_default() += count;
        }
    }
}

/// One second of one instance in a trial, of all its threads together.
///
/// The last interval of a phase may be shorter than a second; `length_s` says so.
#[derive(Debug, Clone)]
pub struct Interval {
    /// Number of the instance, from 0.
    pub instance: u32,
    /// [`Phase::Warmup`] or [`Phase::Measure`].
    pub phase: Phase,
    /// Seconds from the start of the load (warm-up included) to the start of this interval.
    pub start_s: f64,
    /// Length in seconds.
    pub length_s: f64,
    /// Outcomes of transactions that ended in this interval.
    pub outcomes: Outcomes,
    /// Clients that were connected at the end of the interval.
    pub live_clients: u32,
    /// Service times in nanoseconds of the committed transactions that ended in this interval.
    pub service_time_ns: Histogram<u64>,
    /// Their times from when they were to start; none in a closed loop.
    pub open: Option<OpenTimes>,
}

/// What an open loop knows beside service times: when each transaction was to start.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTimes {
    /// Nanoseconds from when a transaction was to start until it ended.
    pub response_time_ns: Histogram<u64>,
    /// Nanoseconds from when it was to start until it started.
    pub lag_ns: Histogram<u64>,
}

impl OpenTimes {
    /// Without a value.
    pub fn empty() -> Self {
        Self { response_time_ns: histogram(), lag_ns: histogram() }
    }

    /// Adds the times of others.
    ///
    /// # Errors
    /// The histograms have different bounds.
    pub fn merge(&mut self, other: &Self) -> Result<(), AdditionError> {
        self.response_time_ns.add(&other.response_time_ns)?;
        self.lag_ns.add(&other.lag_ns)
    }
}

impl Interval {
    /// Adds another instance's interval of the same second, or another thread's of the same instance.
    ///
    /// # Errors
    /// The histograms have different bounds.
    pub fn merge(&mut self, other: &Self) -> Result<(), AdditionError> {
        self.length_s = self.length_s.max(other.length_s);
        self.outcomes.merge(&other.outcomes);
        self.live_clients += other.live_clients;
        if let (Some(open), Some(of_other)) = (&mut self.open, &other.open) {
            open.merge(of_other)?;
        }
        self.service_time_ns.add(&other.service_time_ns)
    }
}

/// One reading of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// Seconds from the start of the load.
    pub at_s: f64,
    /// Name, ending in its unit: `host_cpu_user_cpus`.
    pub metric: String,
    /// The reading.
    pub value: f64,
}

/// What the server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// `version()` in full.
    pub version_full: String,
    /// `server_version` (`13.23`, say).
    pub version: String,
    /// Every row of `pg_settings`: name to canonical value.
    pub settings: BTreeMap<String, String>,
    /// Image reference, image id and repository digest, binaries' directory: what was started.
    pub provenance: BTreeMap<String, String>,
    /// Data directory's mount as the server itself sees it (see [`MountFacts`]); absent when the
    /// server's namespace cannot be looked into (provision `url`).
    pub data_mount: Option<MountFacts>,
}

/// One line of a `mountinfo` file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFacts {
    /// Where it is mounted.
    pub mount_point: String,
    /// Type of file system.
    pub fs_type: String,
    /// Source, `/dev/loop3` say.
    pub source: String,
    /// Options of the mount and of the super block, in the order of the kernel.
    pub options: Vec<String>,
}

/// What is known of a volume, read back from the live thing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFacts {
    /// Name to value: `mkfs_version`, `mkfs_command`, `image_bytes`, `image_allocated_bytes`,
    /// `loop_device`, `loop_direct_io`, `loop_write_cache`, `loop_scheduler`, `block_size_bytes`,
    /// `backing_fs_type`, `backing_mount_options`.
    pub facts: BTreeMap<String, String>,
    /// What speaks against trusting the volume's numbers, one sentence each.
    pub caveats: Vec<String>,
}

/// Everything about one trial but its intervals and metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Which trial.
    pub id: TrialId,
    /// Label of its cell.
    pub cell_label: String,
    /// Wall-clock start, RFC 3339 in UTC.
    pub started_at: String,
    /// Seconds spent in each phase, in order; what is undone after the trial is a second teardown.
    pub phase_s: Vec<(Phase, f64)>,
    /// Whether the numbers may be used.
    pub trust: Trust,
    /// What each instance of the workload did; empty when none was started.
    pub instances: Vec<InstanceRecord>,
    /// Clients that lost their connection or could not make one.
    pub clients_lost: u32,
    /// CPU time of the load threads within the window in seconds (user and system).
    pub client_cpu_s: f64,
    /// Seconds from the first connection attempt until all clients were connected.
    pub connect_s: f64,
    /// For each iteration, seconds from the first connection attempt until every client had done its
    /// program and the last connection was closed: the window that mysqlslap times.
    pub connected_windows_s: Vec<f64>,
    /// Size of the database after loading in bytes, of all instances together.
    pub database_bytes: u64,
    /// What files take on the volume after loading, as its file system counts it, in bytes; absent where
    /// that cannot be seen.
    pub volume_used_bytes: Option<u64>,
    /// What gzip leaves of the loaded tables, as a share of their size; absent where they cannot be read.
    pub compressed_share: Option<f64>,
    /// Share of the volume's files that was in the kernel's page cache when the load started; absent where
    /// that cannot be seen.
    pub cached_share: Option<f64>,
    /// Whether more transactions were to start than the server could serve; absent in a closed loop.
    pub overloaded: Option<bool>,
    /// What the server says of itself.
    pub server: ServerFacts,
    /// What is known of the volume.
    pub volume: VolumeFacts,
    /// What its ageing left; absent where it was fresh.
    pub aged: Option<Aged>,
    /// What writing to it and reading from it took, before anything was there; absent for the storage of
    /// a server that exists already.
    pub probe: Option<Probe>,
    /// What the volume's devices did from the start of the load until its end, iterations together;
    /// absent when they cannot be seen.
    pub devices: Option<DeviceWork>,
    /// What the server did in that time by its own counts; absent when it was not asked.
    pub server_work: Option<ServerWork>,
    /// Commits of the whole load that wrote something; absent when that is not known.
    pub writing_commits: Option<u64>,
    /// What flushes say of commits.
    pub durability: Durability,
    /// Name and version of the client side: wire and transport.
    pub driver: String,
    /// The error that ended a void trial early.
    pub error: Option<String>,
    /// Warnings and worse that the kernel logged during a void trial, of the whole machine.
    pub kernel_messages: Vec<String>,
}

/// What block devices did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWork {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Completed flushes of the volume, as [`crate::sampler::DeviceCounts`] has them.
    pub flushes: u64,
}

impl DeviceWork {
    /// Adds what was done between two readings.
    pub(crate) fn add(&mut self, before: DeviceCounts, after: DeviceCounts) {
        self.read_bytes += after.read_bytes.saturating_sub(before.read_bytes);
        self.written_bytes += after.written_bytes.saturating_sub(before.written_bytes);
        self.flushes += after.flushes.saturating_sub(before.flushes);
    }
}

/// What a server did, as far as it tells; of all its databases, but blocks of the load's alone where it
/// keeps databases apart (PostgreSQL).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerWork {
    /// Bytes of write-ahead log (InnoDB: redo log) written.
    pub wal_bytes: Option<u64>,
    /// Blocks that were found in the server's own cache.
    pub blocks_hit: Option<u64>,
    /// Blocks that were not, and were read.
    pub blocks_read: Option<u64>,
    /// CPU time of all its processes in seconds.
    pub cpu_s: Option<f64>,
}

impl ServerWork {
    /// Adds what was done in another load; what either did not tell is not known of both.
    pub(crate) fn add(&mut self, other: Self) {
        fn sum<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
            Some(one? + other?)
        }
        *self = Self {
            wal_bytes: sum(self.wal_bytes, other.wal_bytes),
            blocks_hit: sum(self.blocks_hit, other.blocks_hit),
            blocks_read: sum(self.blocks_read, other.blocks_read),
            cpu_s: sum(self.cpu_s, other.cpu_s),
        };
    }
}

/// What one instance of the workload did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Seconds from the start of the load until all its threads had started their first transaction.
    pub started_s: f64,
    /// Length of its measured window in seconds.
    pub window_s: f64,
    /// Outcomes within the measured window.
    pub outcomes: Outcomes,
    /// Committed transactions of the whole load, warm-up and the last unfinished ones included.
    pub committed_all: u64,
    /// Committed transactions within the window as the clients counted them, to be compared with
    /// what the intervals add up to.
    pub counted_by_clients: u64,
    /// Transactions that were to start within the window; 0 in a closed loop.
    pub scheduled: u64,
}

impl InstanceRecord {
    /// Committed transactions per second of the measured window; absent when that is empty.
    fn tps(&self) -> Option<f64> {
        (self.window_s > 0.0).then(|| self.outcomes.committed as f64 / self.window_s)
    }
}

impl TrialRecord {
    /// Outcomes within the measured window, of all instances together.
    pub fn outcomes(&self) -> Outcomes {
        let mut outcomes = Outcomes::default();
        self.instances.iter().for_each(|instance| outcomes.merge(&instance.outcomes));
        outcomes
    }

    /// Length of the longest measured window in seconds.
    pub fn window_s(&self) -> f64 {
        self.instances.iter().map(|instance| instance.window_s).fold(0.0, f64::max)
    }

    /// Committed transactions per second of each instance, each over its own measured window; absent
    /// for a void trial or an empty window, so that no plain number comes of either.
    pub fn instance_tps(&self) -> Option<Vec<f64>> {
        if self.trust.level == TrustLevel::Void || self.instances.is_empty() {
            return None;
        }
        self.instances.iter().map(InstanceRecord::tps).collect()
    }

    /// Committed transactions per second: the sum over the instances. Absent like its parts.
    pub fn tps(&self) -> Option<f64> {
        self.instance_tps().map(|parts| parts.iter().sum())
    }
}

/// Facts of machine and software, before and after a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name to value: `bedplate_version`, `bedplate_build`, `kernel`, `cpu_model`, `cpus`,
    /// `memory_bytes`, `clocksource`, `cpu_governor`, `docker_version`, `work_dir_fs_type`, ….
    /// What cannot be seen here is the word `unknown`, never left out.
    pub facts: BTreeMap<String, String>,
}
