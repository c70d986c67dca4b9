//! The hot loop: one thread's clients, from connecting to the last transaction.

use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::recorder::Recorder;
use super::{
    Completion, Control, Failure, Reply, ThreadEvent, ThreadJob, ThreadReport, Transport, Wire,
};
use crate::plan::RunLength;
use crate::rng::SplitMix64;
use crate::script::{Command, Script};

/// Connections that are being made at the same time; a server starts one process for each.
const CONNECTING_AT_ONCE: usize = 8;
/// How long all connections together may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(120);
/// The longest sleep, so that a wish to stop is noticed.
const WAKE_EVERY: Duration = Duration::from_millis(100);

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not tried yet.
    Unconnected,
    /// Waiting for the connection or for the end of the handshake.
    Connecting,
    /// Connected and idle.
    Idle,
    /// Waiting for the reply to a statement.
    Statement,
    /// Waiting for the end of a failed transaction.
    RollingBack,
    /// All its transactions are done.
    Finished,
    /// Its connection is gone, or an error ended it.
    Lost,
}

struct Client<W> {
    wire: W,
    state: State,
    /// Index of the command being executed.
    command: usize,
    /// Values of the script's variables.
    values: Vec<i64>,
    /// Number of the current transaction; with the seed and the client it decides all random values.
    sequence: u64,
    random: SplitMix64,
    started: Instant,
    committed_in_window: u64,
}

/// Carries the job's clients, one `wire` each, until they are done.
///
/// The order of things: connect all, tell [`ThreadEvent::Connected`], wait for the start, run
/// transactions until the window is over, let each client finish the transaction it is in, tell
/// [`ThreadEvent::Ended`].
pub fn run_thread<W: Wire, T: Transport>(
    job: &ThreadJob,
    wires: Vec<W>,
    transport: &mut T,
    control: &Control,
    tell: &mut dyn FnMut(ThreadEvent),
) {
    let now = transport.now();
    let clients = wires
        .into_iter()
        .map(|wire| Client {
            wire,
            state: State::Unconnected,
            command: 0,
            values: initial_values(job),
            sequence: 0,
            random: SplitMix64::new(0),
            started: now,
            committed_in_window: 0,
        })
        .collect();
    let mut thread = Thread {
        job,
        script: &job.script,
        clients,
        transport,
        control,
        out: BytesMut::with_capacity(4096),
        completions: Vec::new(),
        report: ThreadReport::default(),
    };
    let refused = thread.connect();
    tell(ThreadEvent::Connected { refused });
    if let Some(zero) = control.wait_for_start() {
        thread.run(zero, tell);
    }
    tell(ThreadEvent::Ended(Box::new(thread.finish())));
}

fn initial_values(job: &ThreadJob) -> Vec<i64> {
    let mut values = job.given.clone();
    values.resize(job.script.variables.len(), 0);
    values
}

/// What a reply led to.
enum Step {
    /// The client waits for the server.
    Waiting,
    /// A transaction committed.
    Committed,
    /// A transaction failed and has been rolled back; the client goes on.
    Failed,
    /// The client is lost.
    Lost,
}

struct Thread<'a, W, T> {
    job: &'a ThreadJob,
    script: &'a Script,
    clients: Vec<Client<W>>,
    transport: &'a mut T,
    control: &'a Control,
    out: BytesMut,
    completions: Vec<Completion>,
    report: ThreadReport,
}

