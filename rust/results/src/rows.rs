//! The numbers of a trial, each computed here and nowhere else.

use std::collections::BTreeMap;

use bedplate_core::check;
use bedplate_core::durability::Durability;
use bedplate_core::plan::{Arrivals, Cell, EngineKind, WorkloadKind};
use bedplate_core::probe::READ_BYTES;
use bedplate_core::record::{Phase, TrialRecord, TrustLevel};
use bedplate_core::{Error, Result};
use hdrhistogram::Histogram;

use crate::read::{Run, Trial};

/// Times of a set of transactions in milliseconds: mean, maximum, and quantiles by nearest rank.
///
/// A quantile q of n values is there only when n·(1 − q) is at least 10: fewer values beyond it say
/// nothing about it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quantiles {
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90 % quantile.
    pub p90: Option<f64>,
    /// 95 % quantile.
    pub p95: Option<f64>,
    /// 99 % quantile.
    pub p99: Option<f64>,
    /// 99.9 % quantile.
    pub p999: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
}

impl Quantiles {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram_ns: &Histogram<u64>) -> Self {
        if histogram_ns.is_empty() {
            return Self::default();
        }
        let [p50, p90, p95, p99, p999] = nearest_ranks(histogram_ns, [500, 900, 950, 990, 999]);
        Self {
            mean: Some(histogram_ns.mean() / 1e6),
            p50,
            p90,
            p95,
            p99,
            p999,
            max: Some(ms(histogram_ns.max())),
        }
    }
}

/// The values at rising quantiles, given in thousandths so that ranks are exact.
fn nearest_ranks<const N: usize>(
    histogram_ns: &Histogram<u64>,
    quantiles_per_mille: [u64; N],
) -> [Option<f64>; N] {
    let total = histogram_ns.len();
    let mut found = [None; N];
    let mut next = 0;
    let mut below = 0;
    for recorded in histogram_ns.iter_recorded() {
        below += recorded.count_at_value();
        while next < N && below * 1000 >= total * quantiles_per_mille[next] {
            if total * (1000 - quantiles_per_mille[next]) >= 10 * 1000 {
                found[next] = Some(ms(recorded.value_iterated_to()));
            }
            next += 1;
        }
    }
    found
}

/// Nanoseconds in milliseconds.
pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// One trial as a row: what the table `trials` holds, and what the command line shows.
///
/// The fields are the columns of [`crate::columns::TRIALS`], where their meanings are.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the columns table holds each field's meaning, once")]
pub struct TrialRow {
    pub run: String,
    pub trial: u32,
    pub block: u32,
    pub cell: String,
    pub levels: BTreeMap<String, String>,
    pub workload: &'static str,
    pub scale: Option<u32>,
    pub instances: u32,
    pub clients: u32,
    pub threads: u32,
    pub protocol: &'static str,
    pub cache: &'static str,
    pub engine_kind: EngineKind,
    pub engine_version: Option<String>,
    pub driver: String,
    pub version_asked: String,
    pub trust: TrustLevel,
    pub trust_reasons: Vec<String>,
    pub tps: Option<f64>,
    pub queries_per_second: Option<f64>,
    pub pts_queries_per_second: Option<f64>,
    pub committed: u64,
    pub retried: u64,
    pub failed: u64,
    pub failed_by_sqlstate: BTreeMap<String, u64>,
    pub clients_lost: u32,
    pub window_s: f64,
    pub service_time_ms: Quantiles,
    pub arrivals: Option<Arrivals>,
    pub scheduled: Option<u64>,
    pub overloaded: Option<bool>,
    pub response_time_ms: Quantiles,
    pub lag_ms: Quantiles,
    pub client_cpu_us_per_transaction: Option<f64>,
    pub connect_s: Option<f64>,
    pub load_s: Option<f64>,
    pub database_bytes: Option<u64>,
    pub volume_used_bytes: Option<u64>,
    pub compressed_share: Option<f64>,
    pub cached_share: Option<f64>,
    pub settings_profile: &'static str,
    pub page_bytes: Option<u64>,
    pub fsync: Option<String>,
    pub synchronous_commit: Option<String>,
    pub full_page_writes: Option<String>,
    pub fs_type: Option<String>,
    pub mount_options: Option<String>,
    pub mkfs_command: Option<String>,
    pub loop_direct_io: Option<String>,
    pub storage_line: String,
    pub sync_us_p50: Option<f64>,
    pub sync_us_p95: Option<f64>,
    pub cold_read_bytes_per_s: Option<f64>,
    pub durability: Durability,
    pub writing_commits: Option<u64>,
    pub device_flushes: Option<u64>,
    pub device_read_bytes: Option<u64>,
    pub device_written_bytes: Option<u64>,
    pub device_written_bytes_per_commit: Option<f64>,
    pub device_flushes_per_commit: Option<f64>,
    pub wal_bytes: Option<u64>,
    pub wal_bytes_per_commit: Option<f64>,
    pub cache_hit_ratio: Option<f64>,
    pub server_cpu_us_per_transaction: Option<f64>,
    pub volume_s: Option<f64>,
    pub age_s: Option<f64>,
    pub probe_s: Option<f64>,
    pub server_s: Option<f64>,
    pub settle_s: Option<f64>,
    pub verify_s: Option<f64>,
    pub teardown_s: Option<f64>,
    pub image: Option<String>,
    pub started_at: String,
    pub error: Option<String>,
}

