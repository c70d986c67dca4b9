//! A run directory from creation to tables, with synthetic trials.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bedplate_core::durability::Durability;
use bedplate_core::plan::{
    CacheState, Cell, Design, Devices, EngineKind, EnginePlan, FileSystem, Initdb, Layout,
    LoopVolume, PLAN_VERSION, Plan, Profile, Provision, QueryProtocol, RunLength, Scaled,
    SettingsProfile, SiteKind, StorageKind, StoragePlan, TlsMode, TransportKind, UnavailableCell,
    Work, WorkloadPlan,
};
use bedplate_core::probe::{Probe, Seen, Syncs};
use bedplate_core::record::{
    Aged, DeviceWork, Environment, InstanceRecord, Interval, MetricSample, MountFacts, OpenTimes,
    Outcomes, Phase, ServerFacts, ServerWork, TrialId, TrialRecord, Trust, TrustLevel, VolumeFacts,
};
use bedplate_core::seam::RunSink as _;
use hdrhistogram::Histogram;
use polars::prelude::{ParquetReader, SerReader as _};
use polars_arrow::ffi::ArrowArrayStreamReader;

use crate::stored::{COMPLETE, INTERVALS, InstanceTotals, PLAN, RECORD, RUN, TRIALS};
use crate::{
    Frames, Run, RunDirectory, RunEnd, Totals, arrow_stream, check_totals, columns, frames,
    instance_rows, trial_rows,
};

const SECONDS: u64 = 3;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn cell(storage: &str) -> Cell {
    let volume = LoopVolume {
        file_system: if storage == "ext4" { FileSystem::Ext4 } else { FileSystem::Xfs },
        devices: Devices::new(2 << 30, Layout::Single, 1),
        block_size_bytes: 4096,
        nodatacow: false,
        mkfs_options: Vec::new(),
        mount_options: vec!["noatime".to_owned()],
    };
    Cell {
        label: format!("{storage}/fillfactor=90"),
        levels: map(&[("engine", "postgres 13"), ("storage", storage), ("fillfactor", "90")]),
        engine: EnginePlan {
            label: "postgres 13".to_owned(),
            kind: EngineKind::Postgres,
            version: "13".to_owned(),
            allow_other_version: false,
            provision: Provision::Process { bin_dir: PathBuf::from("/usr/lib/postgresql/13/bin") },
            transport: TransportKind::Unix,
            settings: map(&[("fsync", "on")]),
            settings_profile: SettingsProfile::Stock,
            pages: None,
            tls: TlsMode::Off,
            tls_ca: None,
            initdb: Some(Initdb { locale: "C".into(), encoding: "UTF8".into(), checksums: false }),
        },
        storage: StoragePlan::fresh(storage, StorageKind::Loop(volume)),
        workload: WorkloadPlan {
            work: Work::Tpcb(Scaled { scale: 1, filler_random_percent: 0 }),
            instances: 1,
            clients: 8,
            threads: 2,
            protocol: QueryProtocol::Prepared,
            cache: CacheState::Warm,
            arrivals: None,
            max_tries: 1,
            length: RunLength::DurationS(SECONDS as f64),
            warmup_s: 1.0,
        },
    }
}

/// Two cells that are available and one that is not, two blocks.
fn plan() -> Plan {
    Plan {
        plan_version: PLAN_VERSION,
        name: "quick".to_owned(),
        site: SiteKind::Local,
        work_dir: PathBuf::from("/var/tmp/bedplate"),
        cells: vec![cell("ext4"), cell("xfs")],
        unavailable: vec![UnavailableCell {
            label: "zfs/fillfactor=90".to_owned(),
            levels: map(&[("engine", "postgres 13"), ("storage", "zfs"), ("fillfactor", "90")]),
            reason: "zfs needs pools, but neither OpenZFS nor zfs-fuse is installed".to_owned(),
            remedy: "wait for a later version of Bedplate".to_owned(),
        }],
        design: Design {
            profile: Profile::Smoke,
            blocks: 2,
            seed: 1,
            baseline: map(&[("storage", "ext4")]),
            order: vec![vec![0, 1], vec![1, 0]],
            metrics: true,
        },
    }
}

fn environment() -> Environment {
    Environment { facts: map(&[("kernel", "6.18.0"), ("cpus", "2")]) }
}

