//! The five tables as data frames, as Parquet files and as Arrow streams.

use std::collections::BTreeSet;
use std::path::Path;

use bedplate_core::record::{Phase, TrustLevel};
use bedplate_core::{Error, Result};
use polars::prelude::{
    ArrowDataType, ArrowField, Column, CompatLevel, NamedFrom, ParquetWriter, PolarsError, Series,
};
use polars_arrow::array::{Array, StructArray};
use polars_arrow::ffi::export_iterator;

pub use polars::prelude::DataFrame;
pub use polars_arrow::ffi::ArrowArrayStream;

use crate::columns;
use crate::read::{IntervalRow, Run};
use crate::rows::{Quantiles, TrialRow, instance_rows, ms, phase_name, trial_rows, trust_name};
use crate::stored::write_whole;

/// The tables of a run. [`crate::columns`] says what their columns mean.
#[derive(Debug, Clone)]
pub struct Frames {
    /// One row a finished trial.
    pub trials: DataFrame,
    /// One row a second of warm-up and measuring.
    pub intervals: DataFrame,
    /// One row an instance of the workload in a finished trial.
    pub instances: DataFrame,
    /// Histograms of the measured windows.
    pub latency: DataFrame,
    /// One row a reading of a metric.
    pub metrics: DataFrame,
}

/// The tables of a run, of its finished trials.
///
/// # Errors
/// A record names a cell that the plan does not have.
pub fn frames(run: &Run) -> Result<Frames> {
    let rows = trial_rows(run)?;
    let tables = || {
        Ok(Frames {
            trials: trials(&rows)?,
            intervals: intervals(run)?,
            instances: instances(run)?,
            latency: latency(run)?,
            metrics: metrics(run)?,
        })
    };
    tables().map_err(|error: PolarsError| Error::store(format!("cannot make the tables: {error}")))
}

/// Exports a table over the Arrow C stream interface, in types that every reader knows.
pub fn arrow_stream(table: &DataFrame) -> ArrowArrayStream {
    let level = CompatLevel::oldest();
    let mut table = table.clone();
    table.rechunk_mut();
    let fields: Vec<ArrowField> =
        table.columns().iter().map(|column| column.field().to_arrow(level)).collect();
    let dtype = ArrowDataType::Struct(fields);
    let batches: Vec<_> = table
        .iter_chunks(level, false)
        .map(|batch| {
            let height = batch.height();
            let (_, arrays) = batch.into_schema_and_arrays();
            StructArray::try_new(dtype.clone(), height, arrays, None)
                .map(|array| Box::new(array) as Box<dyn Array>)
        })
        .collect();
    export_iterator(Box::new(batches.into_iter()), ArrowField::new("".into(), dtype, false))
}

/// Writes the tables into a run directory.
pub(crate) fn write_parquet(path: &Path, frames: Frames) -> Result<()> {
    let Frames { trials, intervals, instances, latency, metrics } = frames;
    for (name, mut table) in [
        ("trials", trials),
        ("intervals", intervals),
        ("instances", instances),
        ("latency", latency),
        ("metrics", metrics),
    ] {
        write_whole(&path.join(name).with_extension("parquet"), |file| {
            ParquetWriter::new(file).finish(&mut table).map(drop).map_err(|error| error.to_string())
        })?;
    }
    Ok(())
}

type Table = std::result::Result<DataFrame, PolarsError>;

/// A column of anything polars takes.
fn column<T>(name: &str, values: Vec<T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Column::from(Series::new(name.into(), values))
}

