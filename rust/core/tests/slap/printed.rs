//! What `mysqlslap --only-print` writes, from our statements; and our plan, from its arguments. Used
//! by the tests against captured output here, and by those against the installed client in the
//! adapters.

use bedplate_core::slap::{
    AUTOCOMMIT_OFF, COMMIT, KeyKind, LoadType, Queries, SlapPlan, Statements, Step, parse_columns,
};

/// Without a server mysqlslap has no keys and prints this one.
const NO_KEY: &str = "796c4422-1d94-102a-9d6d-00e0812d";

/// The plan and the number of clients that arguments of mysqlslap ask for.
pub(crate) fn plan(arguments: &[impl AsRef<str>]) -> (SlapPlan, u32) {
    let mut plan = SlapPlan::default();
    let mut clients = 1;
    for argument in arguments {
        let argument = argument.as_ref();
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        let number = || value.parse().expect("a number");
        match name.trim_start_matches("--").trim_start_matches("auto-generate-sql-") {
            "auto-generate-sql" => {}
            "number-int-cols" => {
                (plan.int_columns, plan.int_indexes) = parse_columns(value).expect("columns");
            }
            "number-char-cols" => {
                (plan.char_columns, plan.char_indexes) = parse_columns(value).expect("columns");
            }
            "secondary-indexes" => plan.secondary_indexes = value.parse().expect("a number"),
            "add-autoincrement" => plan.key = KeyKind::Autoincrement,
            "guid-primary" => plan.key = KeyKind::Guid,
            "load-type" => {
                plan.load_type = match value {
                    "mixed" => LoadType::Mixed,
                    "write" => LoadType::Write,
                    "update" => LoadType::Update,
                    "key" => LoadType::Key,
                    "read" => LoadType::Read,
                    other => panic!("{other} is not a load type"),
                };
            }
            "write-number" => plan.write_number = number(),
            "unique-write-number" => plan.unique_write_number = number(),
            "unique-query-number" => plan.unique_query_number = number(),
            "execute-number" => plan.queries = Queries::PerClient(number()),
            "number-of-queries" => plan.queries = Queries::Total(number()),
            "commit" => plan.commit_every = number(),
            "detach" => plan.detach_every = number(),
            "iterations" => plan.iterations = value.parse().expect("a number"),
            "concurrency" => clients = value.parse().expect("a number"),
            "engine" => plan.engine = value.into(),
            "create" => plan.custom.create = value.into(),
            "query" => plan.custom.query = value.into(),
            "pre-query" => plan.custom.pre_query = value.into(),
            "post-query" => plan.custom.post_query = value.into(),
            "delimiter" => plan.custom.delimiter = value.into(),
            other => panic!("{other} is not known here"),
        }
    }
    (plan, clients)
}

/// The lines that mysqlslap would print.
pub(crate) fn lines(plan: &SlapPlan, clients: u32) -> Vec<String> {
    let statements = Statements::new(plan).expect("a plan that can run");
    let mut lines = Vec::new();
    let drop = "DROP SCHEMA IF EXISTS `mysqlslap`";
    // Where the user makes no table, no schema is made.
    let makes_schema = !statements.create.is_empty();
    for _ in 0..plan.iterations {
        if makes_schema {
            lines.extend([drop, "CREATE SCHEMA `mysqlslap`", "use mysqlslap"].map(str::to_owned));
        }
        lines.extend(statements.create.iter().cloned());
        lines.extend(statements.preload().map(str::to_owned));
        if plan.commit_every > 0 {
            // On the connection that made the table; it has nothing to commit any more.
            lines.push(AUTOCOMMIT_OFF.into());
        }
        lines.extend(statements.pre_query.iter().cloned());
        let pass = statements.queries.len() as u64;
        for queries in plan.queries.of_clients(clients, pass) {
            lines.extend(statements.steps(queries).filter_map(|step| match step {
                Step::AutocommitOff => Some(AUTOCOMMIT_OFF.into()),
                Step::Commit => Some(COMMIT.into()),
                Step::Query(index) => Some(statements.queries[index].text(NO_KEY)),
                Step::Reconnect => None,
            }));
        }
        lines.extend(statements.post_query.iter().cloned());
    }
    if makes_schema {
        // Dropped at the end, after the last iteration.
        lines.push(drop.into());
    }
    lines.into_iter().map(|line| line + ";").collect()
}
