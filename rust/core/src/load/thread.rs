//! The hot loop: one thread's clients, from connecting to the last transaction.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::recorder::Recorder;
use super::schedule::Schedule;
use super::{
    Completion, Control, Failure, Program, Reply, Step, ThreadEvent, ThreadJob, ThreadReport,
    Transport, Wire,
};
use crate::rng::SplitMix64;
use crate::script::Command;

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
    /// Waiting for a new connection between two transactions.
    Reconnecting,
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
    program: Program,
    /// Index of the step being executed, and passes done.
    step: usize,
    pass: u64,
    /// Index of the script being executed, and of the command within it.
    script: usize,
    command: usize,
    /// Values of the script's variables.
    values: Vec<i64>,
    /// Number of the current transaction; with the seed and the client it decides all random values.
    sequence: u64,
    random: SplitMix64,
    /// When the current transaction was to start; in a closed loop, when it did.
    intended: Instant,
    started: Instant,
    /// Tries of the current transaction, this one included.
    tries: u32,
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
        .zip(&job.programs)
        .map(|(wire, program)| Client {
            wire,
            state: State::Unconnected,
            program: program.clone(),
            step: 0,
            pass: 0,
            script: 0,
            command: 0,
            values: initial_values(job),
            sequence: 0,
            random: SplitMix64::new(0),
            intended: now,
            started: now,
            tries: 0,
            committed_in_window: 0,
        })
        .collect();
    let mut thread = Thread {
        job,
        clients,
        transport,
        control,
        out: BytesMut::with_capacity(4096),
        completions: Vec::new(),
        schedule: None,
        free: VecDeque::with_capacity(job.programs.len()),
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
    let slots = job.scripts.iter().map(|script| script.variables.len()).max().unwrap_or(0);
    values.resize(slots, 0);
    values
}

/// What a reply led to.
enum Led {
    /// The client waits for the server.
    Waiting,
    /// A step is done; true when it was a transaction that committed.
    Done(bool),
    /// The client has done its program.
    Finished,
    /// The client is lost.
    Lost,
}