fn trials(rows: &[TrialRow]) -> Table {
    let column_of = Of(rows);
    let mut columns = vec![
        column_of.text("run", |row| &row.run),
        column_of.number("trial", |row| row.trial),
        column_of.number("block", |row| row.block),
        column_of.text("cell", |row| &row.cell),
        column_of.text("engine", TrialRow::engine),
        column_of.text("storage", TrialRow::storage),
    ];
    columns.extend(factors(rows));
    columns.extend([
        column_of.text("workload", |row| row.workload),
        column_of.maybe_number("scale", |row| row.scale),
        column_of.number("instances", |row| row.instances),
        column_of.number("clients", |row| row.clients),
        column_of.number("threads", |row| row.threads),
        column_of.text("protocol", |row| row.protocol),
        column_of.text("cache", |row| row.cache),
        column_of.text("engine_kind", |row| row.engine_kind.word()),
        column_of.maybe_text("engine_version", |row| row.engine_version.as_deref()),
        column_of.text("driver", |row| &row.driver),
        column_of.text("version_asked", |row| &row.version_asked),
        column_of.text("trust", |row| trust_name(row.trust)),
        column_of.owned("trust_reasons", |row| row.trust_reasons.join("; ")),
        column_of.real("tps", |row| row.tps),
        column_of.real("queries_per_second", |row| row.queries_per_second),
        column_of.real("pts_queries_per_second", |row| row.pts_queries_per_second),
        column_of.count("committed", |row| Some(row.committed)),
        column_of.count("retried", |row| Some(row.retried)),
        column_of.count("failed", |row| Some(row.failed)),
        column_of.owned("failed_by_sqlstate", |row| {
            let counts = row.failed_by_sqlstate.iter();
            counts.map(|(state, count)| format!("{state}={count}")).collect::<Vec<_>>().join("; ")
        }),
        column_of.number("clients_lost", |row| row.clients_lost),
        column_of.real("window_s", |row| Some(row.window_s)),
    ]);
    columns.extend(column_of.times("service_time_ms", |row| &row.service_time_ms));
    columns.extend([
        column_of.real("rate_per_s", |row| row.arrivals.map(|arrivals| arrivals.rate_per_s)),
        column_of.maybe_text("spacing", |row| row.arrivals.map(|arrivals| arrivals.spacing.word())),
        column_of.count("scheduled", |row| row.scheduled),
        column_of.flag("overloaded", |row| row.overloaded),
    ]);
    columns.extend(column_of.times("response_time_ms", |row| &row.response_time_ms));
    columns.extend(column_of.times("lag_ms", |row| &row.lag_ms));
    columns.extend([
        column_of.real("client_cpu_us_per_transaction", |row| row.client_cpu_us_per_transaction),
        column_of.real("connect_s", |row| row.connect_s),
        column_of.real("load_s", |row| row.load_s),
        column_of.count("database_bytes", |row| row.database_bytes),
        column_of.count("volume_used_bytes", |row| row.volume_used_bytes),
        column_of.real("compressed_share", |row| row.compressed_share),
        column_of.real("cached_share", |row| row.cached_share),
        column_of.text("settings_profile", |row| row.settings_profile),
        column_of.count("page_bytes", |row| row.page_bytes),
        column_of.maybe_text("fsync", |row| row.fsync.as_deref()),
        column_of.maybe_text("synchronous_commit", |row| row.synchronous_commit.as_deref()),
        column_of.maybe_text("full_page_writes", |row| row.full_page_writes.as_deref()),
        column_of.maybe_text("fs_type", |row| row.fs_type.as_deref()),
        column_of.maybe_text("mount_options", |row| row.mount_options.as_deref()),
        column_of.maybe_text("mkfs_command", |row| row.mkfs_command.as_deref()),
        column_of.maybe_text("loop_direct_io", |row| row.loop_direct_io.as_deref()),
        column_of.text("storage_line", |row| &row.storage_line),
        column_of.real("sync_us_p50", |row| row.sync_us_p50),
        column_of.real("sync_us_p95", |row| row.sync_us_p95),
        column_of.real("cold_read_bytes_per_s", |row| row.cold_read_bytes_per_s),
        column_of.text("durability", |row| row.durability.word()),
        column_of.count("writing_commits", |row| row.writing_commits),
        column_of.count("device_flushes", |row| row.device_flushes),
        column_of.count("device_read_bytes", |row| row.device_read_bytes),
        column_of.count("device_written_bytes", |row| row.device_written_bytes),
        column_of
            .real("device_written_bytes_per_commit", |row| row.device_written_bytes_per_commit),
        column_of.real("device_flushes_per_commit", |row| row.device_flushes_per_commit),
        column_of.count("wal_bytes", |row| row.wal_bytes),
        column_of.real("wal_bytes_per_commit", |row| row.wal_bytes_per_commit),
        column_of.real("cache_hit_ratio", |row| row.cache_hit_ratio),
        column_of.real("server_cpu_us_per_transaction", |row| row.server_cpu_us_per_transaction),
        column_of.real("volume_s", |row| row.volume_s),
        column_of.real("age_s", |row| row.age_s),
        column_of.real("probe_s", |row| row.probe_s),
        column_of.real("server_s", |row| row.server_s),
        column_of.real("settle_s", |row| row.settle_s),
        column_of.real("verify_s", |row| row.verify_s),
        column_of.real("teardown_s", |row| row.teardown_s),
        column_of.maybe_text("image", |row| row.image.as_deref()),
        column_of.text("started_at", |row| &row.started_at),
        column_of.maybe_text("error", |row| row.error.as_deref()),
    ]);
    DataFrame::new(rows.len(), columns)
}

