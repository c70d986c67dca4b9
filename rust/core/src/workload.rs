//! Workloads are data: a schema, a load, a script and invariants.
//!
//! The built-ins are pgbench's: the same tables, rows, statements and random ranges (read in
//! pgbench 13 and 15, which agree), so that numbers can be compared with it. On MariaDB they are the
//! same in its dialect: InnoDB tables with the key in the table from the start, since InnoDB keeps
//! rows in the order of their key, and `COMMIT` for `END`.

use crate::error::{Error, Result};
use crate::plan::{EngineKind, WorkloadKind};
use crate::rng::SplitMix64;
use crate::script::Script;

/// Version of the built-in workloads; it changes whenever the same plan would make other data or
/// other statements.
pub const WORKLOAD_VERSION: u32 = 1;

const BRANCHES_PER_SCALE: u64 = 1;
const TELLERS_PER_SCALE: u64 = 10;
const ACCOUNTS_PER_SCALE: u64 = 100_000;
/// From this scale on pgbench makes account numbers 64 bits wide.
const SCALE_OF_WIDE_ACCOUNTS: u32 = 20_000;
/// From this server version on pgbench copies accounts with `FREEZE`.
const FIRST_MAJOR_OF_FROZEN_COPY: u32 = 14;

/// Width of an account's filler.
const FILLER_BYTES: usize = 84;
/// Letters that need no escape in the format of COPY and LOAD DATA.
const FILLER_LETTERS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// So that fillers are not drawn like a transaction's values.
const FILLER_SEED: u64 = 0xF1_11E4;

const TPCB: &str = "\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
";

const SIMPLE_UPDATE: &str = "\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
";

const SELECT_ONLY: &str = "\
\\set aid random(1, 100000 * :scale)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
";

/// One step of filling the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadStep {
    /// SQL that is executed as it stands.
    Execute(String),
    /// A bulk load (`COPY … FROM STDIN`, `LOAD DATA LOCAL INFILE`) of `rows` lines, made by
    /// [`append_account`].
    CopyAccounts {
        /// The statement that starts it.
        sql: String,
        /// Number of lines.
        rows: u64,
    },
}

/// Something that must hold after the load has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invariant {
    /// What is claimed, for the report.
    pub claim: &'static str,
    /// A query of one row whose columns must all be equal.
    pub sql: &'static str,
}

/// The compiled script of a built-in workload; its one given variable is `scale`.
///
/// # Errors
/// For slap, which has none; the other texts are tested.
pub fn script(kind: WorkloadKind, engine: EngineKind) -> Result<Script> {
    let text = match kind {
        WorkloadKind::Tpcb => TPCB,
        WorkloadKind::SimpleUpdate => SIMPLE_UPDATE,
        WorkloadKind::SelectOnly => SELECT_ONLY,
        WorkloadKind::Slap => {
            return Err(Error::workload("slap is a list of statements and has no script"));
        }
    };
    match engine {
        EngineKind::Postgres => Script::compile(text, &["scale"]),
        EngineKind::MariaDb => Script::compile(&text.replace("END;", "COMMIT;"), &["scale"]),
    }
}

/// The steps that fill the database of an engine of the given live version.
pub fn load_steps(engine: EngineKind, scale: u32, server_version: &str) -> Vec<LoadStep> {
    match engine {
        EngineKind::Postgres => postgres_load_steps(scale, server_version),
        EngineKind::MariaDb => mariadb_load_steps(scale),
    }
}