/// The interval that starts at a second; every second has other times.
fn interval(second: u64, phase: Phase) -> Interval {
    let mut service_time_ns = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).unwrap();
    for n in 0..1200 + 100 * second {
        service_time_ns.record(1_000_000 + n * n * (second + 1)).unwrap();
    }
    Interval {
        instance: 0,
        phase,
        start_s: second as f64,
        length_s: 1.0,
        outcomes: Outcomes {
            retried: 0,
            committed: service_time_ns.len(),
            failed: [("40001".to_owned(), second)].into(),
        },
        live_clients: 8,
        service_time_ns,
        open: None,
    }
}

/// A second of warm-up, then the measured ones.
fn intervals() -> Vec<Interval> {
    let measured = (1..=SECONDS).map(|second| interval(second, Phase::Measure));
    std::iter::once(interval(0, Phase::Warmup)).chain(measured).collect()
}

fn record(id: &TrialId, plan: &Plan) -> TrialRecord {
    let mut measured = Totals::default();
    intervals().iter().for_each(|interval| measured.add(interval));
    let storage = plan.cells[id.cell].storage.label.clone();
    TrialRecord {
        id: id.clone(),
        cell_label: plan.cells[id.cell].label.clone(),
        started_at: "2026-11-30T20:00:00Z".to_owned(),
        phase_s: vec![
            (Phase::Volume, 0.75),
            (Phase::Load, 1.5),
            (Phase::Warmup, 1.0),
            (Phase::Measure, 3.0),
            (Phase::Teardown, 0.25),
            (Phase::Teardown, 0.5),
        ],
        trust: Trust::sound(),
        instances: measured
            .0
            .into_values()
            .map(|InstanceTotals { outcomes, .. }| InstanceRecord {
                scheduled: 0,
                started_s: 0.000_2,
                window_s: SECONDS as f64,
                committed_all: outcomes.committed + 1208,
                counted_by_clients: outcomes.committed,
                outcomes,
            })
            .collect(),
        connected_windows_s: vec![4.1],
        clients_lost: 0,
        client_cpu_s: 0.21,
        connect_s: 0.02,
        database_bytes: 24 << 20,
        volume_used_bytes: Some(90 << 20),
        compressed_share: Some(0.06),
        cached_share: Some(0.75),
        overloaded: None,
        aged: Some(Aged { files: 3, written_bytes: 600, used_bytes: 200, bytes: 400 }),
        server: ServerFacts {
            version_full: "PostgreSQL 13.23".to_owned(),
            version: "13.23".to_owned(),
            settings: map(&[
                ("fsync", "on"),
                ("synchronous_commit", "on"),
                ("full_page_writes", "on"),
                ("block_size", "8192"),
            ]),
            provenance: map(&[("image", "postgres:13")]),
            data_mount: Some(MountFacts {
                mount_point: "/data".to_owned(),
                fs_type: storage.clone(),
                source: "/dev/loop3".to_owned(),
                options: vec!["rw".to_owned(), "noatime".to_owned()],
            }),
        },
        volume: VolumeFacts {
            facts: map(&[("mkfs_command", &format!("mkfs.{storage}")), ("loop_direct_io", "1")]),
            caveats: Vec::new(),
        },
        probe: Some(Probe {
            sync_us: Syncs { p50: 95.0, p95: 180.0, max: 900.0 },
            devices: Some(Seen { flushes: Some(201), read_bytes: 16 << 20 }),
            backing: None,
            cold_read_s: 0.125,
            warm_read_s: 0.01,
        }),
        server_work: Some(ServerWork {
            wal_bytes: Some(512 << 10),
            blocks_hit: Some(900),
            blocks_read: Some(100),
            cpu_s: Some(0.5),
        }),
        devices: Some(DeviceWork { read_bytes: 4096, written_bytes: 1 << 20, flushes: 250 }),
        writing_commits: Some(256),
        durability: Durability::Durable,
        driver: "bedplate 0.1.0 postgres/epoll".to_owned(),
        error: None,
        kernel_messages: Vec::new(),
    }
}

