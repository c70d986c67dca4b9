//! What is read beside the load: the machine, the volume's devices and the server, once a second for the
//! metrics, and at the start and the end of the load for what is counted over all of it.
//!
//! The server is asked in a task of its own, so that one that does not answer holds up nothing: its
//! readings are missing then, and a gap stays a gap.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::plan::{Cell, EngineKind};
use crate::record::{MetricSample, TrialRecord};
use crate::run::Study;
use crate::sampler::{DeviceCounts, Monitor, Reading, Sampler};
use crate::seam::{Event, Observer, Server, Session, Volume};
use crate::server_metrics::{self, work_between};

/// How long a server may take to answer where its counts are needed.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Reads everything beside one load.
pub(crate) struct Watch<'a> {
    monitor: &'a dyn Monitor,
    observer: &'a dyn Observer,
    of: &'a dyn Server,
    engine: EngineKind,
    version: String,
    devices: Vec<Vec<String>>,
    process: Option<u32>,
    /// Once the load begins.
    server: Option<ServerWatch>,
    /// Whether there are metrics, and not only what is counted over the whole load.
    metrics: bool,
    sampler: Sampler,
    before: Totals,
    zero: Instant,
    /// Whether it was said that the server does not tell its counts.
    said: bool,
}

/// Counts at a moment, of which the growth is told.
#[derive(Default)]
struct Totals {
    devices: Option<DeviceCounts>,
    process: Vec<Reading>,
    server: Vec<Reading>,
}

impl Totals {
    fn of_server(&self) -> Vec<Reading> {
        [self.process.as_slice(), self.server.as_slice()].concat()
    }
}

impl<'a> Watch<'a> {
    /// Prepares to read beside the load of a cell.
    pub(crate) async fn new(
        study: &Study<'a>,
        cell: &Cell,
        record: &TrialRecord,
        volume: &dyn Volume,
        server: &'a dyn Server,
    ) -> Self {
        Self {
            monitor: study.monitor,
            observer: study.observer,
            of: server,
            engine: cell.engine.kind,
            version: record.server.version.clone(),
            devices: volume.devices(),
            process: server.process().await,
            server: None,
            metrics: study.plan.design.metrics,
            sampler: Sampler::default(),
            before: Totals::default(),
            zero: Instant::now(),
            said: false,
        }
    }

    /// Reads everything at the start of the load, which is to follow at once.
    ///
    /// The clients are connected by now: where they take all connections but those that a server keeps for
    /// its superuser, ours is one of these.
    pub(crate) async fn begin(&mut self) -> Vec<MetricSample> {
        let session = tokio::time::timeout(ANSWERS_WITHIN, self.of.session(self.of.endpoint()));
        match session.await.unwrap_or_else(|_| Err(no_answer())) {
            Ok(session) => {
                let version = self.version.clone();
                self.server = Some(ServerWatch::start(self.engine, version, session));
            }
            Err(error) => self.say(&error),
        }
        self.before = self.totals().await;
        self.zero = Instant::now();
        if !self.metrics {
            return Vec::new();
        }
        let readings = [self.machine(), self.before.server.clone()].concat();
        self.sampler.samples(Duration::ZERO, &readings)
    }

    /// Reads the machine, and asks the server.
    pub(crate) fn tick(&mut self) -> Vec<MetricSample> {
        if !self.metrics {
            return Vec::new();
        }
        if let Some(server) = &self.server {
            server.ask();
        }
        let readings = self.machine();
        self.sampler.samples(self.zero.elapsed(), &readings)
    }

    /// The server's next answer; never when it is not asked.
    pub(crate) async fn told(&mut self) -> Vec<MetricSample> {
        match &mut self.server {
            Some(server) => {
                let (at, answer) = server.told().await;
                let readings = self.readings(answer);
                self.sampler.samples(at.saturating_duration_since(self.zero), &readings)
            }
            None => std::future::pending().await,
        }
    }

    /// Adds to the record what was done since the start of the load.
    pub(crate) async fn end(mut self, record: &mut TrialRecord) {
        let after = self.totals().await;
        if let Some((before, after)) = self.before.devices.zip(after.devices) {
            record.devices.get_or_insert_default().add(before, after);
        }
        let work = work_between(&self.before.of_server(), &after.of_server());
        match &mut record.server_work {
            Some(all) => all.add(work),
            none => *none = Some(work),
        }
    }

    async fn totals(&mut self) -> Totals {
        let devices = self.monitor.devices(&self.devices);
        let answer = match &mut self.server {
            Some(watch) => watch.read().await,
            None => Ok(Vec::new()),
        };
        let server = self.readings(answer);
        Totals { devices, process: self.process(), server }
    }

    /// What the server told, if it could.
    fn readings(&mut self, answer: Result<Vec<Reading>>) -> Vec<Reading> {
        answer.unwrap_or_else(|error| {
            self.say(&error);
            Vec::new()
        })
    }

    /// Tells the user once that, and why, the server's counts are missing.
    fn say(&mut self, error: &Error) {
        if !self.said {
            self.said = true;
            let text = format!("the server's own metrics are not read: {error}");
            self.observer.event(&Event::Note { text });
        }
    }

    /// What the machine, the volume's devices and the server's processes show at this moment.
    fn machine(&self) -> Vec<Reading> {
        let mut readings = self.monitor.read();
        let devices = self.monitor.devices(&self.devices);
        readings.extend(devices.into_iter().flat_map(DeviceCounts::readings));
        readings.extend(self.process());
        readings
    }

    fn process(&self) -> Vec<Reading> {
        self.process.map(|process| self.monitor.server(process)).unwrap_or_default()
    }
}

fn no_answer() -> Error {
    Error::driver(format!("it does not answer within {} s", ANSWERS_WITHIN.as_secs()))
}

type Answer = (Instant, Result<Vec<Reading>>);

/// Asks a server for its counts beside the load.
struct ServerWatch {
    ask: mpsc::Sender<()>,
    told: mpsc::UnboundedReceiver<Answer>,
    /// Ends with this value, whatever it waits for.
    _task: JoinSet<()>,
}

impl ServerWatch {
    /// Starts asking over a session of its own.
    fn start(engine: EngineKind, version: String, session: Box<dyn Session>) -> Self {
        // One question waits at most: a server that is behind is not asked more.
        let (ask, mut asked) = mpsc::channel(1);
        let (tell, told) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut session = session;
            while asked.recv().await.is_some() {
                let read = server_metrics::read(engine, &version, session.as_mut()).await;
                if tell.send((Instant::now(), read)).is_err() {
                    break;
                }
            }
        });
        Self { ask, told, _task: task }
    }

    /// Asks, unless an earlier question still waits.
    fn ask(&self) {
        let _ = self.ask.try_send(());
    }

    /// The next answer and its moment; never when the server no longer answers at all.
    async fn told(&mut self) -> Answer {
        match self.told.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Asks and waits for the answer; none when the server takes too long.
    async fn read(&mut self) -> Result<Vec<Reading>> {
        let asked_at = Instant::now();
        self.ask();
        let answer = async {
            loop {
                // An answer to an earlier question is not of now.
                let (at, readings) = self.told().await;
                if at >= asked_at {
                    return readings;
                }
            }
        };
        tokio::time::timeout(ANSWERS_WITHIN, answer).await.unwrap_or_else(|_| Err(no_answer()))
    }
}