/// pgbench's initialisation steps `tgvp`: tables, client-side generation in one transaction, vacuum,
/// primary keys. The accounts are copied frozen where pgbench does so: not into PostgreSQL 13.
fn postgres_load_steps(scale: u32, server_version: &str) -> Vec<LoadStep> {
    let aid = if scale >= SCALE_OF_WIDE_ACCOUNTS { "bigint" } else { "int" };
    let execute = |sql: String| LoadStep::Execute(sql);
    let mut steps = vec![
        execute(format!(
            "create table pgbench_history(tid int,bid int,aid    {aid},delta int,mtime timestamp,filler char(22))"
        )),
        execute("create table pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84)) with (fillfactor=100)".into()),
        execute(format!(
            "create table pgbench_accounts(aid    {aid} not null,bid int,abalance int,filler char(84)) with (fillfactor=100)"
        )),
        execute("create table pgbench_branches(bid int not null,bbalance int,filler char(88)) with (fillfactor=100)".into()),
        execute("begin".into()),
        execute("truncate table pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers".into()),
    ];
    let scale = u64::from(scale);
    steps.extend(branches_and_tellers(scale));
    let frozen = major(server_version) >= FIRST_MAJOR_OF_FROZEN_COPY;
    let options = if frozen { " with (freeze on)" } else { "" };
    steps.push(LoadStep::CopyAccounts {
        sql: format!("copy pgbench_accounts from stdin{options}"),
        rows: scale * ACCOUNTS_PER_SCALE,
    });
    steps.push(execute("commit".into()));
    for table in ["branches", "tellers", "accounts", "history"] {
        steps.push(execute(format!("vacuum analyze pgbench_{table}")));
    }
    for (table, key) in [("branches", "bid"), ("tellers", "tid"), ("accounts", "aid")] {
        steps.push(execute(format!("alter table pgbench_{table} add primary key ({key})")));
    }
    steps
}

/// One statement for each row, as pgbench does.
fn branches_and_tellers(scale: u64) -> impl Iterator<Item = LoadStep> {
    let branches = (1..=scale * BRANCHES_PER_SCALE)
        .map(|bid| format!("insert into pgbench_branches(bid,bbalance) values({bid},0)"));
    let tellers = (0..scale * TELLERS_PER_SCALE).map(|teller| {
        let (tid, bid) = (teller + 1, teller / TELLERS_PER_SCALE + 1);
        format!("insert into pgbench_tellers(tid,bid,tbalance) values ({tid},{bid},0)")
    });
    branches.chain(tellers).map(LoadStep::Execute)
}

/// The same tables and rows on InnoDB. `mtime` is a datetime, for MariaDB's timestamp sets itself.
fn mariadb_load_steps(scale: u32) -> Vec<LoadStep> {
    let aid = if scale >= SCALE_OF_WIDE_ACCOUNTS { "bigint" } else { "int" };
    let rows = u64::from(scale) * ACCOUNTS_PER_SCALE;
    let tables = [
        format!(
            "pgbench_history(tid int,bid int,aid {aid},delta int,mtime datetime,filler char(22))"
        ),
        "pgbench_tellers(tid int not null primary key,bid int,tbalance int,filler char(84))".into(),
        format!(
            "pgbench_accounts(aid {aid} not null primary key,bid int,abalance int,filler char(84))"
        ),
        "pgbench_branches(bid int not null primary key,bbalance int,filler char(88))".into(),
    ];
    let mut steps: Vec<LoadStep> = tables
        .map(|table| {
            LoadStep::Execute(format!("create table {table} engine=InnoDB character set latin1"))
        })
        .into();
    steps.push(LoadStep::Execute("begin".into()));
    steps.extend(branches_and_tellers(u64::from(scale)));
    steps.push(LoadStep::Execute("commit".into()));
    steps.push(LoadStep::CopyAccounts {
        sql: "load data local infile 'accounts' into table pgbench_accounts".into(),
        rows,
    });
    for table in ["branches", "tellers", "accounts", "history"] {
        steps.push(LoadStep::Execute(format!("analyze table pgbench_{table}")));
    }
    steps
}

