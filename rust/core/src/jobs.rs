//! What the threads of a trial are given to do: scripts, and a program for each client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::load::{Program, Step, ThreadJob};
use crate::plan::{Arrivals, Cell, QueryProtocol, RunLength, Work, WorkloadPlan};
use crate::rng::SplitMix64;
use crate::script::{Command, Expression, Script, Statement};
use crate::seam::Endpoint;
use crate::slap::{self, Keys, LoadType, Query, SlapPlan, Statements};
use crate::workload;

/// How long a transaction may go on after the end of the window before it counts as stuck.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// The load of one instance, before it is dealt to threads.
pub(crate) struct Load {
    scripts: Vec<Script>,
    given: Vec<i64>,
    /// One for each client.
    programs: Vec<Program>,
    warmup: Duration,
    window: Option<Duration>,
}

impl Load {
    /// pgbench's workloads: each client repeats one script.
    pub(crate) fn scripted(cell: &Cell, scale: u32) -> Result<Self> {
        let workload = &cell.workload;
        let (warmup, window, passes) = match workload.length {
            RunLength::DurationS(seconds) => (
                Duration::from_secs_f64(workload.warmup_s),
                Some(Duration::from_secs_f64(seconds)),
                None,
            ),
            RunLength::Transactions(count) => (Duration::ZERO, None, Some(count)),
            RunLength::Queries => (Duration::ZERO, None, Some(1)),
        };
        let program = Program { steps: Arc::new([Step::Transaction(0)]), passes };
        Ok(Self {
            scripts: vec![workload::script(workload.work.kind(), cell.engine.kind)?],
            given: vec![i64::from(scale)],
            programs: vec![program; workload.clients as usize],
            warmup,
            window,
        })
    }

    /// slap: each client sends its list of queries, with keys drawn from those that are there.
    pub(crate) fn slap(
        workload: &WorkloadPlan,
        instance: u32,
        statements: &Statements,
        keys: &Keys,
        queries: slap::Queries,
        seed: u64,
    ) -> Self {
        let scripts = SlapScripts::new(statements, keys, workload.protocol);
        let pass = statements.queries.len() as u64;
        // Clients that send equally many queries share their steps, unless keys are drawn for them.
        let mut shared: BTreeMap<u64, Arc<[Step]>> = BTreeMap::new();
        let programs = queries
            .of_clients(workload.clients, pass)
            .zip(u64::from(first_client(workload, instance))..)
            .map(|(count, client)| {
                let drawn = || scripts.steps(statements, keys, count, seed, client);
                let steps = match keys {
                    Keys::UpTo(_) => shared.entry(count).or_insert_with(drawn).clone(),
                    Keys::Read(_) => drawn(),
                };
                Program { steps, passes: Some(1) }
            })
            .collect();
        Self {
            scripts: scripts.scripts,
            given: Vec::new(),
            programs,
            warmup: Duration::ZERO,
            window: None,
        }
    }

    /// Length of the warm-up.
    pub(crate) fn warmup(&self) -> Duration {
        self.warmup
    }

    /// Deals clients to threads as evenly as possible, contiguous.
    pub(crate) fn jobs(
        mut self,
        workload: &WorkloadPlan,
        instance: u32,
        endpoint: &Endpoint,
        seed: u64,
    ) -> Vec<ThreadJob> {
        // Numbers tell prepared statements apart, so they are unique over all scripts.
        let commands = self.scripts.iter_mut().flat_map(|script| &mut script.commands);
        let statements = commands.filter_map(|command| match command {
            Command::Sql(statement) => Some(statement),
            Command::Set { .. } => None,
        });
        for (index, statement) in statements.enumerate() {
            statement.index = index;
        }
        let scripts: Arc<[Script]> = self.scripts.into();
        let threads = workload.threads.min(workload.clients).max(1);
        let first = |thread: u32| {
            let product = u64::from(workload.clients) * u64::from(thread) / u64::from(threads);
            u32::try_from(product).unwrap_or(u32::MAX)
        };
        let mut programs = self.programs.into_iter();
        (0..threads)
            .map(|thread| ThreadJob {
                scripts: scripts.clone(),
                given: self.given.clone(),
                protocol: workload.protocol,
                endpoint: endpoint.clone(),
                first_client: first_client(workload, instance) + first(thread),
                programs: programs
                    .by_ref()
                    .take((first(thread + 1) - first(thread)) as usize)
                    .collect(),
                max_tries: workload.max_tries,
                arrivals: workload.arrivals.map(|all| Arrivals {
                    rate_per_s: all.rate_per_s * f64::from(first(thread + 1) - first(thread))
                        / f64::from(workload.clients),
                    ..all
                }),
                seed,
                warmup: self.warmup,
                window: self.window,
                grace: GRACE,
            })
            .collect()
    }
}