impl TrialRow {
    /// Name of the storage's level.
    pub fn storage(&self) -> &str {
        self.levels.get("storage").map_or("", String::as_str)
    }

    /// Name of the engine's level.
    pub fn engine(&self) -> &str {
        self.levels.get("engine").map_or("", String::as_str)
    }
}

/// The finished trials of a run as rows, in order of execution.
///
/// # Errors
/// A record names a cell that the plan does not have.
pub fn trial_rows(run: &Run) -> Result<Vec<TrialRow>> {
    run.trials.iter().map(|trial| trial_row(run, trial)).collect()
}

fn trial_row(run: &Run, trial: &Trial) -> Result<TrialRow> {
    let record = &trial.record;
    let cell = run.plan.cells.get(record.id.cell).ok_or_else(|| {
        Error::store(format!(
            "trial {} of `{}` is of cell {}, which its plan does not have",
            record.id.trial,
            run.path.display(),
            record.id.cell,
        ))
    })?;
    let usable = record.trust.level != TrustLevel::Void;
    // In a queue that grows, times tell only how long the load went on.
    let open = trial.open.as_ref().filter(|_| usable && record.overloaded == Some(false));
    let outcomes = record.outcomes();
    let slap = cell.workload.work.kind() == WorkloadKind::Slap;
    let setting = |name| record.server.settings.get(name).cloned();
    let fact = |name| record.volume.facts.get(name).cloned();
    let mount = record.server.data_mount.as_ref();
    let work = record.server_work.unwrap_or_default();
    let committed_all: u64 = record.instances.iter().map(|instance| instance.committed_all).sum();
    let writing_commits = record.writing_commits.filter(|commits| usable && *commits > 0);
    let per_commit = |amount: Option<u64>| {
        amount.zip(writing_commits).map(|(amount, commits)| amount as f64 / commits as f64)
    };
    Ok(TrialRow {
        run: run.run_id.clone(),
        trial: record.id.trial,
        block: record.id.block,
        cell: record.cell_label.clone(),
        levels: levels(cell),
        workload: cell.workload.work.kind().word(),
        scale: cell.workload.work.scale(),
        instances: cell.workload.instances,
        clients: cell.workload.clients,
        threads: cell.workload.threads,
        protocol: cell.workload.protocol.word(),
        cache: cell.workload.cache.word(),
        engine_kind: cell.engine.kind,
        engine_version: Some(record.server.version.clone()).filter(|version| !version.is_empty()),
        driver: record.driver.clone(),
        version_asked: cell.engine.version.clone(),
        trust: record.trust.level,
        trust_reasons: record.trust.reasons.clone(),
        tps: record.tps(),
        queries_per_second: record.tps().filter(|_| slap),
        pts_queries_per_second: (usable && slap).then(|| pts_queries_per_second(record)).flatten(),
        committed: outcomes.committed,
        retried: outcomes.retried,
        failed: outcomes.failed_total(),
        clients_lost: record.clients_lost,
        window_s: record.window_s(),
        service_time_ms: if usable {
            Quantiles::of(&trial.service_time_ns)
        } else {
            Quantiles::default()
        },
        arrivals: cell.workload.arrivals,
        scheduled: cell
            .workload
            .arrivals
            .map(|_| record.instances.iter().map(|instance| instance.scheduled).sum()),
        overloaded: record.overloaded,
        response_time_ms: open
            .map(|open| Quantiles::of(&open.response_time_ns))
            .unwrap_or_default(),
        lag_ms: open.map(|open| Quantiles::of(&open.lag_ns)).unwrap_or_default(),
        client_cpu_us_per_transaction: (usable && outcomes.committed > 0)
            .then(|| record.client_cpu_s * 1e6 / outcomes.committed as f64),
        failed_by_sqlstate: outcomes.failed,
        connect_s: seconds_in(record, Phase::Measure).map(|_| record.connect_s),
        load_s: seconds_in(record, Phase::Load),
        database_bytes: Some(record.database_bytes).filter(|&bytes| bytes > 0),
        volume_used_bytes: record.volume_used_bytes,
        compressed_share: record.compressed_share,
        cached_share: record.cached_share,
        settings_profile: cell.engine.settings_profile.word(),
        page_bytes: check::page_bytes(cell.engine.kind, &record.server),
        fsync: setting("fsync"),
        synchronous_commit: setting("synchronous_commit"),
        full_page_writes: setting("full_page_writes"),
        fs_type: mount.map(|mount| mount.fs_type.clone()),
        mount_options: mount.map(|mount| mount.options.join(",")),
        mkfs_command: fact("mkfs_command"),
        loop_direct_io: fact("loop_direct_io"),
        storage_line: storage_line(record),
        sync_us_p50: record.probe.map(|probe| probe.sync_us.p50),
        sync_us_p95: record.probe.map(|probe| probe.sync_us.p95),
        cold_read_bytes_per_s: record
            .probe
            .filter(|probe| probe.cold_read_s > 0.0)
            .map(|probe| READ_BYTES as f64 / probe.cold_read_s),
        durability: record.durability,
        writing_commits: record.writing_commits,
        device_flushes: record.devices.map(|devices| devices.flushes),
        device_read_bytes: record.devices.map(|devices| devices.read_bytes),
        device_written_bytes: record.devices.map(|devices| devices.written_bytes),
        device_written_bytes_per_commit: per_commit(
            record.devices.map(|devices| devices.written_bytes),
        ),
        device_flushes_per_commit: per_commit(record.devices.map(|devices| devices.flushes)),
        wal_bytes: work.wal_bytes,
        wal_bytes_per_commit: per_commit(work.wal_bytes),
        cache_hit_ratio: work
            .blocks_hit
            .zip(work.blocks_read)
            .filter(|(hit, read)| usable && hit + read > 0)
            .map(|(hit, read)| hit as f64 / (hit + read) as f64),
        server_cpu_us_per_transaction: work
            .cpu_s
            .filter(|_| usable && committed_all > 0)
            .map(|seconds| seconds * 1e6 / committed_all as f64),
        volume_s: seconds_in(record, Phase::Volume),
        age_s: seconds_in(record, Phase::Age),
        probe_s: seconds_in(record, Phase::Probe),
        server_s: seconds_in(record, Phase::Server),
        settle_s: seconds_in(record, Phase::Settle),
        verify_s: seconds_in(record, Phase::Verify),
        teardown_s: seconds_in(record, Phase::Teardown),
        image: record.server.provenance.get("image").cloned(),
        started_at: record.started_at.clone(),
        error: record.error.clone(),
    })
}