/// Query of one number: bytes of the loaded tables and their indexes.
pub fn database_bytes_query(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::Postgres => {
            "select sum(pg_total_relation_size(name)) from unnest(array['pgbench_accounts', \
             'pgbench_branches', 'pgbench_tellers', 'pgbench_history']::regclass[]) as name"
        }
        EngineKind::MariaDb => {
            "select cast(coalesce(sum(data_length + index_length), 0) as unsigned) \
             from information_schema.tables where table_schema = database()"
        }
    }
}

/// How an engine is asked to write everything to storage before measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// Statements that start it, in order.
    pub start: &'static [&'static str],
    /// A query of one number that is 0 once everything is written; none where the statements wait.
    pub left: Option<&'static str>,
    /// Statements that put back what `start` changed.
    pub end: &'static [&'static str],
}

/// The flush of an engine: a checkpoint, or for InnoDB, which has no such statement, a limit of zero
/// dirty pages until there are none.
pub fn flush(engine: EngineKind) -> Flush {
    match engine {
        EngineKind::Postgres => Flush { start: &["checkpoint"], left: None, end: &[] },
        EngineKind::MariaDb => Flush {
            start: &[
                "set @bedplate_pct = @@global.innodb_max_dirty_pages_pct",
                "set @bedplate_pct_lwm = @@global.innodb_max_dirty_pages_pct_lwm",
                "set global innodb_max_dirty_pages_pct_lwm = 0",
                "set global innodb_max_dirty_pages_pct = 0",
            ],
            left: Some(
                "select variable_value from information_schema.global_status \
                 where variable_name = 'INNODB_BUFFER_POOL_PAGES_DIRTY'",
            ),
            end: &[
                "set global innodb_max_dirty_pages_pct = @bedplate_pct",
                "set global innodb_max_dirty_pages_pct_lwm = @bedplate_pct_lwm",
            ],
        },
    }
}

/// The first number of a version such as `15.4` or `16beta1`; 0 when there is none.
pub(crate) fn major(version: &str) -> u32 {
    let end = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..end].parse().unwrap_or(0)
}

/// Appends the COPY line of account `aid`, from 1: number, branch, balance 0 and a filler, which
/// char(84) pads with blanks. pgbench's is empty; so much of it as is asked for is random text of 64
/// letters, the same for an account whatever else is loaded.
pub fn append_account(aid: u64, filler_random_percent: u32, out: &mut Vec<u8>) {
    use std::io::Write;
    let bid = (aid - 1) / ACCOUNTS_PER_SCALE + 1;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{aid}\t{bid}\t0\t");
    let mut random = SplitMix64::stream(FILLER_SEED, aid);
    let mut letters = FILLER_BYTES * filler_random_percent as usize / 100;
    while letters > 0 {
        let word = random.next_u64().to_le_bytes();
        let taken = letters.min(word.len());
        out.extend(word[..taken].iter().map(|byte| FILLER_LETTERS[usize::from(byte % 64)]));
        letters -= taken;
    }
    out.push(b'\n');
}

/// What must hold after the load. That the history has as many rows as transactions were committed
/// is checked apart, against [`HISTORY_ROWS`].
pub fn invariants(kind: WorkloadKind) -> &'static [Invariant] {
    match kind {
        WorkloadKind::Tpcb => &[Invariant {
            claim: "the sums of account, teller and branch balances and of history deltas agree",
            sql: "select (select sum(abalance) from pgbench_accounts), \
                  (select sum(tbalance) from pgbench_tellers), \
                  (select sum(bbalance) from pgbench_branches), \
                  (select coalesce(sum(delta), 0) from pgbench_history)",
        }],
        WorkloadKind::SimpleUpdate => &[Invariant {
            claim: "the sums of account balances and of history deltas agree",
            sql: "select (select sum(abalance) from pgbench_accounts), \
                  (select coalesce(sum(delta), 0) from pgbench_history)",
        }],
        WorkloadKind::SelectOnly => &[Invariant {
            claim: "nothing has changed",
            sql: "select (select sum(abalance) from pgbench_accounts), \
                  (select sum(tbalance) from pgbench_tellers), \
                  (select sum(bbalance) from pgbench_branches), 0",
        }],
        WorkloadKind::Slap => &[],
    }
}

