//! The statements of the workload slap against what mysqlslap printed (`slap/*.txt`, made by
//! `slap/capture.sh`), and what is ours alone.

#[path = "slap/printed.rs"]
mod printed;

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_core::rng::SplitMix64;
use bedplate_core::slap::{
    Class, Custom, Key, KeyKind, Keys, LoadType, Queries, SlapPlan, Statements, Step,
    parse_columns, split,
};

fn statements(plan: &SlapPlan) -> Statements {
    Statements::new(plan).expect("a plan that can run")
}

/// What Phoronix runs.
fn phoronix() -> SlapPlan {
    SlapPlan {
        int_columns: 4,
        char_columns: 4,
        key: KeyKind::Autoincrement,
        queries: Queries::PerClient(1000),
        ..SlapPlan::default()
    }
}

fn custom(query: &str) -> SlapPlan {
    let custom = Custom { query: query.into(), delimiter: ";".into(), ..Custom::default() };
    SlapPlan { custom, ..SlapPlan::default() }
}

#[test]
fn captured_cases_are_equal() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slap");
    let mut compared = 0;
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let (head, captured): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("# "));
        // The first line is the version.
        let arguments: Vec<&str> = head[1..].iter().map(|line| &line[2..]).collect();
        let (plan, clients) = printed::plan(&arguments);
        assert_eq!(printed::lines(&plan, clients), captured, "{}", path.display());
        compared += 1;
    }
    assert_eq!(compared, 9);
}

#[test]
fn the_phoronix_form_has_99_rows_and_545_inserts() {
    let statements = statements(&phoronix());
    assert_eq!(
        statements.create,
        ["CREATE TABLE `t1` (id serial,intcol1 INT(32) ,intcol2 INT(32) ,intcol3 INT(32) ,\
             intcol4 INT(32) ,charcol1 VARCHAR(128),charcol2 VARCHAR(128),charcol3 VARCHAR(128),\
             charcol4 VARCHAR(128))"]
    );
    assert_eq!(statements.preload().count(), 99);
    assert!(statements.rows[0].starts_with(
        "INSERT INTO t1 VALUES (NULL,1804289383,846930886,1681692777,1714636915,'tvmC9127"
    ));
    assert_eq!(statements.queries.len(), 11);
    assert!(statements.take_keys());
    let mut classes = BTreeMap::new();
    for step in statements.steps(1000) {
        let Step::Query(index) = step else { panic!("{step:?} without commits or detaching") };
        *classes.entry(statements.queries[index].class.word()).or_insert(0) += 1;
    }
    assert_eq!(classes, BTreeMap::from([("write", 545), ("read", 455)]));
}

#[test]
fn a_key_stands_between_two_pieces() {
    let statements = statements(&SlapPlan { load_type: LoadType::Update, ..phoronix() });
    let query = &statements.queries[0];
    assert!(query.takes_key());
    assert!(query.text("54").ends_with("' WHERE id =  '54'"));
    assert!(query.prepared_text().ends_with("' WHERE id =  ?"));
}

#[test]
fn a_total_is_split_exactly() {
    for (total, clients, shares) in [
        (10, 3, vec![4, 3, 3]),
        (5, 8, vec![1, 1, 1, 1, 1, 0, 0, 0]),
        (12, 4, vec![3, 3, 3, 3]),
        (u64::MAX, 2, vec![u64::MAX / 2 + 1, u64::MAX / 2]),
        (7, 0, vec![]),
    ] {
        assert_eq!(split(total, clients).collect::<Vec<_>>(), shares, "{total} over {clients}");
    }
    for clients in 1..=64 {
        assert_eq!(split(1_000_003, clients).sum::<u64>(), 1_000_003);
    }
    assert_eq!(Queries::PerClient(9).of_clients(2, 11).collect::<Vec<_>>(), [9, 9]);
    assert_eq!(Queries::OnePass.of_clients(2, 11).collect::<Vec<_>>(), [11, 11]);
}

#[test]
fn nothing_uncommitted_is_lost_by_detaching() {
    use Step::{AutocommitOff, Commit, Query, Reconnect};
    let plan = SlapPlan { detach_every: 2, ..SlapPlan::default() };
    let steps: Vec<Step> = statements(&plan).steps(5).collect();
    assert_eq!(
        steps,
        [Query(0), Query(1), Reconnect, Query(2), Query(3), Reconnect, Query(4)],
        "detached after each two and not at the start"
    );

    let plan = SlapPlan { commit_every: 3, ..plan };
    let steps: Vec<Step> = statements(&plan).steps(7).collect();
    let expected = [
        vec![AutocommitOff, Query(0), Query(1), Commit],
        vec![Reconnect, AutocommitOff, Query(2), Commit, Query(3), Commit],
        vec![Reconnect, AutocommitOff, Query(4), Query(5), Commit],
        vec![Reconnect, AutocommitOff, Query(6), Commit],
    ];
    assert_eq!(steps, expected.concat());
    assert_eq!(statements(&plan).steps(0).count(), 0);
}