struct Thread<'a, W, T> {
    job: &'a ThreadJob,
    clients: Vec<Client<W>>,
    transport: &'a mut T,
    control: &'a Control,
    out: BytesMut,
    completions: Vec<Completion>,
    /// When transactions are to start; none in a closed loop.
    schedule: Option<Schedule>,
    /// Clients of an open loop that wait for the next arrival, the one that waits longest first.
    free: VecDeque<usize>,
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
                        self.open(index);
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
        self.schedule = self
            .job
            .arrivals
            .map(|arrivals| Schedule::new(zero, arrivals, self.job.seed, self.job.first_client));
        let open = self.schedule.is_some();
        let mut recorder = Recorder::new(zero, self.job.warmup, self.job.window, open);
        let mut cpu_at_window_start = recorder.measuring().then(|| self.transport.cpu_time());
        let mut running = 0_usize;
        self.report.started_after = self.transport.now().saturating_duration_since(zero);
        for index in 0..self.clients.len() {
            if self.clients[index].state == State::Idle {
                let now = self.transport.now();
                running += usize::from(matches!(self.take_up(index, now), Led::Waiting));
            }
        }
        let mut completions = std::mem::take(&mut self.completions);
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
                    running -= self.dismiss(&recorder);
                    self.leave_window(&recorder, now, &mut cpu_at_window_start);
                    give_up = Some(now + self.job.grace);
                }
            }
            if give_up.is_some_and(|at| now >= at) {
                break;
            }
            running -= self.serve_arrivals(&recorder);
            let mut until = now + WAKE_EVERY;
            if !recorder.over() {
                until = until.min(recorder.current_end());
            }
            if let Some(schedule) = self.schedule.as_ref().filter(|_| !self.free.is_empty()) {
                until = until.min(schedule.next());
            }
            self.transport.wait(until, &mut completions);
            for completion in completions.drain(..) {
                let (index, led) = match completion {
                    Completion::Received(index) => (index, self.advance(index, &mut recorder)),
                    Completion::Connected(index) => (index, self.open(index)),
                    Completion::Closed(index, reason) => {
                        self.lose_while_running(index, reason);
                        (index, Led::Lost)
                    }
                };
                let led = match led {
                    Led::Done(committed) => self.next(index, committed, &mut recorder),
                    led => led,
                };
                running -= usize::from(matches!(led, Led::Finished | Led::Lost));
            }
        }
        let now = self.transport.now();
        if !recorder.over() {
            let end = recorder.window_end().map_or(now, |end| end.min(now));
            // All clients have done their programs, are lost, or were told to stop.
            tell(ThreadEvent::Interval(recorder.close_at(end, self.count_live())));
            self.leave_window(&recorder, end, &mut cpu_at_window_start);
        }
        self.completions = completions;
        let unfinished =
            |client: &&Client<W>| matches!(client.state, State::Statement | State::RollingBack);
        self.report.unfinished =
            u32::try_from(self.clients.iter().filter(unfinished).count()).unwrap_or(u32::MAX);
    }

    /// Counts what was done and starts the client's next step, unless the window is over.
    fn next(&mut self, index: usize, committed: bool, recorder: &mut Recorder) -> Led {
        let now = self.transport.now();
        let window_over = recorder.over() || recorder.window_end().is_some_and(|end| now >= end);
        let client = &mut self.clients[index];
        if committed {
            self.report.committed_all += 1;
            if !window_over {
                let lag = client.started.saturating_duration_since(client.intended);
                recorder.committed(now - client.started, lag);
                client.committed_in_window += u64::from(recorder.measuring());
            }
        }
        if window_over {
            client.state = State::Finished;
            return Led::Finished;
        }
        client.step += 1;
        self.take_up(index, now)
    }

    /// Has a client that is free go on: at once in a closed loop, with the next arrival in an open one.
    fn take_up(&mut self, index: usize, now: Instant) -> Led {
        let client = &mut self.clients[index];
        if self.schedule.is_some() {
            client.state = State::Idle;
            self.free.push_back(index);
            return Led::Waiting;
        }
        client.intended = now;
        self.begin(index, now)
    }

    /// Starts the transactions that are due, as far as there are free clients; those that find none start late, in
    /// their order, and are counted from when they were due. Returns how many clients it lost.
    fn serve_arrivals(&mut self, recorder: &Recorder) -> usize {
        let mut lost = 0;
        while !self.free.is_empty()
            && let Some(schedule) = &mut self.schedule
        {
            let (now, due) = (self.transport.now(), schedule.next());
            if due > now || recorder.over() || recorder.window_end().is_some_and(|end| due >= end) {
                break;
            }
            schedule.advance();
            self.report.scheduled += u64::from(due >= recorder.window_start());
            if let Some(index) = self.free.pop_front() {
                self.clients[index].intended = due;
                lost += usize::from(matches!(self.begin(index, now), Led::Lost | Led::Finished));
            }
        }
        lost
    }

    /// Counts the arrivals of the window that no client came to, and lets the free clients go; returns how many.
    fn dismiss(&mut self, recorder: &Recorder) -> usize {
        if let (Some(schedule), Some(end)) = (&mut self.schedule, recorder.window_end()) {
            while schedule.next() < end {
                let within = u64::from(schedule.next() >= recorder.window_start());
                self.report.scheduled += within;
                self.report.unserved += within;
                schedule.advance();
            }
        }
        let free = self.free.len();
        for index in self.free.drain(..) {
            self.clients[index].state = State::Finished;
        }
        free
    }

    fn leave_window(&mut self, recorder: &Recorder, now: Instant, cpu: &mut Option<Duration>) {
        let end = recorder.window_end().map_or(now, |end| end.min(now));
        self.report.window = end.saturating_duration_since(recorder.window_start());
        if let Some(before) = cpu.take() {
            self.report.cpu_in_window = self.transport.cpu_time().saturating_sub(before);
        }
    }

    /// Starts the step that the client has come to.
    fn begin(&mut self, index: usize, now: Instant) -> Led {
        let client = &mut self.clients[index];
        if client.step == client.program.steps.len() {
            client.step = 0;
            client.pass += 1;
        }
        if client.program.passes.is_some_and(|passes| client.pass >= passes) {
            client.state = State::Finished;
            return Led::Finished;
        }
        client.started = now;
        client.tries = 1;
        match client.program.steps[client.step] {
            Step::Transaction(script) => {
                client.script = script;
                client.sequence += 1;
                self.start_try(index)
            }
            Step::Between(script) => {
                client.script = script;
                client.command = 0;
                self.send_next(index)
            }
            Step::Reconnect => {
                self.out.clear();
                client.wire.terminate(&mut self.out);
                client.state = State::Reconnecting;
                self.transport.submit(index, &self.out);
                self.transport.close(index);
                self.transport.connect(index);
                Led::Waiting
            }
        }
    }

    /// Starts the current transaction from its first command, with the values that belong to it.
    fn start_try(&mut self, index: usize) -> Led {
        let number = u64::from(self.job.first_client) + index as u64;
        let client = &mut self.clients[index];
        client.random = SplitMix64::for_transaction(self.job.seed, number, client.sequence);
        client.command = 0;
        self.send_next(index)
    }

    /// Starts the conversation on a connection that is there.
    fn open(&mut self, index: usize) -> Led {
        self.out.clear();
        self.clients[index].wire.open(&mut self.out);
        self.transport.submit(index, &self.out);
        Led::Waiting
    }

    /// Evaluates commands up to the next statement and sends it.
    fn send_next(&mut self, index: usize) -> Led {
        let client = &mut self.clients[index];
        let script = &self.job.scripts[client.script];
        while let Some(command) = script.commands.get(client.command) {
            match command {
                Command::Set { slot, expression } => {
                    match expression.evaluate(&client.values, &mut client.random) {
                        Ok(value) => client.values[*slot] = value,
                        Err(undefined) => {
                            let name = &script.variables[*slot];
                            self.lose_while_running(index, format!("`\\set {name}`: {undefined}"));
                            return Led::Lost;
                        }
                    }
                    client.command += 1;
                }
                Command::Sql(statement) => {
                    self.out.clear();
                    client.wire.request(statement, &client.values, &mut self.out);
                    client.state = State::Statement;
                    self.transport.submit(index, &self.out);
                    return Led::Waiting;
                }
            }
        }
        Led::Done(matches!(client.program.steps[client.step], Step::Transaction(_)))
    }

    /// Takes the received bytes of a client in its stride.
    fn advance(&mut self, index: usize, recorder: &mut Recorder) -> Led {
        match self.reply(index) {
            Reply::Pending => Led::Waiting,
            Reply::Done => match self.clients[index].state {
                State::Statement => {
                    self.clients[index].command += 1;
                    self.send_next(index)
                }
                State::RollingBack => self.after_rollback(index, recorder),
                State::Reconnecting => Led::Done(false),
                _ => Led::Waiting,
            },
            Reply::Failed(failure) => self.fail(index, failure, recorder),
            Reply::Broken(reason) => {
                self.lose_while_running(index, reason);
                Led::Lost
            }
        }
    }

    /// Rolls back what may succeed another time; any other failure ends the client.
    fn fail(&mut self, index: usize, failure: Failure, recorder: &mut Recorder) -> Led {
        let client = &mut self.clients[index];
        let again = failure.retryable && client.state == State::Statement;
        let last = client.tries >= self.job.max_tries;
        if client.state == State::Statement && !recorder.over() {
            if again && !last {
                recorder.retried();
            } else {
                recorder.failed(&failure);
            }
        }
        if !again {
            let Failure { sqlstate, message, .. } = failure;
            self.lose_while_running(index, format!("{sqlstate}: {message}"));
            return Led::Lost;
        }
        client.state = State::RollingBack;
        self.out.clear();
        client.wire.rollback(&mut self.out);
        self.transport.submit(index, &self.out);
        Led::Waiting
    }

    /// The same transaction once more, with the same values, or the next step.
    fn after_rollback(&mut self, index: usize, recorder: &Recorder) -> Led {
        if self.clients[index].tries >= self.job.max_tries || recorder.over() {
            return Led::Done(false);
        }
        self.clients[index].tries += 1;
        self.start_try(index)
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