impl<W: Wire, T: Transport> Thread<'_, W, T> {
    /// Makes all connections, a few at a time; returns the reasons of those that failed.
    fn connect(&mut self) -> Vec<String> {
        let deadline = self.transport.now() + CONNECT_DEADLINE;
        let mut refused = Vec::new();
        let mut next = 0;
        let mut pending = 0;
        let mut completions = Vec::new();
        while next < self.clients.len() || pending > 0 {
            let now = self.transport.now();
            if self.control.stopped() {
                break;
            }
            if now >= deadline {
                for index in 0..self.clients.len() {
                    if matches!(self.clients[index].state, State::Connecting | State::Unconnected) {
                        let reason =
                            format!("not connected within {} s", CONNECT_DEADLINE.as_secs());
                        self.lose(index);
                        refused.push(reason);
                    }
                }
                break;
            }
            while next < self.clients.len() && pending < CONNECTING_AT_ONCE {
                self.clients[next].state = State::Connecting;
                self.transport.connect(next);
                next += 1;
                pending += 1;
            }
            self.transport.wait(now + WAKE_EVERY, &mut completions);
            for completion in completions.drain(..) {
                match completion {
                    Completion::Connected(index) => {
                        self.out.clear();
                        self.clients[index].wire.open(&mut self.out);
                        self.transport.submit(index, &self.out);
                    }
                    Completion::Received(index) => match self.reply(index) {
                        Reply::Pending => {}
                        Reply::Done => {
                            self.clients[index].state = State::Idle;
                            pending -= 1;
                        }
                        Reply::Failed(Failure { message, .. }) | Reply::Broken(message) => {
                            self.lose(index);
                            refused.push(message);
                            pending -= 1;
                        }
                    },
                    Completion::Closed(index, reason) => {
                        self.lose(index);
                        refused.push(reason);
                        pending -= 1;
                    }
                }
            }
        }
        refused
    }

    /// Runs transactions from `zero` until the window is over and the last ones have ended.
    fn run(&mut self, zero: Instant, tell: &mut dyn FnMut(ThreadEvent)) {
        let mut recorder = Recorder::new(zero, self.job.warmup, self.job.length);
        let mut cpu_at_window_start = recorder.measuring().then(|| self.transport.cpu_time());
        let transactions = match self.job.length {
            RunLength::Transactions(count) => count,
            RunLength::DurationS(_) => u64::MAX,
        };
        for index in 0..self.clients.len() {
            if self.clients[index].state == State::Idle {
                let now = self.transport.now();
                self.begin(index, now);
            }
        }
        let mut completions = std::mem::take(&mut self.completions);
        let mut running = self.count_running();
        let mut give_up = None;
        while running > 0 && !self.control.stopped() {
            let now = self.transport.now();
            while !recorder.over() && now >= recorder.current_end() {
                let was_measuring = recorder.measuring();
                tell(ThreadEvent::Interval(recorder.close(self.count_live())));
                if !was_measuring && recorder.measuring() {
                    cpu_at_window_start = Some(self.transport.cpu_time());
                }
                if recorder.over() {
                    self.leave_window(&recorder, now, &mut cpu_at_window_start);
                    give_up = Some(now + self.job.grace);
                }
            }
            if give_up.is_some_and(|at| now >= at) {
                break;
            }
            let until = if recorder.over() {
                now + WAKE_EVERY
            } else {
                recorder.current_end().min(now + WAKE_EVERY)
            };
            self.transport.wait(until, &mut completions);
            for completion in completions.drain(..) {
                let (index, step) = match completion {
                    Completion::Received(index) => (index, self.advance(index, &mut recorder)),
                    Completion::Closed(index, reason) => {
                        self.lose_while_running(index, reason);
                        (index, Step::Lost)
                    }
                    Completion::Connected(_) => continue,
                };
                let now = match step {
                    Step::Waiting => continue,
                    Step::Lost => {
                        running -= 1;
                        continue;
                    }
                    Step::Committed | Step::Failed => self.transport.now(),
                };
                let client = &mut self.clients[index];
                let window_over =
                    recorder.over() || recorder.window_end().is_some_and(|end| now >= end);
                if matches!(step, Step::Committed) {
                    self.report.committed_all += 1;
                    if !window_over {
                        recorder.committed(now - client.started);
                        client.committed_in_window += u64::from(recorder.measuring());
                    }
                }
                if window_over || client.sequence >= transactions {
                    client.state = State::Finished;
                    running -= 1;
                } else if !self.begin(index, now) {
                    running -= 1;
                }
            }
        }
        let now = self.transport.now();
        if !recorder.over() {
            let end = recorder.window_end().map_or(now, |end| end.min(now));
            // All clients are done (a number of transactions each), lost, or told to stop.
            tell(ThreadEvent::Interval(recorder.close_at(end, self.count_live())));
            self.leave_window(&recorder, end, &mut cpu_at_window_start);
        }
        self.completions = completions;
        self.report.unfinished = u32::try_from(
            self.clients
                .iter()
                .filter(|client| matches!(client.state, State::Statement | State::RollingBack))
                .count(),
        )
        .unwrap_or(u32::MAX);
    }

    fn leave_window(&mut self, recorder: &Recorder, now: Instant, cpu: &mut Option<Duration>) {
        let end = recorder.window_end().map_or(now, |end| end.min(now));
        self.report.window = end.saturating_duration_since(recorder.window_start());
        if let Some(before) = cpu.take() {
            self.report.cpu_in_window = self.transport.cpu_time().saturating_sub(before);
        }
    }

    /// Starts the client's next transaction; false when the client is lost over it.
    fn begin(&mut self, index: usize, now: Instant) -> bool {
        let number = u64::from(self.job.clients.start) + index as u64;
        let client = &mut self.clients[index];
        client.random = SplitMix64::for_transaction(self.job.seed, number, client.sequence);
        client.sequence += 1;
        client.command = 0;
        client.started = now;
        matches!(self.send_next(index), Step::Waiting)
    }

    /// Evaluates commands up to the next statement and sends it.
    fn send_next(&mut self, index: usize) -> Step {
        let client = &mut self.clients[index];
        while let Some(command) = self.script.commands.get(client.command) {
            match command {
                Command::Set { slot, expression } => {
                    match expression.evaluate(&client.values, &mut client.random) {
                        Ok(value) => client.values[*slot] = value,
                        Err(undefined) => {
                            let name = &self.script.variables[*slot];
                            self.lose_while_running(index, format!("`\\set {name}`: {undefined}"));
                            return Step::Lost;
                        }
                    }
                    client.command += 1;
                }
                Command::Sql(statement) => {
                    self.out.clear();
                    client.wire.request(statement, &client.values, &mut self.out);
                    client.state = State::Statement;
                    self.transport.submit(index, &self.out);
                    return Step::Waiting;
                }
            }
        }
        Step::Committed
    }

    /// Takes the received bytes of a client in its stride.
    fn advance(&mut self, index: usize, recorder: &mut Recorder) -> Step {
        match self.reply(index) {
            Reply::Pending => Step::Waiting,
            Reply::Done => match self.clients[index].state {
                State::Statement => {
                    self.clients[index].command += 1;
                    self.send_next(index)
                }
                State::RollingBack => Step::Failed,
                _ => Step::Waiting,
            },
            Reply::Failed(failure) => {
                if self.clients[index].state == State::Statement && !recorder.over() {
                    recorder.failed(&failure);
                }
                if failure.retryable && self.clients[index].state == State::Statement {
                    let client = &mut self.clients[index];
                    client.state = State::RollingBack;
                    self.out.clear();
                    client.wire.rollback(&mut self.out);
                    self.transport.submit(index, &self.out);
                    Step::Waiting
                } else {
                    let Failure { sqlstate, message, .. } = failure;
                    self.lose_while_running(index, format!("{sqlstate}: {message}"));
                    Step::Lost
                }
            }
            Reply::Broken(reason) => {
                self.lose_while_running(index, reason);
                Step::Lost
            }
        }
    }

    /// Feeds received bytes to the wire and sends what it answers.
    fn reply(&mut self, index: usize) -> Reply {
        self.out.clear();
        let (consumed, reply) =
            self.clients[index].wire.receive(self.transport.received(index), &mut self.out);
        self.transport.consume(index, consumed);
        if !self.out.is_empty() {
            self.transport.submit(index, &self.out);
        }
        reply
    }

    fn lose(&mut self, index: usize) {
        self.clients[index].state = State::Lost;
        self.transport.close(index);
    }

    fn lose_while_running(&mut self, index: usize, reason: String) {
        self.lose(index);
        self.report.lost.push(reason);
    }

    fn count_running(&self) -> usize {
        self.clients.iter().filter(|client| client.state == State::Statement).count()
    }

    fn count_live(&self) -> u32 {
        let lost = |client: &&Client<W>| client.state != State::Lost;
        u32::try_from(self.clients.iter().filter(lost).count()).unwrap_or(u32::MAX)
    }

    fn finish(mut self) -> ThreadReport {
        for index in 0..self.clients.len() {
            if self.clients[index].state == State::Lost {
                continue;
            }
            if !matches!(self.clients[index].state, State::Unconnected | State::Connecting) {
                self.out.clear();
                self.clients[index].wire.terminate(&mut self.out);
                self.transport.submit(index, &self.out);
            }
            self.transport.close(index);
        }
        self.report.committed_by_client =
            self.clients.iter().map(|client| client.committed_in_window).collect();
        self.report
    }
}
