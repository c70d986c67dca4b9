//! The load generator: threads that carry clients, each client one connection, in a closed or an open loop.
//!
//! A [`Wire`] speaks a database's protocol without doing input or output, a [`Transport`] moves bytes
//! in completion style, [`run_thread`] joins the two. While measuring, a thread shares nothing,
//! takes no lock and allocates nothing per transaction; once a second it hands a closed interval
//! to whoever gathers them.

mod recorder;
mod schedule;
mod thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::plan::{Arrivals, QueryProtocol};
use crate::record::{Outcomes, Phase};
use crate::script::{Script, Statement};
use crate::seam::Endpoint;

pub use recorder::{ClosedInterval, histogram};
pub use thread::run_thread;

/// One connection's protocol as a state machine without input or output.
pub trait Wire {
    /// Starts a conversation, anew where there was one before: appends the first bytes to send.
    fn open(&mut self, out: &mut BytesMut);

    /// Appends the bytes that execute `statement` with the values of all slots.
    fn request(&mut self, statement: &Statement, values: &[i64], out: &mut BytesMut);

    /// Appends the bytes that end a failed transaction.
    fn rollback(&mut self, out: &mut BytesMut);

    /// Appends the bytes that take leave of the server.
    fn terminate(&mut self, out: &mut BytesMut);

    /// Looks at received bytes; says how many are dealt with and what they amount to. Bytes to be
    /// sent in answer (authentication, the second half of a prepared statement) are appended to
    /// `out`.
    fn receive(&mut self, input: &[u8], out: &mut BytesMut) -> (usize, Reply);
}

/// What received bytes amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing yet: more bytes must arrive (or what was appended to `out` must be sent first).
    Pending,
    /// The connection is open, or the statement succeeded.
    Done,
    /// The statement failed; the connection is usable.
    Failed(Failure),
    /// The connection is of no more use.
    Broken(String),
}

/// A statement that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Five characters.
    pub sqlstate: String,
    /// The server's words.
    pub message: String,
    /// Whether the same transaction may succeed when it is started again (a serialization failure
    /// or a deadlock); anything else ends the client.
    pub retryable: bool,
}

/// Moves bytes for the connections of one thread, in completion style.
///
/// Time is that of the transport, so that a scripted transport can have a clock of its own.
pub trait Transport {
    /// Starts to connect; the first completion of the connection is [`Completion::Connected`].
    fn connect(&mut self, connection: usize);

    /// Sends the bytes; what cannot be sent at once is kept and sent during [`Transport::wait`].
    fn submit(&mut self, connection: usize, bytes: &[u8]);

    /// Waits until something happened or `until` has come, and appends what happened.
    fn wait(&mut self, until: Instant, completions: &mut Vec<Completion>);

    /// Bytes received and not consumed yet.
    fn received(&self, connection: usize) -> &[u8];

    /// Drops the first `count` received bytes.
    fn consume(&mut self, connection: usize, count: usize);

    /// Closes the connection; no completion of it comes after that.
    fn close(&mut self, connection: usize);

    /// The current time of the transport's clock.
    fn now(&self) -> Instant;

    /// CPU time that this thread has used.
    fn cpu_time(&self) -> Duration;
}

/// Something that happened on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// The connection is there; bytes may be sent.
    Connected(usize),
    /// Bytes arrived.
    Received(usize),
    /// The connection is gone, for the reason given.
    Closed(usize, String),
}

impl Completion {
    /// The connection that it happened on.
    pub fn connection(&self) -> usize {
        match self {
            Self::Connected(connection)
            | Self::Received(connection)
            | Self::Closed(connection, _) => *connection,
        }
    }
}

