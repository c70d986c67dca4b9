//! The load generator against a server that exists only in this file, under a clock that jumps from
//! one event to the next: every count and time here is known beforehand.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_core::load::{
    Completion, Control, Failure, Program, Reply, Step, ThreadEvent, ThreadJob, ThreadReport,
    Transport, Wire, histogram, run_thread,
};
use bedplate_core::plan::{Arrivals, EngineKind, QueryProtocol, Spacing, WorkloadKind};
use bedplate_core::record::{OpenTimes, Phase};
use bedplate_core::script::{Script, Statement};
use bedplate_core::seam::{Address, Endpoint};
use bedplate_core::workload;
use bytes::BytesMut;

const MS: Duration = Duration::from_millis(1);

/// A protocol of one letter: `o` open, `q` query, `r` rollback; answers `k`, `s` (serialization
/// failure), `x` (another error).
struct Letters;

impl Wire for Letters {
    fn open(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(b"o");
    }

    fn request(&mut self, _: &Statement, _: &[i64], out: &mut BytesMut) {
        out.extend_from_slice(b"q");
    }

    fn rollback(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(b"r");
    }

    fn terminate(&mut self, _: &mut BytesMut) {}

    fn receive(&mut self, input: &[u8], _: &mut BytesMut) -> (usize, Reply) {
        let failure = |sqlstate: &str, retryable| {
            Reply::Failed(Failure { sqlstate: sqlstate.into(), message: "no".into(), retryable })
        };
        match input.first() {
            None => (0, Reply::Pending),
            Some(b's') => (1, failure("40001", true)),
            Some(b'x') => (1, failure("42P01", false)),
            Some(_) => (1, Reply::Done),
        }
    }
}

/// What the server does with a query of a connection, the `count`th in all.
type Behaviour = fn(connection: usize, count: u64) -> Answer;

enum Answer {
    After(Duration, u8),
    Close,
    Never,
}

struct Scripted {
    clock: Instant,
    behaviour: Behaviour,
    queries: u64,
    /// Answers to come, earliest first.
    pending: VecDeque<(Instant, usize, Option<u8>)>,
    received: Vec<Vec<u8>>,
    connected: Vec<Completion>,
    opened: u32,
}

impl Scripted {
    fn new(zero: Instant, connections: usize, behaviour: Behaviour) -> Self {
        Self {
            clock: zero,
            behaviour,
            queries: 0,
            pending: VecDeque::new(),
            received: vec![Vec::new(); connections],
            connected: Vec::new(),
            opened: 0,
        }
    }

    fn schedule(&mut self, at: Instant, connection: usize, byte: Option<u8>) {
        let place = self.pending.partition_point(|entry| entry.0 <= at);
        self.pending.insert(place, (at, connection, byte));
    }
}

impl Transport for Scripted {
    fn connect(&mut self, connection: usize) {
        self.opened += 1;
        self.connected.push(Completion::Connected(connection));
    }

    fn submit(&mut self, connection: usize, bytes: &[u8]) {
        match bytes {
            b"q" => {
                self.queries += 1;
                match (self.behaviour)(connection, self.queries) {
                    Answer::After(delay, byte) => {
                        self.schedule(self.clock + delay, connection, Some(byte));
                    }
                    Answer::Close => self.schedule(self.clock + MS, connection, None),
                    Answer::Never => {}
                }
            }
            b"" => {}
            _ => self.schedule(self.clock, connection, Some(b'k')),
        }
    }

    fn wait(&mut self, until: Instant, completions: &mut Vec<Completion>) {
        if !self.connected.is_empty() {
            completions.append(&mut self.connected);
            return;
        }
        let Some(&(at, connection, byte)) = self.pending.front().filter(|entry| entry.0 <= until)
        else {
            self.clock = self.clock.max(until);
            return;
        };
        self.pending.pop_front();
        self.clock = self.clock.max(at);
        completions.push(match byte {
            Some(byte) => {
                self.received[connection].push(byte);
                Completion::Received(connection)
            }
            None => Completion::Closed(connection, "gone".into()),
        });
    }

    fn received(&self, connection: usize) -> &[u8] {
        &self.received[connection]
    }

    fn consume(&mut self, connection: usize, count: usize) {
        self.received[connection].drain(..count);
    }

    fn close(&mut self, connection: usize) {
        self.pending.retain(|entry| entry.1 != connection);
    }

    fn now(&self) -> Instant {
        self.clock
    }

