//! Our slap against the installed mysqlslap: what `--only-print` writes, over a table of load types,
//! kinds of key, columns, indexes and numbers. Keys are drawn at random while it runs, so without a
//! server both print the same stand-in.

#[path = "../../core/tests/slap/printed.rs"]
mod printed;

use std::process::{Command, Output};

/// Loads and keys; load type key needs a key.
const LOADS: [&str; 5] = ["mixed", "write", "update", "key", "read"];
const KEYS: [&str; 3] =
    ["", "--auto-generate-sql-add-autoincrement", "--auto-generate-sql-guid-primary"];
/// Integer and string columns.
const COLUMNS: [(&str, &str); 6] =
    [("1", "1"), ("4", "4"), ("2:1", "2:1"), ("3:1", "1"), ("0", "2"), ("2", "0")];
const SECONDARY_INDEXES: [u32; 2] = [0, 2];
/// Write number, unique write number, unique query number: mysqlslap's own, fewer rows than distinct
/// ones, more, few of all, and no second query.
const NUMBERS: [(u32, u32, u32); 5] = [(100, 10, 10), (4, 7, 3), (9, 2, 4), (2, 1, 1), (3, 2, 0)];

fn mysqlslap(arguments: &[String]) -> Output {
    Command::new("mysqlslap")
        .args(["--no-defaults", "--only-print"])
        .args(arguments)
        .output()
        .expect("mysqlslap, which `scripts/setup.sh test` installs")
}

/// Panics at the first line that differs. Threads of several clients print in any order, so their lines
/// are sorted before.
fn compare(arguments: &[String]) {
    let output = mysqlslap(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let theirs = String::from_utf8(output.stdout).expect("text");
    let mut theirs: Vec<&str> = theirs.lines().collect();
    let (plan, clients) = printed::plan(arguments);
    let mut ours = printed::lines(&plan, clients);
    if clients > 1 {
        theirs.sort_unstable();
        ours.sort_unstable();
    }
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {} of {arguments:?}", number + 1);
    }
    assert_eq!(ours.len(), theirs.len(), "lines of {arguments:?}");
}

fn arguments(given: &[&str]) -> Vec<String> {
    given.iter().filter(|argument| !argument.is_empty()).map(|&argument| argument.into()).collect()
}

#[test]
fn every_load_type_with_every_key_is_equal() {
    let mut compared = 0;
    for load in LOADS {
        for key in KEYS {
            if load == "key" && key.is_empty() {
                continue;
            }
            for (ints, chars) in COLUMNS {
                for secondary in SECONDARY_INDEXES {
                    for (writes, unique_writes, unique_queries) in NUMBERS {
                        compare(&arguments(&[
                            "--auto-generate-sql",
                            &format!("--auto-generate-sql-load-type={load}"),
                            key,
                            &format!("--number-int-cols={ints}"),
                            &format!("--number-char-cols={chars}"),
                            &format!("--auto-generate-sql-secondary-indexes={secondary}"),
                            &format!("--auto-generate-sql-write-number={writes}"),
                            &format!("--auto-generate-sql-unique-write-number={unique_writes}"),
                            &format!("--auto-generate-sql-unique-query-number={unique_queries}"),
                        ]));
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, 14 * 6 * 2 * 5);
}

#[test]
fn further_options_are_equal() {
    let cases: [&[&str]; 12] = [
        &[],
        &["--auto-generate-sql-execute-number=25", "--concurrency=2", "--iterations=2"],
        &["--number-of-queries=24", "--concurrency=3"],
        &["--auto-generate-sql-execute-number=25", "--concurrency=2", "--commit=4"],
        &["--auto-generate-sql-execute-number=24", "--commit=4"],
        &["--auto-generate-sql-execute-number=3", "--commit=10", "--concurrency=2"],
        &["--commit=1"],
        // Detaching does not show in what is printed.
        &["--auto-generate-sql-execute-number=25", "--detach=4"],
        &["--engine=innodb"],
        &["--engine=memory:max_rows=23"],
        &["--engine=aria:comment='a:b'"],
        &["--pre-query=set @x = 1", "--post-query=set @x = 2"],
    ];
    for case in cases {
        compare(&arguments(&[&["--auto-generate-sql"], case].concat()));
    }
    // What Phoronix runs.
    for clients in [1, 4] {
        compare(&arguments(&[
            "--auto-generate-sql",
            "--number-int-cols=4",
            "--number-char-cols=4",
            "--auto-generate-sql-add-autoincrement",
            "--auto-generate-sql-execute-number=1000",
            &format!("--concurrency={clients}"),
        ]));
    }
}

#[test]
fn statements_of_the_users_own_are_equal() {
    let create = "--create=create table a (b int);insert into a values (1)";
    let cases: [&[&str]; 6] = [
        &["--query=select 1"],
        &["--query=select 1\nselect 2", "--concurrency=2"],
        &["--query=select 1;select ';'", "--delimiter=;", "--number-of-queries=10"],
        &[create, "--query=select b from a", "--delimiter=;", "--engine=aria:transactional=0"],
        &[create, "--query=select b from a;delete from a", "--delimiter=;", "--iterations=2"],
        &[
            create,
            "--query=update a set b = 2;select b from a;update a set b = 3",
            "--pre-query=set @x = 1;set @y = 2",
            "--post-query=delete from a",
            "--delimiter=;",
            "--concurrency=2",
            "--auto-generate-sql-execute-number=7",
            "--commit=2",
        ],
    ];
    for case in cases {
        compare(&arguments(case));
    }
}

/// Where we differ on purpose; should mysqlslap be mended, this says so.
#[test]
fn known_faults_are_still_there_and_not_ours() {
    let queries = |given: &[&str]| {
        let given = arguments(given);
        let output = mysqlslap(&given);
        let theirs = String::from_utf8(output.stdout).expect("text").lines().count();
        let (plan, clients) = printed::plan(&given);
        (theirs, printed::lines(&plan, clients).len())
    };
    assert_eq!(
        queries(&["--query=select 1", "--number-of-queries=10", "--concurrency=3"]),
        (9, 10)
    );
    assert_eq!(queries(&["--query=select 1", "--number-of-queries=5", "--concurrency=8"]), (8, 5));
    // The rest of the list after an empty statement is forgotten, the length of the list is not.
    let given = arguments(&["--query=select 1;;select 2", "--delimiter=;"]);
    let theirs = String::from_utf8(mysqlslap(&given).stdout).expect("text");
    assert_eq!(theirs, "select 1;\nselect 1;\nselect 1;\n");
    assert_eq!(printed::lines(&printed::plan(&given).0, 1), ["select 1;", "select 2;"]);
    // Only the first character of the delimiter is taken away.
    let given = arguments(&["--query=select 1goselect 2", "--delimiter=go"]);
    let theirs = String::from_utf8(mysqlslap(&given).stdout).expect("text");
    assert_eq!(theirs, "select 1;\noselect 2;\n");
    assert_eq!(printed::lines(&printed::plan(&given).0, 1), ["select 1;", "select 2;"]);
    // Without a key column both refuse load type key.
    let given = arguments(&["--auto-generate-sql", "--auto-generate-sql-load-type=key"]);
    assert_eq!(mysqlslap(&given).status.code(), Some(1));
    assert!(printed::plan(&given).0.check().is_err());
}