/// One column for each factor that has none of its own. A factor whose name is that of another
/// column is told apart by a prefix.
fn factors(rows: &[TrialRow]) -> Vec<Column> {
    const OWN: [&str; 10] = [
        "engine",
        "storage",
        "workload",
        "scale",
        "instances",
        "clients",
        "threads",
        "protocol",
        "cache",
        "spacing",
    ];
    let names: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.levels.keys().map(String::as_str))
        .filter(|name| !OWN.contains(name))
        .collect();
    let taken = |name: &str| columns::TRIALS.iter().any(|column| column.name == name);
    names
        .into_iter()
        .map(|factor| {
            let name = if taken(factor) { format!("factor_{factor}") } else { factor.to_owned() };
            Of(rows).maybe_text(&name, |row| row.levels.get(factor).map(String::as_str))
        })
        .collect()
}

fn intervals(run: &Run) -> Table {
    let rows: Vec<(u32, bool, &IntervalRow)> = run
        .trials
        .iter()
        .flat_map(|trial| {
            let usable = trial.record.trust.level != TrustLevel::Void;
            trial.intervals.iter().map(move |row| (trial.record.id.trial, usable, row))
        })
        .collect();
    let column_of = Of(&rows);
    let service_time = |name: &str, pick: fn(&Quantiles) -> Option<f64>| {
        column_of.real(
            name,
            |(_, usable, row)| {
                if *usable { pick(&row.service_time) } else { None }
            },
        )
    };
    let columns = vec![
        column_of.text("run", |_| &run.run_id),
        column_of.number("trial", |(trial, ..)| *trial),
        column_of.text("phase", |(.., row)| phase_name(row.phase)),
        column_of.real("start_s", |(.., row)| Some(row.start_s)),
        column_of.real("length_s", |(.., row)| Some(row.length_s)),
        column_of.count("committed", |(.., row)| Some(row.outcomes.committed)),
        column_of.count("retried", |(.., row)| Some(row.outcomes.retried)),
        column_of.count("failed", |(.., row)| Some(row.outcomes.failed_total())),
        column_of.number("live_clients", |(.., row)| row.live_clients),
        column_of.real("tps", |(_, usable, row)| {
            (*usable && row.length_s > 0.0).then(|| row.outcomes.committed as f64 / row.length_s)
        }),
        service_time("service_time_ms_p50", |quantiles| quantiles.p50),
        service_time("service_time_ms_p99", |quantiles| quantiles.p99),
        service_time("service_time_ms_max", |quantiles| quantiles.max),
    ];
    DataFrame::new(rows.len(), columns)
}

