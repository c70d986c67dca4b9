//! The workload `slap`: what mysqlslap makes and sends, without the sending.
//!
//! mysqlslap builds all its statement texts before it seeds its generator, so they hold the values
//! that the GNU C library's `random()` gives after the seed 1 and are the same in every run on Linux.
//! They are made here from the plan alone, in the same order and with the same spaces, and compared
//! with what `mysqlslap --only-print` of MariaDB 10.11 writes. Only keys are drawn while it runs.
//!
//! Where mysqlslap does not do what its manual says, this does what the manual says:
//!
//! - A total of queries is split exactly ([`split`]); mysqlslap rounds down, or runs a whole pass when
//!   there are more clients than queries.
//! - Plans that make it hang, crash or use a table that was not created are refused
//!   ([`SlapPlan::check`]).
//! - A connection is detached after every K statements of a client, and a client that commits by itself
//!   commits before and turns autocommit off again; mysqlslap detaches before the first statement too,
//!   starts to count anew with each pass over its list, loses what is not committed and goes on with
//!   autocommit.
//! - In texts given by the user, the whole delimiter separates, and nothing between two delimiters is
//!   no statement; mysqlslap takes away only the delimiter's first character and stops at the first
//!   empty statement. As there, a delimiter inside quotes separates too.
//! - An engine is given to each `CREATE TABLE` of the user's; mysqlslap gives it to the first
//!   statement, whatever it is.
//! - Texts end where they end; mysqlslap sends a zero byte after generated texts that end in neither a
//!   key nor an engine, which shows in the server's general log and means nothing.

mod random;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rng::SplitMix64;
use random::GlibcRandom;

/// Characters of generated strings; mysqlslap leaves out `U` and `V`.
const ALPHABET: &[u8; 60] = b"0123456789ABCDEFGHIJKLMNOPQRSTWXYZabcdefghijklmnopqrstuvwxyz";
/// Length of a generated string.
const STRING_LENGTH: usize = 126;
/// The seed that `random()` has before `srandom` is called.
const INITIAL_SEED: u32 = 1;

/// Reads the keys that are present after the preload, one column of them.
pub const KEYS: &str = "SELECT id from t1";
/// Sent first by each client that commits by itself.
pub const AUTOCOMMIT_OFF: &str = "SET AUTOCOMMIT=0";
/// Ends a group of statements.
pub const COMMIT: &str = "COMMIT";

/// What mysqlslap would be told; the defaults are its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlapPlan {
    /// Columns `INT(32)` of the generated table.
    pub int_columns: u32,
    /// Whether each of them has an index.
    pub int_indexes: bool,
    /// Columns `VARCHAR(128)` of the generated table.
    pub char_columns: u32,
    /// Whether each of them has an index.
    pub char_indexes: bool,
    /// Further columns, each with a unique key and filled by `uuid()`.
    pub secondary_indexes: u32,
    /// The key column `id`.
    pub key: KeyKind,
    /// What the generated queries do.
    pub load_type: LoadType,
    /// Statements before the queries, the `CREATE TABLE` among them: one row less than this.
    pub write_number: u64,
    /// Distinct rows, repeated until there are enough.
    pub unique_write_number: u64,
    /// Distinct queries after the first one, so the list is one longer than this.
    pub unique_query_number: u64,
    /// How many queries are sent.
    pub queries: Queries,
    /// Statements of a client between commits; 0 leaves autocommit on.
    pub commit_every: u64,
    /// Statements of a client between connections; 0 keeps one connection.
    pub detach_every: u64,
    /// How often the whole is run, each time with a fresh schema.
    pub iterations: u32,
    /// Storage engine, `NAME` or `NAME:OPTIONS`; empty leaves it to the server.
    pub engine: String,
    /// Texts of the user's own.
    pub custom: Custom,
}

/// The key column of the generated table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// None: queries concern the whole table.
    None,
    /// `id serial`.
    Autoincrement,
    /// `id varchar(36) primary key`, filled by `uuid()`.
    Guid,
}

