//! Filling a database through a session, and having it written to storage.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::plan::{Cell, EngineKind, Scaled, Work};
use crate::seam::{Event, Observer, Session};
use crate::slap::{self, Keys, Statements};
use crate::workload::{self, Flush, LoadStep};

/// Bytes of bulk data sent at once.
const COPY_CHUNK_BYTES: usize = 256 * 1024;

/// What a database was filled with, as far as the load has to know it.
pub(crate) enum Filled {
    /// pgbench's tables of this scale.
    Scaled(u32),
    /// slap's table.
    Slap {
        /// How many of its queries are sent.
        queries: slap::Queries,
        /// All its statements.
        statements: Statements,
        /// The keys that are there.
        keys: Keys,
    },
}

/// Fills the database, which is empty.
pub(crate) async fn fill(
    cell: &Cell,
    session: &mut dyn Session,
    observer: &dyn Observer,
    server_version: &str,
) -> Result<Filled> {
    match &cell.workload.work {
        Work::Tpcb(scaled) | Work::SimpleUpdate(scaled) | Work::SelectOnly(scaled) => {
            let engine = cell.engine.kind;
            fill_scaled(engine, *scaled, session, observer, server_version).await?;
            Ok(Filled::Scaled(scaled.scale))
        }
        Work::Slap(plan) => {
            let statements = Statements::new(plan)?;
            let keys = fill_slap(&statements, session).await?;
            Ok(Filled::Slap { queries: plan.queries, statements, keys })
        }
    }
}

/// slap's table and rows, in mysqlslap's order.
async fn fill_slap(statements: &Statements, session: &mut dyn Session) -> Result<Keys> {
    for sql in statements.create.iter().map(String::as_str).chain(statements.preload()) {
        session.execute(sql).await?;
    }
    let keys = if statements.take_keys() { read_keys(session).await? } else { Keys::UpTo(0) };
    for sql in &statements.pre_query {
        session.execute(sql).await?;
    }
    Ok(keys)
}

/// The keys that are there: numbers without a gap as their count, anything else as text.
async fn read_keys(session: &mut dyn Session) -> Result<Keys> {
    let rows = session.query(slap::KEYS).await?;
    let mut keys: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let count = keys.len() as u64;
    let mut numbers: Vec<u64> = keys.iter().filter_map(|key| key.parse().ok()).collect();
    numbers.sort_unstable();
    if numbers.iter().copied().eq(1..=count) {
        return Ok(Keys::UpTo(count));
    }
    keys.sort_unstable();
    Ok(Keys::Read(keys))
}

/// Removes everything that the user's own statements may have made in the session's database, so that
/// it can be filled again. Tables whose names start with `bedplate_` are marks of ours and stay.
pub(crate) async fn empty(session: &mut dyn Session) -> Result<()> {
    let rows = session
        .query(
            "select if(table_type in ('VIEW', 'SEQUENCE'), table_type, 'TABLE'), table_name \
             from information_schema.tables \
             where table_schema = database() and table_name not like 'bedplate\\_%' \
             union all select routine_type, routine_name from information_schema.routines \
             where routine_schema = database() and routine_type in ('PROCEDURE', 'FUNCTION') \
             union all select 'EVENT', event_name from information_schema.events \
             where event_schema = database()",
        )
        .await?;
    // Whatever refers to what.
    session.execute("set foreign_key_checks = 0").await?;
    for row in rows {
        if let [Some(kind), Some(name)] = row.as_slice() {
            session.execute(&format!("drop {kind} `{}`", name.replace('`', "``"))).await?;
        }
    }
    session.execute("set foreign_key_checks = default").await
}

/// pgbench's tables.
async fn fill_scaled(
    engine: EngineKind,
    scaled: Scaled,
    session: &mut dyn Session,
    observer: &dyn Observer,
    server_version: &str,
) -> Result<()> {
    for step in workload::load_steps(engine, scaled.scale, server_version) {
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
                        let percent = scaled.filler_random_percent;
                        workload::append_account(next_aid, percent, &mut lines);
                        next_aid += 1;
                    }
                    let fraction = (next_aid - 1) as f64 / rows as f64;
                    observer.event(&Event::Progress { fraction });
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

/// Has everything written to storage; false when it did not end in time.
pub(crate) async fn flush(
    engine: EngineKind,
    session: &mut dyn Session,
    at_most: Duration,
) -> Result<bool> {
    let Flush { start, left, end } = workload::flush(engine);
    for sql in start {
        session.execute(sql).await?;
    }
    let deadline = Instant::now() + at_most;
    let mut done = true;
    if let Some(left) = left {
        while number(session, left).await? > 0 {
            if Instant::now() >= deadline {
                done = false;
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    for sql in end {
        session.execute(sql).await?;
    }
    Ok(done)
}

/// Runs a query whose result is one number.
pub(crate) async fn number(session: &mut dyn Session, sql: &str) -> Result<u64> {
    let rows = session.query(sql).await?;
    rows.first()
        .and_then(|row| row.first())
        .and_then(|value| value.as_deref())
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::driver(format!("`{sql}` gave {rows:?} where a number is expected")))
}