    fn cpu_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// An interval in short: phase, start and length in ms, committed, live clients.
type Row = (Phase, u64, u64, u64, u32);

struct Outcome {
    rows: Vec<Row>,
    failed: Vec<(String, u64)>,
    retried: u64,
    slowest_ms: u64,
    /// 99 % quantiles of response time and service time, and the largest lag, in ms.
    open_ms: Option<(f64, f64, f64)>,
    opened: u32,
    report: ThreadReport,
}

/// How long a load goes on.
#[derive(Clone, Copy)]
enum Length {
    Seconds(f64),
    Passes(u64),
}

/// A load of one thread whose clients all do `steps`; script 0 is the workload's, script 1 `COMMIT`.
struct Load {
    kind: WorkloadKind,
    clients: u32,
    warmup: Duration,
    length: Length,
    steps: Vec<Step>,
    max_tries: u32,
    arrivals: Option<Arrivals>,
}

impl Load {
    fn new(kind: WorkloadKind, clients: u32, warmup: Duration, length: Length) -> Self {
        let steps = vec![Step::Transaction(0)];
        Self { kind, clients, warmup, length, steps, max_tries: 1, arrivals: None }
    }

    fn run(self, behaviour: Behaviour) -> Outcome {
        let zero = Instant::now();
        let (window, passes) = match self.length {
            Length::Seconds(seconds) => (Some(Duration::from_secs_f64(seconds)), None),
            Length::Passes(passes) => (None, Some(passes)),
        };
        let script = workload::script(self.kind, EngineKind::Postgres).expect("compiles");
        let commit = Script::compile("COMMIT;", &["scale"]).expect("compiles");
        let program = Program { steps: self.steps.into(), passes };
        let job = ThreadJob {
            scripts: Arc::new([script, commit]),
            given: vec![1],
            protocol: QueryProtocol::Simple,
            endpoint: Endpoint {
                address: Address::Tcp(String::new(), 0),
                user: String::new(),
                password: String::new(),
                database: String::new(),
                session_settings: Vec::new(),
            },
            first_client: 0,
            programs: vec![program; self.clients as usize],
            max_tries: self.max_tries,
            arrivals: self.arrivals,
            seed: 1,
            warmup: self.warmup,
            window,
            grace: Duration::from_secs(5),
        };
        let mut transport = Scripted::new(zero, self.clients as usize, behaviour);
        let control = Control::default();
        control.start(zero);
        let wires = (0..self.clients).map(|_| Letters).collect();
        let mut outcome = Outcome {
            rows: Vec::new(),
            failed: Vec::new(),
            retried: 0,
            slowest_ms: 0,
            open_ms: None,
            opened: 0,
            report: ThreadReport::default(),
        };
        let mut times: Option<OpenTimes> = None;
        let mut service_time_ns = histogram();
        run_thread(&job, wires, &mut transport, &control, &mut |event| match event {
            ThreadEvent::Connected { refused } => assert!(refused.is_empty()),
            ThreadEvent::Interval(closed) => {
                let span = closed.span;
                service_time_ns.add(&closed.service_time_ns).expect("alike");
                match (&mut times, closed.open) {
                    (Some(times), Some(open)) => times.merge(&open).expect("alike"),
                    (times, open) => *times = open,
                }
                assert_eq!(closed.service_time_ns.len(), span.outcomes.committed);
                outcome.rows.push((
                    span.phase,
                    span.start.as_millis() as u64,
                    span.length.as_millis() as u64,
                    span.outcomes.committed,
                    span.live_clients,
                ));
                outcome.failed.extend(span.outcomes.failed);
                outcome.retried += span.outcomes.retried;
                outcome.slowest_ms =
                    outcome.slowest_ms.max(closed.service_time_ns.max() / 1_000_000);
            }
            ThreadEvent::Ended(report) => outcome.report = *report,
        });
        let ms = |ns: u64| ns as f64 / 1e6;
        outcome.open_ms = times.map(|times| {
            let p99 = ms(times.response_time_ns.value_at_quantile(0.99));
            let service_p99 = ms(service_time_ns.value_at_quantile(0.99));
            (p99, service_p99, ms(times.lag_ns.max()))
        });
        outcome.opened = transport.opened;
        outcome
    }
}

fn load(
    kind: WorkloadKind,
    clients: u32,
    warmup: Duration,
    length: Length,
    behaviour: Behaviour,
) -> Outcome {
    Load::new(kind, clients, warmup, length).run(behaviour)
}

fn seconds(seconds: f64) -> Length {
    Length::Seconds(seconds)
}

#[test]
fn the_window_holds_what_ended_in_it() {
    // 10 ms a transaction: transactions end at 10, 20, … ms, so those of the last instant of an
    // interval (1,000 ms, 2,000 ms, …) belong to the next one.
    let outcome =
        load(WorkloadKind::SelectOnly, 2, Duration::from_secs(1), seconds(2.5), |_, _| {
            Answer::After(10 * MS, b'k')
        });
    let rows: Vec<_> = outcome.rows.iter().map(|row| (row.0, row.1, row.2, row.4)).collect();
    assert_eq!(
        rows,
        [
            (Phase::Warmup, 0, 1000, 2),
            (Phase::Measure, 1000, 1000, 2),
            (Phase::Measure, 2000, 1000, 2),
            (Phase::Measure, 3000, 500, 2),
        ]
    );
    let measured: u64 = outcome.rows[1..].iter().map(|row| row.3).sum();
    assert!((498..=502).contains(&measured), "{measured}");
    assert_eq!(outcome.report.committed_by_client.iter().sum::<u64>(), measured);
    assert_eq!(outcome.report.window, Duration::from_millis(2500));
    // 3.5 s of 10 ms, the transaction that ends with the window included.
    assert_eq!(outcome.report.committed_all, 700);
    assert_eq!(outcome.report.unfinished, 0);
}

#[test]
fn a_number_of_transactions_is_met_exactly() {
    let outcome = load(WorkloadKind::Tpcb, 3, Duration::ZERO, Length::Passes(7), |_, _| {
        Answer::After(MS, b'k')
    });
    // Seven statements of 1 ms a transaction, seven transactions a client.
    assert_eq!(outcome.report.committed_by_client, [7, 7, 7]);
    assert_eq!(outcome.report.window, 49 * MS);
    assert_eq!(outcome.rows, [(Phase::Measure, 0, 49, 21, 3)]);
}

#[test]
fn a_serialization_failure_is_rolled_back_and_counted() {
    // The third query fails: the second statement's answer of the first transaction.
    let outcome = load(WorkloadKind::SimpleUpdate, 1, Duration::ZERO, Length::Passes(5), |_, n| {
        Answer::After(MS, if n == 3 { b's' } else { b'k' })
    });
    assert_eq!(outcome.failed, [("40001".to_owned(), 1)]);
    // The failed one is one of the five attempts; it is not tried again with other values.
    assert_eq!(outcome.report.committed_all, 4);
    assert!(outcome.report.lost.is_empty());
}

#[test]
fn another_error_ends_the_client_and_no_other() {
    let outcome = load(WorkloadKind::SelectOnly, 2, Duration::ZERO, seconds(2.0), |client, n| {
        let answer = if client == 1 && n > 100 { b'x' } else { b'k' };
        Answer::After(10 * MS, answer)
    });
    assert_eq!(outcome.report.lost, ["42P01: no"]);
    assert_eq!(outcome.failed, [("42P01".to_owned(), 1)]);
    assert_eq!(outcome.rows.iter().map(|row| row.4).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_closed_connection_is_a_lost_client() {
    let outcome = load(WorkloadKind::SelectOnly, 2, Duration::ZERO, seconds(1.0), |client, n| {
        if client == 0 && n > 10 { Answer::Close } else { Answer::After(10 * MS, b'k') }
    });
    assert_eq!(outcome.report.lost, ["gone"]);
    assert_eq!(outcome.rows.last().map(|row| row.4), Some(1));
}

#[test]
fn when_all_clients_are_lost_the_load_ends_early() {
    let outcome = load(WorkloadKind::SelectOnly, 2, Duration::ZERO, seconds(60.0), |_, n| {
        if n > 10 { Answer::Close } else { Answer::After(10 * MS, b'k') }
    });
    assert_eq!(outcome.report.lost.len(), 2);
    assert!(outcome.report.window < Duration::from_secs(1));
}

#[test]
fn a_stall_leaves_empty_intervals_and_one_long_service_time() {
    let outcome = load(WorkloadKind::SelectOnly, 1, Duration::ZERO, seconds(8.0), |_, n| {
        Answer::After(if n == 50 { Duration::from_secs(5) } else { 10 * MS }, b'k')
    });
    let committed: Vec<u64> = outcome.rows.iter().map(|row| row.3).collect();
    assert_eq!(outcome.rows.len(), 8);
    assert_eq!(committed[1..5], [0, 0, 0, 0]);
    assert_eq!(committed.iter().sum::<u64>(), outcome.report.committed_by_client[0]);
    assert!((5000..5006).contains(&outcome.slowest_ms), "{}", outcome.slowest_ms);
}

#[test]
fn a_transaction_without_an_end_is_given_up() {
    let outcome = load(WorkloadKind::SelectOnly, 2, Duration::ZERO, seconds(1.0), |client, n| {
        if client == 1 && n > 20 { Answer::Never } else { Answer::After(10 * MS, b'k') }
    });
    assert_eq!(outcome.report.unfinished, 1);
    assert!(outcome.report.lost.is_empty());
}

#[test]
fn a_failed_try_is_repeated_as_often_as_allowed() {
    let tries = |max_tries, failing: Behaviour| {
        let mut load = Load::new(WorkloadKind::SelectOnly, 1, Duration::ZERO, Length::Passes(3));
        load.max_tries = max_tries;
        load.run(failing)
    };
    // The second transaction fails twice, then succeeds: queries 2 and 3.
    let twice: Behaviour = |_, n| Answer::After(MS, if (2..=3).contains(&n) { b's' } else { b'k' });
    let outcome = tries(3, twice);
    assert_eq!((outcome.report.committed_all, outcome.retried), (3, 2));
    assert!(outcome.failed.is_empty());
    // All three tries and the rollbacks between them are in its service time.
    assert_eq!(outcome.slowest_ms, 3);
    let outcome = tries(2, twice);
    assert_eq!((outcome.report.committed_all, outcome.retried), (2, 1));
    assert_eq!(outcome.failed, [("40001".to_owned(), 1)]);
}

#[test]
fn steps_between_transactions_take_time_and_are_not_counted() {
    let mut load = Load::new(WorkloadKind::SelectOnly, 2, Duration::ZERO, Length::Passes(4));
    load.steps = vec![Step::Transaction(0), Step::Transaction(0), Step::Between(1)];
    let outcome = load.run(|_, _| Answer::After(MS, b'k'));
    assert_eq!(outcome.report.committed_by_client, [8, 8]);
    assert_eq!(outcome.report.window, 12 * MS);
    assert_eq!(outcome.slowest_ms, 1);
}

#[test]
fn a_client_can_connect_anew_between_transactions() {
    let mut load = Load::new(WorkloadKind::SelectOnly, 2, Duration::ZERO, Length::Passes(5));
    load.steps = vec![Step::Transaction(0), Step::Reconnect];
    let outcome = load.run(|_, _| Answer::After(MS, b'k'));
    assert_eq!(outcome.report.committed_by_client, [5, 5]);
    assert!(outcome.report.lost.is_empty());
    // Two connections at first, and one after each of the ten transactions.
    assert_eq!(outcome.opened, 12);
}

/// Twenty seconds of even arrivals.
fn open_loop(rate_per_s: f64, clients: u32, behaviour: Behaviour) -> Outcome {
    let arrivals = Arrivals { rate_per_s, spacing: Spacing::Even };
    let length = seconds(20.0);
    let load = Load::new(WorkloadKind::SelectOnly, clients, Duration::ZERO, length);
    Load { arrivals: Some(arrivals), ..load }.run(behaviour)
}

#[test]
fn arrivals_go_on_while_the_server_stalls() {
    // 500 a second are to start; query 5000 takes a second, and the one client waits with it.
    let outcome = open_loop(500.0, 1, |_, count| {
        Answer::After(if count == 5000 { 1000 * MS } else { MS }, b'k')
    });
    assert_eq!((outcome.report.scheduled, outcome.report.unserved), (10_000, 0));
    let committed: u64 = outcome.rows.iter().map(|row| row.3).sum();
    assert!((9_998..=10_000).contains(&committed), "{committed}");
    let (response_p99, service_p99, lag) = outcome.open_ms.expect("an open loop");
    // The nth arrival after it finds n/2 served less than what came, so it ends 1001 - n ms late, up to
    // the thousandth. Of 10,000, the hundred that wait longest are 1 %.
    assert!((898.0..903.0).contains(&response_p99), "{response_p99}");
    assert!((1.0..1.01).contains(&service_p99), "{service_p99}");
    assert!((990.0..1000.0).contains(&lag), "{lag}");
}

#[test]
fn what_no_client_came_to_is_counted() {
    // One client serves 1000 a second, and 3000 are to start.
    let outcome = open_loop(3000.0, 1, |_, _| Answer::After(MS, b'k'));
    assert_eq!(outcome.report.scheduled, 60_000);
    assert!((39_999..=40_001).contains(&outcome.report.unserved), "{}", outcome.report.unserved);
}

#[test]
fn clients_of_an_open_loop_share_its_arrivals() {
    // 1500 a second at 10 ms each keep 15 clients busy, and 20 are there.
    let outcome = open_loop(1500.0, 20, |_, _| Answer::After(10 * MS, b'k'));
    assert_eq!((outcome.report.scheduled, outcome.report.unserved), (30_000, 0));
    let (response_p99, _, lag) = outcome.open_ms.expect("an open loop");
    assert!((10.0..10.1).contains(&response_p99), "{response_p99}");
    assert!(lag < 0.01, "{lag}");
    assert_eq!(outcome.report.lost, [] as [String; 0]);
}