impl KeyKind {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Autoincrement => "autoincrement",
            Self::Guid => "guid",
        }
    }
}

/// What the generated queries do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadType {
    /// `INSERT` and `SELECT` in turns, by key where there is one.
    Mixed,
    /// `INSERT`.
    Write,
    /// `UPDATE` of all columns, by key where there is one and else of the whole table.
    Update,
    /// `SELECT` by key.
    Key,
    /// `SELECT` of the whole table, with a key column too.
    Read,
}

impl LoadType {
    /// The word in specs, plans and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Write => "write",
            Self::Update => "update",
            Self::Key => "key",
            Self::Read => "read",
        }
    }
}

/// How many queries are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queries {
    /// Each client sends the list once.
    OnePass,
    /// Each client sends this many (mysqlslap's execute number).
    PerClient(u64),
    /// All clients together send this many (mysqlslap's number of queries).
    Total(u64),
}

impl Queries {
    /// Queries of each of `clients`, in the order of their numbers, when a pass over the list has
    /// `pass_queries`.
    pub fn of_clients(self, clients: u32, pass_queries: u64) -> impl Iterator<Item = u64> {
        let (each, rest) = match self {
            Self::OnePass => (pass_queries, 0),
            Self::PerClient(each) => (each, 0),
            Self::Total(total) => shares(total, clients),
        };
        (0..clients).map(move |client| each + u64::from(u64::from(client) < rest))
    }
}

/// Texts of the user's own. With a query, nothing is generated; `pre_query` and `post_query` go with
/// generated queries too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custom {
    /// Statements that make and fill the tables.
    pub create: String,
    /// The list of queries.
    pub query: String,
    /// Statements before the measured part.
    pub pre_query: String,
    /// Statements after the measured part.
    pub post_query: String,
    /// What stands between two statements.
    pub delimiter: String,
}

impl Default for Custom {
    fn default() -> Self {
        Self {
            create: String::new(),
            query: String::new(),
            pre_query: String::new(),
            post_query: String::new(),
            delimiter: "\n".into(),
        }
    }
}

impl Default for SlapPlan {
    fn default() -> Self {
        Self {
            int_columns: 1,
            int_indexes: false,
            char_columns: 1,
            char_indexes: false,
            secondary_indexes: 0,
            key: KeyKind::None,
            load_type: LoadType::Mixed,
            write_number: 100,
            unique_write_number: 10,
            unique_query_number: 10,
            queries: Queries::OnePass,
            commit_every: 0,
            detach_every: 0,
            iterations: 1,
            engine: String::new(),
            custom: Custom::default(),
        }
    }
}

impl SlapPlan {
    /// Whether nothing is generated.
    pub fn is_custom(&self) -> bool {
        !self.custom.query.trim().is_empty() || !self.custom.create.trim().is_empty()
    }

    /// Rows of the generated table before the queries start.
    pub fn preload_rows(&self) -> u64 {
        if self.is_custom() { 0 } else { self.write_number.saturating_sub(1) }
    }

    /// Queries of so many clients in one iteration; with queries of the user's own and no number, what
    /// a generated list would have.
    pub fn queries_of(&self, clients: u32) -> u64 {
        let list = self.unique_query_number.saturating_add(1);
        self.queries.of_clients(clients, list).fold(0, u64::saturating_add)
    }

    /// Refuses what cannot run or would not do what it says.
    ///
    /// # Errors
    /// A [`crate::ErrorKind::Spec`] error that names the key.
    pub fn check(&self) -> Result<()> {
        match self.queries {
            Queries::PerClient(0) | Queries::Total(0) => {
                return Err(Error::spec("slap: the number of queries is 0"));
            }
            Queries::OnePass | Queries::PerClient(_) | Queries::Total(_) => {}
        }
        if self.iterations == 0 {
            return Err(Error::spec("slap: `iterations` is 0"));
        }
        if self.engine.contains(',') {
            return Err(Error::spec(format!("slap: `engine` names several: `{}`", self.engine))
                .hint("make the engine a factor, one level for each"));
        }
        if self.engine.starts_with(':') {
            return Err(Error::spec(format!("slap: `engine` has no name: `{}`", self.engine)));
        }
        if self.custom.delimiter.is_empty() {
            return Err(Error::spec("slap: `delimiter` is empty"));
        }
        if self.is_custom() { self.check_custom() } else { self.check_generated() }
    }