/// Executes the first `trials` trials of the plan; the last of four is void.
fn execute(directory: &mut RunDirectory, trials: u32) {
    let plan = plan();
    let cells: Vec<usize> = plan.design.order.concat();
    for trial in 0..trials {
        let (block, cell) = (trial / 2, cells[trial as usize]);
        let id = TrialId { run: directory.run_id().to_owned(), trial, block, cell };
        directory.trial_started(&id).unwrap();
        for interval in intervals() {
            directory.interval(&interval).unwrap();
        }
        let mut record = record(&id, &plan);
        if trial == 3 {
            record.trust.lower(TrustLevel::Void, "the server died");
            record.error = Some("the server ended with signal 9".to_owned());
        }
        let metrics = [
            MetricSample { at_s: 1.0, metric: "host_cpu_user_cpus".to_owned(), value: 0.5 },
            MetricSample { at_s: 2.0, metric: "host_cpu_user_cpus".to_owned(), value: 1.0 },
            MetricSample { at_s: 3.0, metric: "nothing_read".to_owned(), value: f64::NAN },
        ];
        directory.metrics(&metrics[..1]).unwrap();
        directory.metrics(&metrics[1..]).unwrap();
        directory.trial_ended(&record, "ready to accept connections\n").unwrap();
    }
}

fn create(parent: &Path) -> RunDirectory {
    RunDirectory::create(parent, &plan(), &environment()).unwrap()
}

fn complete_run(parent: &Path) -> PathBuf {
    let mut directory = create(parent);
    execute(&mut directory, 4);
    directory.finish(RunEnd::Complete).unwrap()
}

fn names(table: &polars::prelude::DataFrame) -> Vec<String> {
    table.columns().iter().map(|column| column.name().to_string()).collect()
}

fn documented(columns: &[columns::Column]) -> Vec<String> {
    columns.iter().map(|column| column.name.to_owned()).collect()
}

#[test]
fn a_complete_run_reads_as_it_was_written() {
    let parent = tempfile::tempdir().unwrap();
    let path = complete_run(parent.path());
    let run = Run::open(&path).unwrap();
    assert!(run.complete);
    assert_eq!((run.trials.len(), run.unfinished.len(), run.planned()), (4, 0, 4));
    assert_eq!(run.plan, plan());
    assert_eq!(run.environment, environment());
    let id = TrialId { run: run.run_id.clone(), trial: 1, block: 0, cell: 1 };
    assert_eq!(run.trials[1].record, record(&id, &plan()));
    assert_eq!(run.trials[1].metrics.len(), 2, "what is not a number is not a reading");
    assert_eq!(run.server_log(0).unwrap(), "ready to accept connections\n");
}

#[test]
fn names_of_a_run_fit_everywhere() {
    let parent = tempfile::tempdir().unwrap();
    let directory = create(&parent.path().join("made/on/demand"));
    let id = directory.run_id();
    assert!(id.len() <= 12, "{id}");
    assert!(id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{id}");
    let name = directory.path().file_name().unwrap().to_str().unwrap();
    let parts: Vec<&str> = name.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[1].len(), parts[2].len()), (3, "quick", 16, 4));
    assert!(id.ends_with(parts[2]));
}

#[test]
fn merged_histograms_equal_the_whole() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let mut whole = Histogram::<u64>::new_with_bounds(1_000, 3_600_000_000_000, 3).unwrap();
    for second in 1..=SECONDS {
        for n in 0..1200 + 100 * second {
            whole.record(1_000_000 + n * n * (second + 1)).unwrap();
        }
    }
    assert_eq!(run.trials[0].service_time_ns, whole);
}