/// What one load thread is to do.
#[derive(Debug, Clone)]
pub struct ThreadJob {
    /// The compiled scripts that steps refer to; all have the same given variables.
    pub scripts: Arc<[Script]>,
    /// Values of the given variables (`scale`), in the order of their slots.
    pub given: Vec<i64>,
    /// How statements are sent.
    pub protocol: QueryProtocol,
    /// The server.
    pub endpoint: Endpoint,
    /// Number of the first client this thread carries; numbers are unique in the trial.
    pub first_client: u32,
    /// What each client does, in the order of their numbers.
    pub programs: Vec<Program>,
    /// How often a transaction is tried, with the same values, when it fails in a way that may pass.
    pub max_tries: u32,
    /// Seed of all random values: a client's transaction has the same values whatever the threads do.
    pub seed: u64,
    /// The share of the arrivals that this thread's clients take; none in a closed loop.
    pub arrivals: Option<Arrivals>,
    /// Length of the warm-up.
    pub warmup: Duration,
    /// Length of the measured window; none when it ends with the last client's program.
    pub window: Option<Duration>,
    /// How long after the end of the window an unfinished transaction is waited for.
    pub grace: Duration,
}

/// What a client does: steps, again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The steps of one pass, at least one of them a transaction.
    pub steps: Arc<[Step]>,
    /// Passes; none when they go on until the window is over.
    pub passes: Option<u64>,
}

/// One step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A transaction: one pass through a script, timed and counted.
    Transaction(usize),
    /// Statements between transactions (`COMMIT`, `SET AUTOCOMMIT=0`): a script that is neither timed
    /// nor counted.
    Between(usize),
    /// A new connection in place of the old one.
    Reconnect,
}

/// What a load thread tells while it runs.
#[derive(Debug)]
pub enum ThreadEvent {
    /// All its connections have been tried.
    Connected {
        /// Reasons of those that could not be made.
        refused: Vec<String>,
    },
    /// An interval is closed. Every thread closes the same intervals, in the same order.
    Interval(Box<ClosedInterval>),
    /// The thread has ended.
    Ended(Box<ThreadReport>),
}

/// What a load thread leaves behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThreadReport {
    /// Committed transactions of the whole load.
    pub committed_all: u64,
    /// Transactions per client within the window, in the order of the clients.
    pub committed_by_client: Vec<u64>,
    /// Clients lost while running, with reasons.
    pub lost: Vec<String>,
    /// Clients whose last transaction did not end in time, or that were interrupted within one.
    pub unfinished: u32,
    /// Transactions that were to start within the window; 0 in a closed loop.
    pub scheduled: u64,
    /// Those among them that no client had come to when the window ended.
    pub unserved: u64,
    /// CPU time used within the window.
    pub cpu_in_window: Duration,
    /// Length of the window: as asked, or until the last client had done its program.
    pub window: Duration,
    /// When the first transaction started, from the start of the load.
    pub started_after: Duration,
}

/// Counts of one interval that are not in a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalSpan {
    /// Number of the interval, from 0 over both phases.
    pub index: u32,
    /// Warm-up or measure.
    pub phase: Phase,
    /// Start, from the start of the load.
    pub start: Duration,
    /// Length.
    pub length: Duration,
    /// Outcomes of transactions that ended in it.
    pub outcomes: Outcomes,
    /// Live clients at its end.
    pub live_clients: u32,
}

/// Starts all threads at one moment and stops them early when asked.
#[derive(Default)]
pub struct Control {
    start: Mutex<Option<Instant>>,
    started: Condvar,
    stop: AtomicBool,
}

impl Control {
    /// Lets all threads start; the moment is the zero of every clock of the trial.
    pub fn start(&self, at: Instant) {
        *self.start.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(at);
        self.started.notify_all();
    }

    /// Asks all threads to stop as soon as they can.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.started.notify_all();
    }

    /// Whether somebody asked to stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for the start; none when asked to stop before.
    fn wait_for_start(&self) -> Option<Instant> {
        let mut start = self.start.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        loop {
            if self.stopped() {
                return None;
            }
            if let Some(at) = *start {
                return Some(at);
            }
            start = self
                .started
                .wait_timeout(start, Duration::from_millis(50))
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }
}

/// Runs one load thread of the trial on the calling thread. Implemented by drivers, which choose the
/// wire and the transport and call [`run_thread`].
pub trait LoadDriver: Send + Sync {
    /// Carries the job's clients until they are done; tells `tell` what happens.
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent));

    /// Name and version, stored with every trial.
    fn name(&self) -> String;
}