    fn check_custom(&self) -> Result<()> {
        if statements_of(&self.custom.query, &self.custom.delimiter).next().is_none() {
            return Err(Error::spec("slap: `query` has no statement")
                .hint("`create` goes with `query`; without both, all is generated"));
        }
        let default = Self::default();
        let given = [
            ("int_columns", self.int_columns != default.int_columns),
            ("int_indexes", self.int_indexes != default.int_indexes),
            ("char_columns", self.char_columns != default.char_columns),
            ("char_indexes", self.char_indexes != default.char_indexes),
            ("secondary_indexes", self.secondary_indexes != default.secondary_indexes),
            ("key", self.key != default.key),
            ("load_type", self.load_type != default.load_type),
            ("write_number", self.write_number != default.write_number),
            ("unique_write_number", self.unique_write_number != default.unique_write_number),
            ("unique_query_number", self.unique_query_number != default.unique_query_number),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Error::spec(format!(
                "slap: `{name}` is about generated statements, but `query` is given"
            ))),
            None => Ok(()),
        }
    }

    fn check_generated(&self) -> Result<()> {
        if self.int_columns == 0 && self.char_columns == 0 {
            return Err(Error::spec("slap: `int_columns` and `char_columns` are both 0"));
        }
        if self.write_number == 0 {
            return Err(Error::spec(
                "slap: `write_number` is 0, so the table would not be created",
            )
            .hint("1 makes an empty table"));
        }
        if self.preload_rows() > 0 && self.unique_write_number == 0 {
            return Err(Error::spec("slap: `unique_write_number` is 0, so there are no rows")
                .hint("`write_number = 1` makes an empty table"));
        }
        if self.load_type == LoadType::Key && self.key == KeyKind::None {
            return Err(Error::spec("slap: load type `key` needs a key column")
                .hint("set `key` to `autoincrement` or `guid`"));
        }
        // The first query of load type mixed is an INSERT, so one alone draws no key.
        let draws_keys = self.key != KeyKind::None
            && match self.load_type {
                LoadType::Key | LoadType::Update => true,
                LoadType::Mixed => self.unique_query_number > 0,
                LoadType::Write | LoadType::Read => false,
            };
        if draws_keys && self.preload_rows() == 0 {
            return Err(Error::spec("slap: queries by key need rows, and `write_number` is 1")
                .hint("`write_number = N` makes N - 1 rows"));
        }
        Ok(())
    }
}

/// Reads a number of columns as mysqlslap writes it: `N`, or `N:1` for an index on each.
///
/// # Errors
/// A [`crate::ErrorKind::Spec`] error when it is neither (mysqlslap takes what it cannot read as 0).
pub fn parse_columns(text: &str) -> Result<(u32, bool)> {
    let (count, indexes) = match text.split_once(':') {
        Some((count, "1")) => (count, true),
        Some((count, "0")) => (count, false),
        Some(_) => ("", false),
        None => (text, false),
    };
    count.parse().map(|count| (count, indexes)).map_err(|_| {
        Error::spec(format!("slap: `{text}` is not a number of columns"))
            .hint("`N`, or `N:1` for an index on each column")
    })
}

/// `total` split over `clients`: the sum is exact and no two differ by more than one.
pub fn split(total: u64, clients: u32) -> impl Iterator<Item = u64> {
    Queries::Total(total).of_clients(clients, 0)
}

/// What each client gets at least, and how many get one more.
fn shares(total: u64, clients: u32) -> (u64, u64) {
    // Without clients there is nobody to get anything.
    let clients = u64::from(clients.max(1));
    (total / clients, total % clients)
}

/// Whether a statement changes anything, for tables of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SELECT` and other questions.
    Read,
    /// Everything else.
    Write,
}