/// Number of an instance's first client; numbers are unique in the trial.
fn first_client(workload: &WorkloadPlan, instance: u32) -> u32 {
    instance * workload.clients
}

/// One script for each query of the list; where keys are texts, one for each query and key.
struct SlapScripts {
    scripts: Vec<Script>,
    /// Index of the first script of each query.
    first: Vec<usize>,
    autocommit_off: usize,
    commit: usize,
}

impl SlapScripts {
    fn new(statements: &Statements, keys: &Keys, protocol: QueryProtocol) -> Self {
        let mut scripts = Vec::new();
        let mut first = Vec::new();
        for query in &statements.queries {
            first.push(scripts.len());
            match keys {
                _ if !query.takes_key() => scripts.push(literal(&query.text(""))),
                Keys::UpTo(count) => scripts.push(keyed(query, *count, protocol)),
                Keys::Read(texts) => {
                    scripts.extend(texts.iter().map(|key| literal(&query.text(key))));
                }
            }
        }
        let autocommit_off = scripts.len();
        scripts.push(literal(slap::AUTOCOMMIT_OFF));
        let commit = scripts.len();
        scripts.push(literal(slap::COMMIT));
        Self { scripts, first, autocommit_off, commit }
    }

    /// The steps of a client; keys that are texts are drawn here, numbers while the load goes on.
    fn steps(
        &self,
        statements: &Statements,
        keys: &Keys,
        queries: u64,
        seed: u64,
        client: u64,
    ) -> Arc<[Step]> {
        let mut random = SplitMix64::for_transaction(seed, client, 0);
        let steps = statements.steps(queries).map(|step| match step {
            slap::Step::AutocommitOff => Step::Between(self.autocommit_off),
            slap::Step::Commit => Step::Between(self.commit),
            slap::Step::Reconnect => Step::Reconnect,
            slap::Step::Query(index) => {
                let key = match keys {
                    Keys::Read(texts) if statements.queries[index].takes_key() => {
                        random.below(texts.len().max(1) as u64) as usize
                    }
                    _ => 0,
                };
                Step::Transaction(self.first[index] + key)
            }
        });
        steps.collect()
    }
}

/// A script of one statement without parameters.
fn literal(text: &str) -> Script {
    let statement = Statement {
        index: 0,
        text: text.to_owned(),
        parameters: Vec::new(),
        pieces: vec![text.to_owned()],
    };
    Script { commands: vec![Command::Sql(statement)], variables: Vec::new() }
}

/// A script that draws a key from 1 to `count` and sends the query with it: quoted in the text, as
/// mysqlslap does, or as the parameter of a prepared statement.
fn keyed(query: &Query, count: u64, protocol: QueryProtocol) -> Script {
    let prepared = query.prepared_text();
    let pieces = match protocol {
        QueryProtocol::Simple => query.pieces.clone(),
        QueryProtocol::Extended | QueryProtocol::Prepared => {
            prepared.split('?').map(str::to_owned).collect()
        }
    };
    let statement = Statement { index: 0, text: prepared, parameters: vec![0], pieces };
    let highest = Expression::Constant(i64::try_from(count).unwrap_or(i64::MAX));
    let draw = Expression::Random(Box::new(Expression::Constant(1)), Box::new(highest));
    Script {
        commands: vec![Command::Set { slot: 0, expression: draw }, Command::Sql(statement)],
        variables: vec!["key".to_owned()],
    }
}

/// Rows of slap's table once every client has sent its queries; none where the user's own statements
/// decide.
pub(crate) fn slap_rows(work: &Work, clients: u32, statements: &Statements) -> Option<u64> {
    let Work::Slap(plan) = work else { return None };
    Some(plan.preload_rows() + slap_inserts(plan, clients, statements)?)
}

/// Commits of one instance of slap that write something. None when the statements are the user's own,
/// and for updates, which write nothing to a row that has the values already.
pub(crate) fn slap_writing_commits(
    plan: &SlapPlan,
    clients: u32,
    statements: &Statements,
) -> Option<u64> {
    if plan.load_type == LoadType::Update {
        return None;
    }
    Some(slap_inserts(plan, clients, statements)? / plan.commit_every.max(1))
}