/// One instance of the workload in one trial as a row of the table `instances`.
///
/// The fields are the columns of [`crate::columns::INSTANCES`], where their meanings are.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the columns table holds each field's meaning, once")]
pub struct InstanceRow {
    pub trial: u32,
    pub instance: u32,
    pub tps: Option<f64>,
    pub committed: u64,
    pub retried: u64,
    pub failed: u64,
    pub started_s: f64,
    pub window_s: f64,
    pub service_time_ms: Quantiles,
}

/// The instances of the finished trials of a run as rows, in order of execution.
pub fn instance_rows(run: &Run) -> Vec<InstanceRow> {
    run.trials.iter().flat_map(instances_of).collect()
}

fn instances_of(trial: &Trial) -> impl Iterator<Item = InstanceRow> {
    let record = &trial.record;
    let usable = record.trust.level != TrustLevel::Void;
    let tps = record.instance_tps();
    let parts = record.instances.iter().zip(&trial.instance_service_time_ns);
    (0..).zip(parts).map(move |(number, (instance, service_time_ns))| InstanceRow {
        trial: record.id.trial,
        instance: number,
        tps: tps.as_ref().and_then(|parts| parts.get(number as usize).copied()),
        committed: instance.outcomes.committed,
        retried: instance.outcomes.retried,
        failed: instance.outcomes.failed_total(),
        started_s: instance.started_s,
        window_s: instance.window_s,
        service_time_ms: if usable { Quantiles::of(service_time_ns) } else { Quantiles::default() },
    })
}