impl Class {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The class of a statement of the user's, by its first word.
    fn of(statement: &str) -> Self {
        const QUESTIONS: [&str; 7] =
            ["SELECT", "WITH", "VALUES", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"];
        let first = first_words(statement).next().unwrap_or_default();
        if QUESTIONS.iter().any(|word| first.eq_ignore_ascii_case(word)) {
            Self::Read
        } else {
            Self::Write
        }
    }
}

/// One query of the list, with at most one place for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The text cut at the key: one piece without a key, two with one.
    pub pieces: Vec<String>,
    /// Whether it changes anything.
    pub class: Class,
}

impl Query {
    /// Whether a key is drawn for it.
    pub fn takes_key(&self) -> bool {
        self.pieces.len() > 1
    }

    /// The text with `key` in its place. Keys are numbers or UUIDs, so nothing has to be escaped.
    pub fn text(&self, key: &str) -> String {
        self.pieces.join(key)
    }

    /// The text for a prepared statement: `?` instead of the quoted key.
    pub fn prepared_text(&self) -> String {
        match self.pieces.as_slice() {
            [before, after] => format!(
                "{}?{}",
                before.strip_suffix('\'').unwrap_or(before),
                after.strip_prefix('\'').unwrap_or(after)
            ),
            pieces => pieces.concat(),
        }
    }
}

/// All statements of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statements {
    /// Make the tables; the user's own fill them too.
    pub create: Vec<String>,
    /// The distinct rows of the preload; see [`Self::preload`].
    pub rows: Vec<String>,
    /// Before the measured part.
    pub pre_query: Vec<String>,
    /// The list of queries that each client sends, from its start again and again.
    pub queries: Vec<Query>,
    /// After the measured part.
    pub post_query: Vec<String>,
    preload_rows: u64,
    commit_every: u64,
    detach_every: u64,
}

impl Statements {
    /// Makes the statements of `plan`.
    ///
    /// # Errors
    /// As [`SlapPlan::check`].
    pub fn new(plan: &SlapPlan) -> Result<Self> {
        plan.check()?;
        let custom = &plan.custom;
        let list = |text| statements_of(text, &custom.delimiter).map(str::to_owned).collect();
        let (create, rows, queries) = if plan.is_custom() {
            let create = statements_of(&custom.create, &custom.delimiter).map(|text| {
                if creates_table(text) { with_engine(text, plan) } else { text.into() }
            });
            let queries = statements_of(&custom.query, &custom.delimiter)
                .map(|text| Query { pieces: vec![text.into()], class: Class::of(text) });
            (create.collect(), Vec::new(), queries.collect())
        } else {
            // The order is that of mysqlslap: all rows are drawn, then all queries.
            let mut generator = Generator { plan, random: GlibcRandom::new(INITIAL_SEED) };
            let rows = (0..plan.unique_write_number).map(|_| generator.insert()).collect();
            let queries = (0..=plan.unique_query_number).map(|number| generator.query(number));
            let queries = queries.collect();
            (vec![create_table(plan)], rows, queries)
        };
        Ok(Self {
            create,
            rows,
            pre_query: list(&custom.pre_query),
            queries,
            post_query: list(&custom.post_query),
            preload_rows: plan.preload_rows(),
            commit_every: plan.commit_every,
            detach_every: plan.detach_every,
        })
    }

    /// The rows inserted before the queries, each its own statement under autocommit.
    pub fn preload(&self) -> impl Iterator<Item = &str> {
        // Without rows the cycle is empty, and `check` has seen to it that none is wanted.
        let rows = self.rows.iter().cycle().map(String::as_str);
        (0..self.preload_rows).zip(rows).map(|(_, row)| row)
    }

    /// Whether any query needs a key, so that [`KEYS`] has to be read after the preload.
    pub fn take_keys(&self) -> bool {
        self.queries.iter().any(Query::takes_key)
    }