/// Inserts that all clients of an instance send.
fn slap_inserts(plan: &SlapPlan, clients: u32, statements: &Statements) -> Option<u64> {
    if plan.is_custom() {
        return None;
    }
    let inserts = |index: usize| statements.queries[index].pieces[0].starts_with("INSERT");
    let pass = statements.queries.len() as u64;
    let sent = plan
        .queries
        .of_clients(clients, pass)
        .map(|count| (0..count).filter(|sent| inserts((sent % pass) as usize)).count() as u64);
    Some(sent.sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CacheState, WorkloadPlan};
    use crate::seam::Address;
    use crate::slap::{KeyKind, Queries, SlapPlan};

    fn workload(plan: SlapPlan, clients: u32, protocol: QueryProtocol) -> WorkloadPlan {
        WorkloadPlan {
            work: Work::Slap(Box::new(plan)),
            instances: 2,
            clients,
            threads: 2,
            protocol,
            max_tries: 1,
            cache: CacheState::Warm,
            arrivals: None,
            length: RunLength::Queries,
            warmup_s: 0.0,
        }
    }

    fn phoronix() -> SlapPlan {
        SlapPlan {
            int_columns: 4,
            char_columns: 4,
            key: KeyKind::Autoincrement,
            queries: Queries::PerClient(1000),
            ..SlapPlan::default()
        }
    }

    fn jobs(plan: &SlapPlan, keys: &Keys, clients: u32, protocol: QueryProtocol) -> Vec<ThreadJob> {
        let statements = Statements::new(plan).expect("a plan");
        let workload = workload(plan.clone(), clients, protocol);
        let endpoint = Endpoint {
            address: Address::Tcp(String::new(), 0),
            user: String::new(),
            password: String::new(),
            database: String::new(),
            session_settings: Vec::new(),
        };
        Load::slap(&workload, 1, &statements, keys, plan.queries, 1)
            .jobs(&workload, 1, &endpoint, 1)
    }

    #[test]
    fn a_client_of_the_published_study_inserts_545_and_selects_455() {
        let plan = phoronix();
        let jobs = jobs(&plan, &Keys::UpTo(99), 3, QueryProtocol::Simple);
        assert_eq!(jobs.iter().map(|job| job.programs.len()).collect::<Vec<_>>(), [1, 2]);
        // The second instance's clients are counted on from those of the first.
        assert_eq!(jobs.iter().map(|job| job.first_client).collect::<Vec<_>>(), [3, 4]);
        for program in jobs.iter().flat_map(|job| &job.programs) {
            let sent = |word: &str| {
                let of_word = program.steps.iter().filter(|step| match step {
                    Step::Transaction(script) => jobs[0].scripts[*script]
                        .statements()
                        .all(|statement| statement.text.starts_with(word)),
                    Step::Between(_) | Step::Reconnect => false,
                });
                of_word.count()
            };
            assert_eq!((sent("INSERT"), sent("SELECT")), (545, 455));
        }
        let statements = Statements::new(&plan).expect("a plan");
        let rows = slap_rows(&Work::Slap(Box::new(plan)), 3, &statements);
        assert_eq!(rows, Some(99 + 3 * 545));
    }

    #[test]
    fn statements_of_different_scripts_have_different_numbers() {
        let jobs = jobs(&phoronix(), &Keys::UpTo(99), 1, QueryProtocol::Prepared);
        let numbers: Vec<usize> = jobs[0]
            .scripts
            .iter()
            .flat_map(Script::statements)
            .map(|statement| statement.index)
            .collect();
        assert_eq!(numbers, (0..13).collect::<Vec<_>>());
    }

    #[test]
    fn a_key_is_quoted_in_text_and_a_parameter_when_prepared() {
        let pieces = |protocol| {
            let jobs = jobs(&phoronix(), &Keys::UpTo(99), 1, protocol);
            let statements = jobs[0].scripts.iter().flat_map(Script::statements);
            let keyed = statements.filter(|statement| !statement.parameters.is_empty());
            keyed.map(|statement| statement.pieces.clone()).next().expect("a keyed statement")
        };
        let simple = pieces(QueryProtocol::Simple);
        assert!(simple[0].ends_with("WHERE id =  '"), "{simple:?}");
        assert_eq!(simple[1], "'");
        let prepared = pieces(QueryProtocol::Prepared);
        assert!(prepared[0].ends_with("WHERE id =  "), "{prepared:?}");
        assert_eq!(prepared[1], "");
    }

    #[test]
    fn text_keys_are_drawn_for_each_client() {
        let plan = SlapPlan { key: KeyKind::Guid, ..phoronix() };
        let keys = Keys::Read(vec!["a".into(), "b".into(), "c".into()]);
        let jobs = jobs(&plan, &keys, 2, QueryProtocol::Simple);
        let programs: Vec<_> = jobs.iter().flat_map(|job| &job.programs).collect();
        assert_ne!(programs[0].steps, programs[1].steps);
        let selects = jobs[0].scripts.iter().flat_map(Script::statements);
        let texts: Vec<_> = selects.filter(|s| s.text.starts_with("SELECT")).collect();
        assert_eq!(texts.len(), 5 * 3);
        assert!(texts[0].text.ends_with("WHERE id =  'a'"));
    }
}