/// Query of one number: rows in the history.
pub const HISTORY_ROWS: &str = "select count(*) from pgbench_history";

/// Rows in the history that `committed` transactions of the workload leave behind.
pub fn expected_history_rows(kind: WorkloadKind, committed: u64) -> u64 {
    match kind {
        WorkloadKind::Tpcb | WorkloadKind::SimpleUpdate => committed,
        WorkloadKind::SelectOnly | WorkloadKind::Slap => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_compile_to_the_statements_of_pgbench() {
        for engine in [EngineKind::Postgres, EngineKind::MariaDb] {
            let count = |kind| script(kind, engine).expect("compiles").statements().count();
            assert_eq!(count(WorkloadKind::Tpcb), 7);
            assert_eq!(count(WorkloadKind::SimpleUpdate), 5);
            assert_eq!(count(WorkloadKind::SelectOnly), 1);
        }
        let last = |engine| {
            let script = script(WorkloadKind::Tpcb, engine).expect("compiles");
            script.statements().last().map(|statement| statement.text.clone())
        };
        assert_eq!(last(EngineKind::Postgres).as_deref(), Some("END;"));
        assert_eq!(last(EngineKind::MariaDb).as_deref(), Some("COMMIT;"));
    }

    #[test]
    fn accounts_fill_their_branches() {
        let line = |aid| {
            let mut out = Vec::new();
            append_account(aid, 0, &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(line(1), "1\t1\t0\t\n");
        assert_eq!(line(100_000), "100000\t1\t0\t\n");
        assert_eq!(line(100_001), "100001\t2\t0\t\n");
    }

    #[test]
    fn fillers_are_random_as_far_as_asked() {
        let filler = |aid, percent| {
            let mut out = Vec::new();
            append_account(aid, percent, &mut out);
            let line = String::from_utf8(out).expect("text");
            line.trim_end_matches('\n').rsplit('\t').next().map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(filler(7, 0), "");
        assert_eq!((filler(7, 50).len(), filler(7, 100).len()), (42, 84));
        assert_eq!(filler(7, 100), filler(7, 100));
        assert!(filler(7, 100).starts_with(&filler(7, 50)));
        // All letters are met about equally often: 84,000 draws of 64 letters, six deviations.
        let mut counts = std::collections::BTreeMap::new();
        (1..=1000).for_each(|aid| {
            filler(aid, 100).chars().for_each(|letter| *counts.entry(letter).or_insert(0) += 1);
        });
        assert_eq!(counts.len(), 64);
        assert!(counts.values().all(|count: &i32| (count - 1312).abs() < 217), "{counts:?}");
    }

    #[test]
    fn wide_accounts_start_at_scale_20000() {
        let wide = |scale| {
            load_steps(EngineKind::Postgres, scale, "13.23")
                .iter()
                .any(|step| matches!(step, LoadStep::Execute(sql) if sql.contains("bigint")))
        };
        assert!(!wide(19_999));
        assert!(wide(20_000));
    }

    #[test]
    fn accounts_are_frozen_from_14_on() {
        let copy = |version| {
            load_steps(EngineKind::Postgres, 1, version).into_iter().find_map(|step| match step {
                LoadStep::CopyAccounts { sql, .. } => Some(sql),
                LoadStep::Execute(_) => None,
            })
        };
        let plain = Some("copy pgbench_accounts from stdin".into());
        let frozen = Some("copy pgbench_accounts from stdin with (freeze on)".into());
        assert_eq!(copy("13.23"), plain);
        assert_eq!(copy("9.6.24"), plain);
        assert_eq!(copy("14.0"), frozen);
        assert_eq!(copy("16beta1"), frozen);
    }
}