#[test]
fn the_numbers_are_right() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let rows = trial_rows(&run).unwrap();
    // 1300 + 1400 + 1500 committed in 3 seconds.
    assert_eq!(rows[0].committed, 4200);
    assert_eq!(rows[0].tps, Some(1400.0));
    assert_eq!((rows[0].failed, rows[0].clients_lost), (6, 0));
    assert!((rows[0].client_cpu_us_per_transaction.unwrap() - 50.0).abs() < 1e-9);
    assert_eq!((rows[0].load_s, rows[0].connect_s), (Some(1.5), Some(0.02)));
    assert_eq!((rows[0].volume_s, rows[0].server_s), (Some(0.75), None));
    assert_eq!(rows[0].teardown_s, Some(0.75));
    // 256 commits wrote something.
    assert_eq!((rows[0].wal_bytes, rows[0].wal_bytes_per_commit), (Some(524_288), Some(2048.0)));
    assert_eq!(rows[0].device_written_bytes_per_commit, Some(4096.0));
    assert_eq!(rows[0].device_flushes_per_commit, Some(250.0 / 256.0));
    assert_eq!(rows[0].cache_hit_ratio, Some(0.9));
    // Half a second over 4200 transactions and the 1208 around the window.
    let server_cpu_us = rows[0].server_cpu_us_per_transaction.unwrap();
    assert!((server_cpu_us - 500_000.0 / 5408.0).abs() < 1e-9);
    assert_eq!(rows[0].storage_line, "aged: 50 % full, written 3.0 times, 95 µs to stable storage");
    // 16 MiB in an eighth of a second.
    assert_eq!(rows[0].cold_read_bytes_per_s, Some(134_217_728.0));
    assert_eq!(rows[0].compressed_share, Some(0.06));
    assert_eq!(rows[0].cached_share, Some(0.75));
    assert_eq!(rows[0].cache, "warm");
    assert_eq!((rows[0].page_bytes, rows[0].settings_profile), (Some(8192), "stock"));
    assert_eq!(rows[0].service_time_ms.p999, None, "4.2 values lie beyond it");
    let mut values: Vec<u64> = (1..=SECONDS)
        .flat_map(|second| (0..1200 + 100 * second).map(move |n| 1_000_000 + n * n * (second + 1)))
        .collect();
    values.sort_unstable();
    let exact = values[(4200 * 99_usize).div_ceil(100) - 1] as f64 / 1e6;
    assert!((rows[0].service_time_ms.p99.unwrap() / exact - 1.0).abs() < 1e-3);
    assert_eq!(
        (rows[0].storage(), rows[1].storage(), rows[0].engine()),
        ("ext4", "xfs", "postgres 13")
    );
}

#[test]
fn a_void_trial_has_no_number() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let row = &trial_rows(&run).unwrap()[3];
    assert_eq!((row.trust, row.tps), (TrustLevel::Void, None));
    assert_eq!(row.service_time_ms, crate::Quantiles::default());
    assert_eq!(row.client_cpu_us_per_transaction, None);
    assert_eq!((row.wal_bytes_per_commit, row.cache_hit_ratio), (None, None));
    assert_eq!(row.server_cpu_us_per_transaction, None);
    assert_eq!(row.trust_reasons, ["the server died"]);
    let Frames { intervals, latency, .. } = frames(&run).unwrap();
    assert_eq!(intervals.column("tps").unwrap().null_count(), 1 + SECONDS as usize);
    let trials = latency.column("trial").unwrap().u32().unwrap();
    assert!(trials.iter().all(|trial| trial < Some(3)));
}

#[test]
fn quantiles_can_be_computed_again_from_the_latency_table() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let latency = frames(&run).unwrap().latency;
    let trial = latency.column("trial").unwrap().u32().unwrap();
    let value = latency.column("service_time_ms").unwrap().f64().unwrap();
    let count = latency.column("count").unwrap().u64().unwrap();
    let mut below = 0;
    let mut p99 = None;
    for ((trial, value), count) in trial.iter().zip(value.iter()).zip(count.iter()) {
        if trial == Some(0) {
            below += count.unwrap();
            if below >= (4200 * 99_u64).div_ceil(100) && p99.is_none() {
                p99 = value;
            }
        }
    }
    assert_eq!(below, 4200);
    assert_eq!(p99, trial_rows(&run).unwrap()[0].service_time_ms.p99);
}

#[test]
fn every_column_is_documented_and_in_its_place() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let Frames { trials, intervals, instances, latency, metrics } = frames(&run).unwrap();
    let mut expected = documented(columns::TRIALS);
    expected.insert(6, "fillfactor".to_owned());
    assert_eq!(names(&trials), expected);
    assert_eq!(names(&intervals), documented(columns::INTERVALS));
    assert_eq!(names(&instances), documented(columns::INSTANCES));
    assert_eq!(instances.height(), 4);
    assert_eq!(names(&latency), documented(columns::LATENCY));
    assert_eq!(names(&metrics), documented(columns::METRICS));
    assert_eq!((trials.height(), intervals.height(), metrics.height()), (4, 16, 8));
}