/// What Phoronix prints for mysqlslap: 1000 over the average seconds of an iteration, connecting and
/// closing included. With 1000 queries for each client that is queries per second of one client, so
/// it falls as clients are added; it is here to be compared with published numbers.
fn pts_queries_per_second(record: &TrialRecord) -> Option<f64> {
    let windows = &record.connected_windows_s;
    let average_s = windows.iter().sum::<f64>() / windows.len() as f64;
    (average_s > 0.0).then_some(1000.0 / average_s)
}

/// The cell's levels, with engine and storage always among them.
fn levels(cell: &Cell) -> BTreeMap<String, String> {
    let mut levels = cell.levels.clone();
    levels.entry("engine".to_owned()).or_insert_with(|| cell.engine.label.clone());
    levels.entry("storage".to_owned()).or_insert_with(|| cell.storage.label.clone());
    levels
}

/// What the volume was, as it was read back: type, block size, layout, devices, and how long a write takes
/// to stable storage.
fn storage_line(record: &TrialRecord) -> String {
    let facts = &record.volume.facts;
    let fact = |name: &str| facts.get(name).map(String::as_str);
    let mut words: Vec<String> = fact("fs_type").map(str::to_owned).into_iter().collect();
    words.extend(fact("block_size_bytes").map(|bytes| format!("blocks of {bytes} bytes")));
    let layouts = ["data_profile", "zfs_layout", "md_level"].into_iter().filter_map(fact);
    words.extend(layouts.map(str::to_owned));
    words.extend(fact("loop_device").map(|devices| {
        let several = match devices.split_whitespace().count() {
            1 => "a loop device".to_owned(),
            count => format!("{count} loop devices"),
        };
        let direct = if fact("loop_direct_io") == Some("1") { "direct" } else { "cached" };
        let cache = fact("loop_write_cache").unwrap_or("unknown");
        let scheduler = fact("loop_scheduler").unwrap_or("unknown");
        format!("{several} ({direct}, {cache}, scheduler {scheduler})")
    }));
    words.extend(fact("device").map(|device| {
        let model = fact("device_model").unwrap_or("unknown");
        let cache = fact("device_write_cache").unwrap_or("unknown");
        let scheduler = fact("device_scheduler").unwrap_or("unknown");
        format!("{device} (model {model}, {cache}, scheduler {scheduler})")
    }));
    words.extend(fact("backing_fs_type").map(|backing| format!("over {backing}")));
    words.extend(record.aged.map(|aged| {
        let percent = aged.used_bytes as f64 / aged.bytes as f64 * 100.0;
        let times = aged.written_bytes as f64 / aged.used_bytes as f64;
        format!("aged: {percent:.0} % full, written {times:.1} times")
    }));
    let syncs = record.probe.map(|probe| probe.sync_us.p50);
    words.extend(syncs.map(|us| format!("{us:.0} µs to stable storage")));
    words.join(", ")
}