#[test]
fn keys_are_drawn_evenly_from_those_present() {
    let mut random = SplitMix64::new(20);
    let keys = Keys::UpTo(99);
    let mut counts = [0_u32; 99];
    for _ in 0..99_000 {
        match keys.draw(&mut random) {
            Some(Key::Number(number @ 1..=99)) => counts[number as usize - 1] += 1,
            other => panic!("{other:?}"),
        }
    }
    // Standard deviation of each count is 31.5; five of them either way.
    assert!(counts.iter().all(|count| count.abs_diff(1_000) < 158), "{counts:?}");

    let read = Keys::Read(vec!["a".into()]);
    assert_eq!(read.draw(&mut random).map(|key| key.to_string()), Some("a".into()));
    assert_eq!(Keys::UpTo(0).draw(&mut random), None);
}

#[test]
fn the_users_own_statements_are_cut_whole() {
    let mut plan = custom("select 1;; select 2 ;\n(SELECT 3);insert into a values (1);;");
    plan.custom.create = "drop table if exists a; create or replace temporary table a (b int);\
                          create table b (c int)"
        .into();
    plan.engine = "aria:row_format=page".into();
    let made = statements(&plan);
    let queries: Vec<(String, Class)> =
        made.queries.iter().map(|query| (query.text(""), query.class)).collect();
    assert_eq!(
        queries,
        [
            ("select 1".into(), Class::Read),
            ("select 2".into(), Class::Read),
            ("(SELECT 3)".into(), Class::Read),
            ("insert into a values (1)".into(), Class::Write),
        ]
    );
    assert_eq!(
        made.create,
        [
            "drop table if exists a",
            "create or replace temporary table a (b int) Engine = aria row_format=page",
            "create table b (c int) Engine = aria row_format=page",
        ]
    );
    assert_eq!(made.preload().count(), 0);

    let mut plan = custom("select 1 go select 2 -- gone");
    plan.custom.delimiter = " go ".into();
    let texts: Vec<String> = statements(&plan).queries.iter().map(|query| query.text("")).collect();
    assert_eq!(texts, ["select 1", "select 2 -- gone"]);
}

#[test]
fn classes_look_past_comments() {
    for (text, class) in [
        ("/* a */ # b\n-- c\n select 1", Class::Read),
        ("/*!50000 select 1 */", Class::Write),
        ("explain select 1", Class::Read),
        ("selection", Class::Write),
        ("/* select", Class::Write),
        ("call p()", Class::Write),
    ] {
        assert_eq!(statements(&custom(text)).queries[0].class, class, "{text}");
    }
}

#[test]
fn plans_that_cannot_run_are_refused() {
    let plan = SlapPlan::default;
    for (plan, message) in [
        (
            SlapPlan { int_columns: 0, char_columns: 0, ..plan() },
            "slap: `int_columns` and `char_columns` are both 0",
        ),
        (
            SlapPlan { write_number: 0, ..plan() },
            "slap: `write_number` is 0, so the table would not be created",
        ),
        (
            SlapPlan { unique_write_number: 0, ..plan() },
            "slap: `unique_write_number` is 0, so there are no rows",
        ),
        (
            SlapPlan { load_type: LoadType::Key, ..plan() },
            "slap: load type `key` needs a key column",
        ),
        (
            SlapPlan { key: KeyKind::Guid, write_number: 1, ..plan() },
            "slap: queries by key need rows, and `write_number` is 1",
        ),
        (SlapPlan { queries: Queries::Total(0), ..plan() }, "slap: the number of queries is 0"),
        (SlapPlan { iterations: 0, ..plan() }, "slap: `iterations` is 0"),
        (
            SlapPlan { engine: "innodb,aria".into(), ..plan() },
            "slap: `engine` names several: `innodb,aria`",
        ),
        (SlapPlan { engine: ":a".into(), ..plan() }, "slap: `engine` has no name: `:a`"),
        (
            SlapPlan { custom: Custom { delimiter: String::new(), ..Custom::default() }, ..plan() },
            "slap: `delimiter` is empty",
        ),
        (
            SlapPlan {
                custom: Custom { create: "create table a (b int)".into(), ..Custom::default() },
                ..plan()
            },
            "slap: `query` has no statement",
        ),
        (
            SlapPlan { int_columns: 4, ..custom("select 1") },
            "slap: `int_columns` is about generated statements, but `query` is given",
        ),
    ] {
        assert_eq!(plan.check().expect_err(message).message, message);
    }
    // What draws no key needs no rows.
    let write = SlapPlan { key: KeyKind::Guid, write_number: 1, ..plan() };
    assert_eq!(SlapPlan { load_type: LoadType::Write, ..write }.check(), Ok(()));
    assert_eq!(SlapPlan { write_number: 1, unique_write_number: 0, ..plan() }.check(), Ok(()));
}

#[test]
fn columns_are_written_as_for_mysqlslap() {
    assert_eq!(parse_columns("4"), Ok((4, false)));
    assert_eq!(parse_columns("4:1"), Ok((4, true)));
    assert_eq!(parse_columns("4:0"), Ok((4, false)));
    for wrong in ["", "a", "-1", "4:", "4:2", "4:1:1"] {
        let message = format!("slap: `{wrong}` is not a number of columns");
        assert_eq!(parse_columns(wrong).expect_err(wrong).message, message);
    }
}

#[test]
fn a_plan_survives_json_and_refuses_unknown_keys() {
    let text = serde_json::to_string(&phoronix()).expect("JSON");
    assert_eq!(serde_json::from_str::<SlapPlan>(&text).expect("a plan"), phoronix());
    let more = text.replacen('{', "{\"rows\":1,", 1);
    assert!(serde_json::from_str::<SlapPlan>(&more).is_err());
}