    /// What a client that sends `queries` does, in order. [`Step::Query`] holds an index into
    /// [`Self::queries`].
    ///
    /// As in mysqlslap the last step is a commit even when nothing is left to commit.
    pub fn steps(&self, queries: u64) -> impl Iterator<Item = Step> {
        let (commit_every, detach_every) = (self.commit_every, self.detach_every);
        let pass = self.queries.len() as u64;
        let due = |every: u64, sent: u64| every > 0 && sent.is_multiple_of(every);
        (0..queries).flat_map(move |sent| {
            let commits = commit_every > 0;
            let reconnects = sent > 0 && due(detach_every, sent);
            let last = sent + 1 == queries;
            [
                (reconnects && commits && !due(commit_every, sent)).then_some(Step::Commit),
                reconnects.then_some(Step::Reconnect),
                (commits && (sent == 0 || reconnects)).then_some(Step::AutocommitOff),
                // Below the length of the list, which is a usize.
                Some(Step::Query((sent % pass) as usize)),
                due(commit_every, sent + 1).then_some(Step::Commit),
                (commits && last).then_some(Step::Commit),
            ]
            .into_iter()
            .flatten()
        })
    }
}

/// One thing that a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sends [`AUTOCOMMIT_OFF`].
    AutocommitOff,
    /// Closes the connection and opens another.
    Reconnect,
    /// Sends the query with this index.
    Query(usize),
    /// Sends [`COMMIT`].
    Commit,
}

/// The keys that were present after the preload; the rows that queries insert add none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// The numbers from 1 to this: what `serial` gives where the server's `auto_increment_increment`
    /// and `auto_increment_offset` are 1, as they are by default.
    UpTo(u64),
    /// As the server gave them to [`KEYS`].
    Read(Vec<String>),
}

/// A key that was drawn; it displays as its digits or its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// Of a column `serial`.
    Number(u64),
    /// As the server gave it.
    Text(&'a str),
}

impl std::fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Keys {
    /// Number of keys.
    pub fn count(&self) -> u64 {
        match self {
            Self::UpTo(count) => *count,
            Self::Read(texts) => texts.len() as u64,
        }
    }

    /// One of the keys, each equally likely; none when there are none.
    pub fn draw(&self, random: &mut SplitMix64) -> Option<Key<'_>> {
        if self.count() == 0 {
            return None;
        }
        let place = random.below(self.count());
        match self {
            Self::UpTo(_) => Some(Key::Number(place + 1)),
            // Below the length of the list, which is a usize.
            Self::Read(texts) => texts.get(place as usize).map(|text| Key::Text(text)),
        }
    }
}

/// The generated `CREATE TABLE`.
fn create_table(plan: &SlapPlan) -> String {
    let key = match plan.key {
        KeyKind::None => None,
        KeyKind::Autoincrement => Some("id serial".to_owned()),
        KeyKind::Guid => Some("id varchar(36) primary key".to_owned()),
    };
    let secondary = (0..plan.secondary_indexes).map(|n| format!("id{n} varchar(36) unique key"));
    let ints = names("intcol", plan.int_columns).map(|name| {
        let index = if plan.int_indexes { format!(", INDEX({name})") } else { " ".into() };
        format!("{name} INT(32){index}")
    });
    let chars = names("charcol", plan.char_columns).map(|name| {
        let index = if plan.char_indexes { format!(", INDEX({name}) ") } else { String::new() };
        format!("{name} VARCHAR(128){index}")
    });
    let columns: Vec<String> = key.into_iter().chain(secondary).chain(ints).chain(chars).collect();
    with_engine(&format!("CREATE TABLE `t1` ({})", columns.join(",")), plan)
}

/// Names of columns, numbered from 1.
fn names(stem: &str, count: u32) -> impl Iterator<Item = String> {
    (1..=count).map(move |number| format!("{stem}{number}"))
}

/// The statement with the plan's engine and its options, if any.
fn with_engine(create: &str, plan: &SlapPlan) -> String {
    match plan.engine.split_once(':') {
        _ if plan.engine.is_empty() => create.to_owned(),
        Some((engine, options)) => format!("{create} Engine = {engine} {options}"),
        None => format!("{create} Engine = {}", plan.engine),
    }
}

