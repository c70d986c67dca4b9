//! What a server counts of its own work: how it is asked, and the metrics that come of it.
//!
//! Rates of transactions are not taken from here. PostgreSQL before version 15 tells its counts at most
//! every 500 ms, so those of a second jitter; the clients' own counts do not.

use crate::error::Result;
use crate::plan::EngineKind;
use crate::record::ServerWork;
use crate::sampler::{Reading, ReadingValue};
use crate::seam::Session;
use crate::workload::major;

pub(crate) const WAL_BYTES: &str = "server_wal_bytes_per_s";
pub(crate) const BLOCKS_HIT: &str = "server_blocks_hit_per_s";
pub(crate) const BLOCKS_READ: &str = "server_blocks_read_per_s";
const ACTIVE: &str = "server_active_clients";
/// Read from the machine, which is where the server's processes are seen.
pub const SERVER_CPU: &str = "server_cpu_cpus";

/// What a metric is made of: an SQL expression, or the name of a status variable.
struct Count {
    of: &'static str,
    metric: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// It only grows.
    Counter,
    /// It only grows, in milliseconds: its growth is a share of the time.
    CounterMs,
    /// A state.
    Gauge,
}

const fn counter(of: &'static str, metric: &'static str) -> Count {
    Count { of, metric, kind: Kind::Counter }
}

const fn counter_ms(of: &'static str, metric: &'static str) -> Count {
    Count { of, metric, kind: Kind::CounterMs }
}

const fn gauge(of: &'static str, metric: &'static str) -> Count {
    Count { of, metric, kind: Kind::Gauge }
}

/// Of `pg_stat_database` (`d`) and `pg_stat_activity` (`a`), in every version.
const POSTGRES: &[Count] = &[
    counter("pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", WAL_BYTES),
    counter("d.blks_hit", BLOCKS_HIT),
    counter("d.blks_read", BLOCKS_READ),
    counter("d.xact_commit", "server_commits_per_s"),
    counter("d.xact_rollback", "server_rollbacks_per_s"),
    counter("d.temp_bytes", "server_temporary_bytes_per_s"),
    counter("d.deadlocks", "server_deadlocks_per_s"),
    gauge("a.active", ACTIVE),
    gauge("a.lock", "server_waiting_for_lock_clients"),
    gauge("a.lwlock", "server_waiting_for_lwlock_clients"),
    gauge("a.io", "server_waiting_for_io_clients"),
];

/// Of `pg_stat_bgwriter` (`b`) until version 16.
const POSTGRES_BGWRITER: &[Count] = &[
    counter("b.checkpoints_timed", "server_checkpoints_timed_per_s"),
    counter("b.checkpoints_req", "server_checkpoints_requested_per_s"),
    counter_ms("b.checkpoint_write_time", "server_checkpoint_write_share"),
    counter_ms("b.checkpoint_sync_time", "server_checkpoint_sync_share"),
    counter("b.buffers_checkpoint", "server_blocks_written_by_checkpointer_per_s"),
    counter("b.buffers_clean", "server_blocks_written_by_bgwriter_per_s"),
    counter("b.buffers_alloc", "server_blocks_allocated_per_s"),
    counter("b.buffers_backend", "server_blocks_written_by_backends_per_s"),
    counter("b.buffers_backend_fsync", "server_fsyncs_by_backends_per_s"),
];

/// Of `pg_stat_checkpointer` (`c`) and `pg_stat_bgwriter` (`b`) from version 17 on.
const POSTGRES_CHECKPOINTER: &[Count] = &[
    counter("c.num_timed", "server_checkpoints_timed_per_s"),
    counter("c.num_requested", "server_checkpoints_requested_per_s"),
    counter_ms("c.write_time", "server_checkpoint_write_share"),
    counter_ms("c.sync_time", "server_checkpoint_sync_share"),
    counter("c.buffers_written", "server_blocks_written_by_checkpointer_per_s"),
    counter("b.buffers_clean", "server_blocks_written_by_bgwriter_per_s"),
    counter("b.buffers_alloc", "server_blocks_allocated_per_s"),
];

/// Reads that no cached block served.
const INNODB_READS: &str = "INNODB_BUFFER_POOL_READS";