#[test]
fn a_factor_never_hides_a_column() {
    let parent = tempfile::tempdir().unwrap();
    let mut run = Run::open(&complete_run(parent.path())).unwrap();
    for cell in &mut run.plan.cells {
        cell.levels.insert("fsync".to_owned(), "off".to_owned());
        cell.levels.insert("clients".to_owned(), "8".to_owned());
    }
    let names = names(&frames(&run).unwrap().trials);
    assert_eq!(names.iter().filter(|name| *name == "fsync").count(), 1);
    assert_eq!(names.iter().filter(|name| *name == "clients").count(), 1);
    assert!(names.contains(&"factor_fsync".to_owned()));
}

#[test]
fn parquet_holds_the_frames() {
    let parent = tempfile::tempdir().unwrap();
    let path = complete_run(parent.path());
    let Frames { trials, intervals, instances, latency, metrics } =
        frames(&Run::open(&path).unwrap()).unwrap();
    for (name, expected) in [
        ("trials", trials),
        ("intervals", intervals),
        ("instances", instances),
        ("latency", latency),
        ("metrics", metrics),
    ] {
        let file = fs::File::open(path.join(format!("{name}.parquet"))).unwrap();
        let stored = ParquetReader::new(file).finish().unwrap();
        assert!(stored.equals_missing(&expected), "{name}");
    }
}

#[test]
fn times_of_an_open_loop_are_kept_and_told_unless_it_was_overloaded() {
    let times = |ms: std::ops::RangeInclusive<u64>| {
        let mut histogram = Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).unwrap();
        ms.for_each(|ms| histogram.record(ms * 1_000_000).unwrap());
        histogram
    };
    for overloaded in [false, true] {
        let parent = tempfile::tempdir().unwrap();
        let mut directory = create(parent.path());
        let id = TrialId { run: "r".to_owned(), trial: 0, block: 0, cell: 0 };
        directory.trial_started(&id).unwrap();
        let mut record = record(&id, &plan());
        let mut outcomes = Outcomes::default();
        for second in 0..2 {
            // Lags of 1 to 1000 ms, and 10 ms of service: the same in either second.
            let open = OpenTimes { response_time_ns: times(11..=1010), lag_ns: times(1..=1000) };
            let of_second = interval(second, Phase::Measure);
            outcomes.merge(&of_second.outcomes);
            directory.interval(&Interval { open: Some(open), ..of_second }).unwrap();
        }
        record.instances[0].outcomes = outcomes;
        record.overloaded = Some(overloaded);
        directory.trial_ended(&record, "").unwrap();

        let run = Run::open(directory.path()).unwrap();
        let open = run.trials[0].open.clone().unwrap();
        assert_eq!((open.response_time_ns.len(), open.lag_ns.len()), (2000, 2000));
        let row = &trial_rows(&run).unwrap()[0];
        assert_eq!(row.overloaded, Some(overloaded));
        let told = (row.response_time_ms.p50, row.lag_ms.p99);
        if overloaded {
            assert_eq!(told, (None, None));
        } else {
            // Nearest rank: the 1000th of 2000 is 510 ms, the 1980th a lag of 990 ms; buckets are
            // up to 0.1 % wide.
            let near = |value: Option<f64>, ms: f64| (value.unwrap() / ms - 1.0).abs() < 0.001;
            assert!(near(told.0, 510.0) && near(told.1, 990.0), "{told:?}");
        }
    }
}

#[test]
fn a_killed_run_keeps_what_was_finished() {
    let parent = tempfile::tempdir().unwrap();
    let mut directory = create(parent.path());
    execute(&mut directory, 2);
    let id = TrialId { run: directory.run_id().to_owned(), trial: 2, block: 1, cell: 1 };
    directory.trial_started(&id).unwrap();
    directory.interval(&interval(0, Phase::Warmup)).unwrap();
    let path = directory.path().to_owned();
    // What kill -9 leaves: no destructor of ours has anything to do, and a line may be torn.
    drop(directory);
    let torn = path.join(TRIALS).join("t0002").join(INTERVALS);
    let bytes = fs::read(&torn).unwrap();
    fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();

    let run = Run::open(&path).unwrap();
    assert!(!run.complete);
    assert_eq!((run.trials.len(), run.unfinished.as_slice()), (2, [2].as_slice()));
    assert_eq!(trial_rows(&run).unwrap()[1].tps, Some(1400.0));
    assert_eq!(frames(&run).unwrap().trials.height(), 2);
}