/// Seconds in a phase, in all iterations together; absent when it was not reached.
fn seconds_in(record: &TrialRecord, phase: Phase) -> Option<f64> {
    let of_phase = record.phase_s.iter().filter(|(of, _)| *of == phase);
    of_phase.map(|(_, seconds)| *seconds).reduce(|sum, seconds| sum + seconds)
}

/// A trust level in one word.
pub fn trust_name(level: TrustLevel) -> &'static str {
    match level {
        TrustLevel::Sound => "sound",
        TrustLevel::Caveat => "caveat",
        TrustLevel::Void => "void",
    }
}

/// A phase in one word.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Volume => "volume",
        Phase::Age => "age",
        Phase::Probe => "probe",
        Phase::Server => "server",
        Phase::Load => "load",
        Phase::Settle => "settle",
        Phase::Warmup => "warmup",
        Phase::Measure => "measure",
        Phase::Verify => "verify",
        Phase::Teardown => "teardown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearest rank over sorted values, the definition itself, and no code of a histogram.
    fn by_sorting(values: &[u64], per_mille: u64) -> u64 {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        let rank = (values.len() as u64 * per_mille).div_ceil(1000).max(1);
        sorted[rank as usize - 1]
    }

    #[test]
    fn quantiles_agree_with_sorting() {
        // A skewed distribution without randomness: cubes of a full period modulo a prime.
        let values: Vec<u64> =
            (1..=20_011_u64).map(|n| 50_000 + (n * n % 20_011).pow(2) * n % 7_000_000).collect();
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        values.iter().for_each(|&value| histogram.record(value).unwrap());
        let quantiles = Quantiles::of(&histogram);
        for (found, per_mille) in [
            (quantiles.p50, 500),
            (quantiles.p90, 900),
            (quantiles.p95, 950),
            (quantiles.p99, 990),
            (quantiles.p999, 999),
            (quantiles.max, 1000),
        ] {
            let exact = by_sorting(&values, per_mille) as f64 / 1e6;
            let found = found.unwrap();
            assert!((found / exact - 1.0).abs() < 1e-3, "{per_mille}: {found} and {exact}");
            assert!(found >= exact, "a bucket answers with its upper end");
        }
        let mean = values.iter().sum::<u64>() as f64 / values.len() as f64 / 1e6;
        assert!((quantiles.mean.unwrap() / mean - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_quantile_needs_ten_values_beyond_it() {
        let of = |count| {
            let mut histogram = Histogram::<u64>::new(3).unwrap();
            histogram.record_n(1_000_000, count).unwrap();
            Quantiles::of(&histogram)
        };
        assert_eq!(of(0), Quantiles::default());
        assert_eq!((of(1).p50, of(1).max.is_some(), of(1).mean.is_some()), (None, true, true));
        assert_eq!((of(19).p50, of(20).p50.is_some()), (None, true));
        assert_eq!((of(99).p90, of(100).p90.is_some()), (None, true));
        assert_eq!((of(199).p95, of(200).p95.is_some()), (None, true));
        assert_eq!((of(999).p99, of(1000).p99.is_some()), (None, true));
        assert_eq!((of(9999).p999, of(10_000).p999.is_some()), (None, true));
    }
}