/// Global status variables.
const MARIADB: &[Count] = &[
    counter("INNODB_OS_LOG_WRITTEN", WAL_BYTES),
    counter(INNODB_READS, BLOCKS_READ),
    counter("INNODB_BUFFER_POOL_READ_REQUESTS", BLOCKS_HIT),
    counter("COM_COMMIT", "server_commits_per_s"),
    counter("COM_ROLLBACK", "server_rollbacks_per_s"),
    counter("HANDLER_COMMIT", "server_engine_commits_per_s"),
    counter("INNODB_OS_LOG_FSYNCS", "server_wal_fsyncs_per_s"),
    counter("INNODB_DATA_FSYNCS", "server_fsyncs_per_s"),
    counter("INNODB_LOG_WAITS", "server_waits_for_wal_buffer_per_s"),
    counter("INNODB_BUFFER_POOL_WAIT_FREE", "server_waits_for_free_block_per_s"),
    counter("INNODB_PAGES_WRITTEN", "server_blocks_written_per_s"),
    counter("INNODB_DBLWR_PAGES_WRITTEN", "server_blocks_doublewritten_per_s"),
    counter("INNODB_ROW_LOCK_WAITS", "server_waits_for_lock_per_s"),
    gauge("INNODB_BUFFER_POOL_PAGES_DIRTY", "server_dirty_blocks"),
    gauge("INNODB_ROW_LOCK_CURRENT_WAITS", "server_waiting_for_lock_clients"),
    gauge("THREADS_RUNNING", ACTIVE),
];

/// The bytes of redo log that a checkpoint would have to write pages for. MariaDB 10.3 and 10.4 have
/// no variable for it, so it is read from the text that all versions have.
const CHECKPOINT_AGE: &str = "server_checkpoint_age_bytes";

/// From this version on checkpoints have a view of their own.
const FIRST_MAJOR_OF_CHECKPOINTER: u32 = 17;

/// How PostgreSQL is asked; the columns are those of the counts, in order.
fn postgres_query(version: &str) -> (String, impl Iterator<Item = &'static Count>) {
    let (written, from) = if major(version) >= FIRST_MAJOR_OF_CHECKPOINTER {
        (POSTGRES_CHECKPOINTER, "pg_stat_bgwriter b, pg_stat_checkpointer c")
    } else {
        (POSTGRES_BGWRITER, "pg_stat_bgwriter b")
    };
    let counts = || POSTGRES.iter().chain(written);
    let columns: Vec<&str> = counts().map(|count| count.of).collect();
    let sql = format!(
        "select {} from {from}, pg_stat_database d, \
         (select count(*) as active, \
         count(*) filter (where wait_event_type = 'Lock') as lock, \
         count(*) filter (where wait_event_type = 'LWLock') as lwlock, \
         count(*) filter (where wait_event_type = 'IO') as io \
         from pg_stat_activity \
         where state = 'active' and datname = current_database() and pid <> pg_backend_pid()) a \
         where d.datname = current_database()",
        columns.join(", ")
    );
    (sql, counts())
}

impl Count {
    fn reading(&self, number: f64) -> Reading {
        let value = match self.kind {
            Kind::Counter => ReadingValue::Counter(number),
            Kind::CounterMs => ReadingValue::Counter(number / 1e3),
            Kind::Gauge => ReadingValue::Gauge(number),
        };
        Reading { metric: self.metric, value }
    }
}

/// What the server counts at this moment. One count that it does not have is left out.
pub(crate) async fn read(
    engine: EngineKind,
    version: &str,
    session: &mut dyn Session,
) -> Result<Vec<Reading>> {
    match engine {
        EngineKind::Postgres => {
            let (sql, counts) = postgres_query(version);
            let row = session.query(&sql).await?.pop().unwrap_or_default();
            let told = counts.zip(&row);
            Ok(told
                .filter_map(|(count, text)| Some(count.reading(text.as_deref()?.parse().ok()?)))
                .collect())
        }
        EngineKind::MariaDb => {
            let names: Vec<String> =
                MARIADB.iter().map(|count| format!("'{}'", count.of)).collect();
            let sql = format!(
                "select variable_name, variable_value from information_schema.global_status \
                 where variable_name in ({})",
                names.join(", ")
            );
            let rows = session.query(&sql).await?;
            let mut readings = mariadb_readings(&rows);
            // It takes the privilege PROCESS, which a user of somebody's server may lack.
            if let Ok(rows) = session.query("show engine innodb status").await {
                let text = rows.first().and_then(|row| row.last()).and_then(Option::as_deref);
                readings.extend(text.and_then(checkpoint_age));
            }
            Ok(readings)
        }
    }
}

fn mariadb_readings(rows: &[Vec<Option<String>>]) -> Vec<Reading> {
    let number = |name: &str| -> Option<f64> {
        let value = rows.iter().find_map(|row| match row.as_slice() {
            [Some(of), value] if of.eq_ignore_ascii_case(name) => value.as_deref(),
            _ => None,
        });
        value?.parse().ok()
    };
    let counted = |count: &Count| match count.metric {
        // InnoDB counts requests, of which the reads missed.
        BLOCKS_HIT => Some((number(count.of)? - number(INNODB_READS)?).max(0.0)),
        // The session that asks is running.
        ACTIVE => Some((number(count.of)? - 1.0).max(0.0)),
        _ => number(count.of),
    };
    MARIADB.iter().filter_map(|count| Some(count.reading(counted(count)?))).collect()
}