#[test]
fn a_run_without_a_finished_trial_has_empty_tables_of_the_same_columns() {
    let parent = tempfile::tempdir().unwrap();
    let directory = create(parent.path());
    let path = directory.finish(RunEnd::Stopped).unwrap();
    let run = Run::open(&path).unwrap();
    let Frames { trials, intervals, instances, latency, metrics } = frames(&run).unwrap();
    assert_eq!(names(&trials), documented(columns::TRIALS));
    let heights = [trials, intervals, instances, latency, metrics].map(|table| table.height());
    assert_eq!(heights, [0; 5]);
}

#[test]
fn complete_comes_last_and_only_when_true() {
    let parent = tempfile::tempdir().unwrap();
    let mut directory = create(parent.path());
    execute(&mut directory, 3);
    let path = directory.path().to_owned();
    let error = directory.finish(RunEnd::Complete).unwrap_err();
    assert!(error.message.starts_with("only 3 of 4 trials are finished"), "{error}");
    assert!(!path.join(COMPLETE).exists());
    assert!(!Run::open(&path).unwrap().complete);

    // A table that cannot be written leaves no mark.
    let mut directory = create(parent.path());
    execute(&mut directory, 4);
    let path = directory.path().to_owned();
    fs::create_dir(path.join("metrics.parquet")).unwrap();
    directory.finish(RunEnd::Complete).unwrap_err();
    assert!(!path.join(COMPLETE).exists());

    // Nothing half written stays beside what was finished.
    let path = complete_run(parent.path());
    let mut names: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "COMPLETE",
            "environment.json",
            "instances.parquet",
            "intervals.parquet",
            "latency.parquet",
            "metrics.parquet",
            "plan.json",
            "run.json",
            "trials",
            "trials.parquet",
        ]
    );
}

#[test]
fn intervals_that_do_not_add_up_make_a_trial_void() {
    let plan = plan();
    let id = TrialId { run: "r".to_owned(), trial: 0, block: 0, cell: 0 };
    let mut measured = Totals::default();
    intervals().iter().for_each(|interval| measured.add(interval));
    let check = |change: fn(&mut TrialRecord, &mut Totals)| {
        let (mut record, mut measured) = (record(&id, &plan), measured.clone());
        change(&mut record, &mut measured);
        check_totals(&mut record, &measured);
        record.trust
    };
    assert_eq!(check(|_, _| ()), Trust::sound());
    let level = |change: fn(&mut TrialRecord, &mut Totals)| check(change).level;
    let void = TrustLevel::Void;
    assert_eq!(level(|record, _| record.instances[0].outcomes.committed += 1), void);
    assert_eq!(level(|record, _| record.instances[0].outcomes.failed.clear()), void);
    assert_eq!(level(|_, measured| measured.0.get_mut(&0).unwrap().service_times -= 1), void);
    assert_eq!(level(|_, measured| measured.0.clear()), void);

    // The directory checks by itself, when writing and when reading.
    let parent = tempfile::tempdir().unwrap();
    let mut directory = create(parent.path());
    directory.trial_started(&id).unwrap();
    intervals()[..3].iter().for_each(|interval| directory.interval(interval).unwrap());
    directory.trial_ended(&record(&id, &plan), "").unwrap();
    let run = Run::open(directory.path()).unwrap();
    assert_eq!(
        run.trials[0].record.trust.reasons[0],
        "the measured intervals add up to 2700 committed and 3 failed transactions, the record \
         says 4200 and 6"
    );
}