/// Draws rows and queries, in the order of the calls.
struct Generator<'a> {
    plan: &'a SlapPlan,
    random: GlibcRandom,
}

impl Generator<'_> {
    fn int(&mut self) -> String {
        self.random.next().to_string()
    }

    fn string(&mut self) -> String {
        let mut text = String::with_capacity(STRING_LENGTH + 2);
        text.push('\'');
        for _ in 0..STRING_LENGTH {
            let place = self.random.next() as usize % ALPHABET.len();
            text.push(char::from(ALPHABET[place]));
        }
        text.push('\'');
        text
    }

    /// Values of the columns that are not keys.
    fn values(&mut self) -> Vec<String> {
        let mut values: Vec<String> = (0..self.plan.int_columns).map(|_| self.int()).collect();
        values.extend((0..self.plan.char_columns).map(|_| self.string()));
        values
    }

    fn insert(&mut self) -> String {
        let key = match self.plan.key {
            KeyKind::None => None,
            KeyKind::Autoincrement => Some("NULL".to_owned()),
            KeyKind::Guid => Some("uuid()".to_owned()),
        };
        let secondary = (0..self.plan.secondary_indexes).map(|_| "uuid()".to_owned());
        let values: Vec<String> = key.into_iter().chain(secondary).chain(self.values()).collect();
        format!("INSERT INTO t1 VALUES ({})", values.join(","))
    }

    fn columns(&self) -> impl Iterator<Item = String> + use<> {
        names("intcol", self.plan.int_columns).chain(names("charcol", self.plan.char_columns))
    }

    fn update(&mut self) -> Query {
        let values = self.values();
        let pairs: Vec<String> =
            self.columns().zip(values).map(|(name, value)| format!("{name} = {value}")).collect();
        let text = format!("UPDATE t1 SET {}", pairs.join(","));
        Query { pieces: self.by_key(text), class: Class::Write }
    }

    fn select(&self, by_key: bool) -> Query {
        let columns: Vec<String> = self.columns().collect();
        let text = format!("SELECT {} FROM t1", columns.join(","));
        let pieces = if by_key { self.by_key(text) } else { vec![text] };
        Query { pieces, class: Class::Read }
    }

    /// The text for one key where there is a key column, with mysqlslap's two spaces.
    fn by_key(&self, text: String) -> Vec<String> {
        match self.plan.key {
            KeyKind::None => vec![text],
            KeyKind::Autoincrement | KeyKind::Guid => {
                vec![format!("{text} WHERE id =  '"), "'".to_owned()]
            }
        }
    }

    /// Query `number` of the list, from 0.
    fn query(&mut self, number: u64) -> Query {
        match self.plan.load_type {
            LoadType::Mixed if !number.is_multiple_of(2) => self.select(true),
            LoadType::Mixed | LoadType::Write => {
                Query { pieces: vec![self.insert()], class: Class::Write }
            }
            LoadType::Update => self.update(),
            LoadType::Key => self.select(true),
            LoadType::Read => self.select(false),
        }
    }
}

/// The statements of a text of the user's, without blanks around them.
fn statements_of<'a>(text: &'a str, delimiter: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(delimiter).map(str::trim).filter(|statement| !statement.is_empty())
}

/// The first words of a statement, without comments and parentheses before the first.
fn first_words(statement: &str) -> impl Iterator<Item = &str> {
    let mut rest = statement;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        let after = if rest.starts_with("/*") && !rest.starts_with("/*!") {
            rest.split_once("*/")
        } else if rest.starts_with('#') || rest.starts_with("-- ") {
            rest.split_once('\n')
        } else {
            break;
        };
        rest = after.map_or("", |(_, after)| after);
    }
    rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Whether a statement is a `CREATE [OR REPLACE] [TEMPORARY] TABLE`.
fn creates_table(statement: &str) -> bool {
    let mut words = first_words(statement).map(str::to_ascii_uppercase);
    words.next().is_some_and(|word| word == "CREATE")
        && words.find(|word| !["OR", "REPLACE", "TEMPORARY"].contains(&word.as_str()))
            == Some("TABLE".into())
}