/// Redo log written since the last checkpoint, of the text of `show engine innodb status`.
fn checkpoint_age(status: &str) -> Option<Reading> {
    let number = |label: &str| {
        let line = status.lines().find_map(|line| line.trim().strip_prefix(label))?;
        line.trim().parse::<f64>().ok()
    };
    let age = number("Log sequence number")? - number("Last checkpoint at")?;
    Some(Reading { metric: CHECKPOINT_AGE, value: ReadingValue::Gauge(age) })
}

/// What a server did between two readings; what either lacks is absent.
pub(crate) fn work_between(before: &[Reading], after: &[Reading]) -> ServerWork {
    let count = |readings: &[Reading], metric: &str| {
        readings.iter().find_map(|reading| match reading.value {
            ReadingValue::Counter(count) if reading.metric == metric => Some(count),
            _ => None,
        })
    };
    // A count that ran backwards was reset, and tells nothing.
    let grown = |metric| {
        let growth = count(after, metric)? - count(before, metric)?;
        (growth >= 0.0).then_some(growth)
    };
    ServerWork {
        wal_bytes: grown(WAL_BYTES).map(|bytes| bytes as u64),
        blocks_hit: grown(BLOCKS_HIT).map(|blocks| blocks as u64),
        blocks_read: grown(BLOCKS_READ).map(|blocks| blocks as u64),
        cpu_s: grown(SERVER_CPU),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(pairs: &[(&str, &str)]) -> Vec<Vec<Option<String>>> {
        pairs
            .iter()
            .map(|(name, value)| vec![Some((*name).into()), Some((*value).into())])
            .collect()
    }

    #[test]
    fn requests_of_innodb_that_were_not_read_are_hits() {
        let readings = mariadb_readings(&rows(&[
            ("INNODB_BUFFER_POOL_READS", "25"),
            ("INNODB_BUFFER_POOL_READ_REQUESTS", "100"),
            ("INNODB_OS_LOG_WRITTEN", "512"),
            ("THREADS_RUNNING", "9"),
            ("INNODB_LOG_WAITS", "x"),
        ]));
        let of = |metric: &str| {
            readings.iter().find(|reading| reading.metric == metric).map(|reading| reading.value)
        };
        assert_eq!(of(BLOCKS_HIT), Some(ReadingValue::Counter(75.0)));
        assert_eq!(of(BLOCKS_READ), Some(ReadingValue::Counter(25.0)));
        assert_eq!(of(WAL_BYTES), Some(ReadingValue::Counter(512.0)));
        assert_eq!(of("server_active_clients"), Some(ReadingValue::Gauge(8.0)));
        assert_eq!(of("server_waits_for_wal_buffer_per_s"), None);
    }

    #[test]
    fn the_age_of_a_checkpoint_is_in_the_text_of_innodb() {
        // From the manual's page on SHOW ENGINE INNODB STATUS.
        let text = "---\nLOG\n---\nLog sequence number 252794398789379\n\
                    Log flushed up to   252794398789379\nPages flushed up to 252792767756840\n\
                    Last checkpoint at  252792767756840\n";
        let age = checkpoint_age(text).map(|reading| reading.value);
        assert_eq!(age, Some(ReadingValue::Gauge(1_631_032_539.0)));
        assert_eq!(checkpoint_age("LOG\n"), None);
    }

    #[test]
    fn checkpoints_moved_in_version_17() {
        for (version, has) in [("13.23", false), ("16.1", false), ("17.0", true), ("18beta1", true)]
        {
            let (sql, counts) = postgres_query(version);
            assert_eq!(sql.contains("pg_stat_checkpointer"), has, "{version}");
            assert_eq!(counts.count() > 18, !has, "{version}");
        }
    }

    #[test]
    fn what_was_reset_tells_nothing() {
        let of = |metric, count| Reading { metric, value: ReadingValue::Counter(count) };
        let before = [of(WAL_BYTES, 1000.0), of(BLOCKS_HIT, 50.0), of(SERVER_CPU, 1.0)];
        let after = [of(WAL_BYTES, 1500.0), of(BLOCKS_HIT, 10.0), of(BLOCKS_READ, 3.0)];
        let work = work_between(&before, &after);
        assert_eq!(work, ServerWork { wal_bytes: Some(500), ..ServerWork::default() });
    }
}