#[test]
fn instances_are_rows_and_their_sum_is_the_trial() {
    let parent = tempfile::tempdir().unwrap();
    let mut directory = create(parent.path());
    let id = TrialId { run: "r".to_owned(), trial: 0, block: 0, cell: 0 };
    directory.trial_started(&id).unwrap();
    // The second instance commits what the first does, and ends half a second early; then the same
    // again, as with a second iteration.
    let halves = |instance| {
        let length_s = if instance == 0 { 1.0 } else { 0.5 };
        Interval { instance, length_s, start_s: 0.0, ..interval(1, Phase::Measure) }
    };
    for part in [halves(0), halves(1), halves(0), halves(1)] {
        directory.interval(&part).unwrap();
    }
    let mut record = record(&id, &plan());
    let one = interval(1, Phase::Measure).outcomes;
    let mut twice = one.clone();
    twice.merge(&one);
    let instance = |window_s| InstanceRecord {
        window_s,
        outcomes: twice.clone(),
        ..record.instances[0].clone()
    };
    record.instances = vec![instance(2.0), instance(1.0)];
    directory.trial_ended(&record, "").unwrap();

    let run = Run::open(directory.path()).unwrap();
    assert_eq!(run.trials[0].record.trust, Trust::sound());
    let seconds: Vec<_> = run.trials[0]
        .intervals
        .iter()
        .map(|row| (row.length_s, row.outcomes.committed, row.live_clients))
        .collect();
    assert_eq!(seconds, [(1.0, 2600, 16), (1.0, 2600, 16)]);
    // 1,300 transactions an interval and instance: in two intervals 2,600 over 2 s and over 1 s.
    let rows = instance_rows(&run);
    assert_eq!(rows.iter().map(|row| row.tps).collect::<Vec<_>>(), [Some(1300.0), Some(2600.0)]);
    let trial = &trial_rows(&run).unwrap()[0];
    assert_eq!((trial.tps, trial.committed, trial.window_s), (Some(3900.0), 5200, 2.0));
    assert_eq!(run.trials[0].service_time_ns.len(), 5200);
}

#[test]
fn what_cannot_be_read_is_said() {
    let parent = tempfile::tempdir().unwrap();
    let error = Run::open(parent.path()).unwrap_err();
    assert!(error.message.ends_with("is not a run directory"), "{error}");
    assert!(error.hint.is_some());

    let path = complete_run(parent.path());
    let check = |file: &Path, change: fn(String) -> String, expected: &str| {
        let before = fs::read_to_string(file).unwrap();
        fs::write(file, change(before.clone())).unwrap();
        let error = Run::open(&path).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
        fs::write(file, before).unwrap();
    };
    let newer = |text: String| text.replacen("_version\": ", "_version\": 9", 1);
    check(&path.join(RUN), newer, "is a run directory of version 91, this is version 1");
    check(&path.join(PLAN), newer, "is a plan of version 94, this is version 4");
    let trial = path.join(TRIALS).join("t0001");
    check(
        &trial.join(INTERVALS),
        |text| text[..text.len() / 2].to_owned(),
        "intervals.jsonl`, line",
    );
    check(&trial.join(RECORD), |_| "{".to_owned(), "cannot understand");
    fs::remove_file(trial.join(INTERVALS)).unwrap();
    assert!(Run::open(&path).unwrap_err().message.ends_with("intervals.jsonl` is missing"));
}

#[test]
fn the_sink_wants_a_trial_first() {
    let parent = tempfile::tempdir().unwrap();
    let mut directory = create(parent.path());
    let error = directory.interval(&interval(1, Phase::Measure)).unwrap_err();
    assert_eq!(error.message, "no trial has been started in the run directory");
}

#[test]
fn an_arrow_stream_holds_the_rows() {
    let parent = tempfile::tempdir().unwrap();
    let run = Run::open(&complete_run(parent.path())).unwrap();
    let Frames { trials, .. } = frames(&run).unwrap();
    #[expect(unsafe_code, reason = "reading a stream is unsafe by the interface's nature")]
    // SAFETY: the stream is ours and fresh.
    let (width, heights) = unsafe {
        let mut reader = ArrowArrayStreamReader::try_new(Box::new(arrow_stream(&trials))).unwrap();
        let mut heights = Vec::new();
        while let Some(batch) = reader.next() {
            heights.push(batch.unwrap().len());
        }
        let polars_arrow::datatypes::ArrowDataType::Struct(fields) = reader.field().dtype() else {
            panic!("a table is a struct");
        };
        (fields.len(), heights)
    };
    assert_eq!((width, heights), (trials.width(), vec![4]));
}

/// Makes the run directory that the Python tests read: `cargo test -p bedplate-results -- --ignored`.
#[test]
#[ignore = "writes into the repository"]
fn python_fixture() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/data");
    let parent = tempfile::tempdir().unwrap();
    let path = complete_run(parent.path());
    let target = data.join("quick");
    drop(fs::remove_dir_all(&target));
    copy(&path, &target);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