fn instances(run: &Run) -> Table {
    let rows = instance_rows(run);
    let column_of = Of(&rows);
    let mut columns = vec![
        column_of.text("run", |_| &run.run_id),
        column_of.number("trial", |row| row.trial),
        column_of.number("instance", |row| row.instance),
        column_of.real("tps", |row| row.tps),
        column_of.count("committed", |row| Some(row.committed)),
        column_of.count("retried", |row| Some(row.retried)),
        column_of.count("failed", |row| Some(row.failed)),
        column_of.real("started_s", |row| Some(row.started_s)),
        column_of.real("window_s", |row| Some(row.window_s)),
    ];
    columns.extend(column_of.times("service_time_ms", |row| &row.service_time_ms));
    DataFrame::new(rows.len(), columns)
}

fn latency(run: &Run) -> Table {
    let usable = run.trials.iter().filter(|trial| trial.record.trust.level != TrustLevel::Void);
    let rows: Vec<(u32, u64, u64)> = usable
        .flat_map(|trial| {
            trial.service_time_ns.iter_recorded().map(|bucket| {
                (trial.record.id.trial, bucket.value_iterated_to(), bucket.count_at_value())
            })
        })
        .collect();
    let column_of = Of(&rows);
    let columns = vec![
        column_of.text("run", |_| &run.run_id),
        column_of.number("trial", |(trial, ..)| *trial),
        column_of.text("phase", |_| phase_name(Phase::Measure)),
        column_of.real("service_time_ms", |(_, upper_ns, _)| Some(ms(*upper_ns))),
        column_of.count("count", |(.., count)| Some(*count)),
    ];
    DataFrame::new(rows.len(), columns)
}

fn metrics(run: &Run) -> Table {
    let rows: Vec<_> = run
        .trials
        .iter()
        .flat_map(|trial| trial.metrics.iter().map(|sample| (trial.record.id.trial, sample)))
        .collect();
    let column_of = Of(&rows);
    let columns = vec![
        column_of.text("run", |_| &run.run_id),
        column_of.number("trial", |(trial, _)| *trial),
        column_of.real("at_s", |(_, sample)| Some(sample.at_s)),
        column_of.text("metric", |(_, sample)| &sample.metric),
        column_of.real("value", |(_, sample)| Some(sample.value)),
    ];
    DataFrame::new(rows.len(), columns)
}

/// One of several quantiles.
type Pick = fn(&Quantiles) -> Option<f64>;

/// Columns of rows, one method a type.
struct Of<'a, Row>(&'a [Row]);

impl<'a, Row> Of<'a, Row> {
    fn text(&self, name: &str, value: impl Fn(&'a Row) -> &'a str) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn maybe_text(&self, name: &str, value: impl Fn(&'a Row) -> Option<&'a str>) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn owned(&self, name: &str, value: impl Fn(&'a Row) -> String) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn number(&self, name: &str, value: impl Fn(&'a Row) -> u32) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn maybe_number(&self, name: &str, value: impl Fn(&'a Row) -> Option<u32>) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn count(&self, name: &str, value: impl Fn(&'a Row) -> Option<u64>) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn real(&self, name: &str, value: impl Fn(&'a Row) -> Option<f64>) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    fn flag(&self, name: &str, value: impl Fn(&'a Row) -> Option<bool>) -> Column {
        column(name, self.0.iter().map(value).collect())
    }

    /// Quantiles of times, whose names begin alike.
    fn times(&self, name: &str, of: impl Fn(&'a Row) -> &'a Quantiles) -> [Column; 7] {
        let picks: [(&str, Pick); 7] = [
            ("mean", |it| it.mean),
            ("p50", |it| it.p50),
            ("p90", |it| it.p90),
            ("p95", |it| it.p95),
            ("p99", |it| it.p99),
            ("p999", |it| it.p999),
            ("max", |it| it.max),
        ];
        picks.map(|(of_all, pick)| self.real(&format!("{name}_{of_all}"), |row| pick(of(row))))
    }
}
