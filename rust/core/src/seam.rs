//! The seams between core and the world. Each trait here has at least two implementations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::plan::{Ageing, EnginePlan, Plan, StoragePlan};
use crate::probe::Probe;
use crate::record::{
    Aged, Environment, Interval, MetricSample, Phase, ServerFacts, TrialId, TrialRecord,
    VolumeFacts,
};

/// Where trials live: makes volumes and servers, and can undo everything it made.
///
/// Whatever a site makes is on the ledger before it exists and off it after it is gone.
#[async_trait]
pub trait Site: Send + Sync {
    /// Checks, before anything is made, that the plan can be carried out here: images, binaries,
    /// tools, free space, ports.
    ///
    /// # Errors
    /// The first thing that is missing, with the step that brings it.
    async fn preflight(&self, plan: &Plan) -> Result<()>;

    /// Makes the fresh volume of a trial.
    async fn create_volume(&self, id: &TrialId, storage: &StoragePlan) -> Result<Box<dyn Volume>>;

    /// Starts a fresh server on the volume, waits until it accepts connections, and makes room in it
    /// for so many instances of a workload.
    async fn start_server(
        &self,
        id: &TrialId,
        engine: &EnginePlan,
        instances: u32,
        volume: &dyn Volume,
    ) -> Result<Box<dyn Server>>;

    /// Undoes, in reverse order, whatever this process made for the trial and has not undone yet.
    /// Calling it again is harmless.
    async fn tear_down(&self, id: &TrialId) -> Result<()>;

    /// Facts of machine and software.
    async fn environment(&self) -> Environment;
}

/// A storage that was made for one trial.
#[async_trait]
pub trait Volume: Send + Sync {
    /// What a server of the same site mounts or uses as the parent of its data directory: a host
    /// path, the name of a Docker volume, or nothing.
    fn location(&self) -> VolumeLocation;

    /// Reads the facts back from the live volume.
    async fn facts(&self) -> Result<VolumeFacts>;

    /// Names of the block devices that the volume lies on, as this machine's kernel has them, in groups
    /// of those that one flush goes to; none when it lies on none, or they are not to be seen from here.
    ///
    /// A file system flushes all of its devices, and so does a RAID; ZFS flushes only the members of its
    /// stripe that what is waited for was written to.
    fn devices(&self) -> Vec<Vec<String>>;

    /// How much room there is; absent when that cannot be seen.
    async fn room(&self) -> Option<Room>;

    /// Fills it with files, deletes and writes some of them anew, and leaves them there.
    async fn age(&self, ageing: Ageing, seed: u64) -> Result<Aged>;

    /// Measures what a write and a reading take, on the volume as a server would see it; none where
    /// there is nothing of ours to write to.
    async fn probe(&self) -> Result<Option<Probe>>;

    /// Looks at the files on it.
    async fn contents(&self) -> Contents;

    /// Has the kernel write its files and then forget them, and tells the share of them that it still has in
    /// memory, where that can be seen. The server must have been stopped.
    async fn forget(&self) -> Result<Option<f64>>;

    /// Waits until the device under the volume is idle (or `at_most` has passed: then it returns
    /// false).
    async fn settle(&self, at_most: std::time::Duration) -> Result<bool>;
}

/// The files on a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Contents {
    /// Share of them that the kernel has in memory; absent where that cannot be seen.
    pub cached_share: Option<f64>,
    /// What gzip leaves of the tables among them, as a share of their size; absent where there are none, or
    /// they cannot be read.
    pub compressed_share: Option<f64>,
}

/// The room on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Size of its file system in bytes.
    pub bytes: u64,
    /// What files take, as the file system counts it, in bytes.
    pub used_bytes: u64,
    /// What is free for others than root, in bytes.
    pub free_bytes: u64,
}

impl Room {
    /// Whether a database may have found no room. Its files grow by up to 16 MiB at once (a segment of
    /// PostgreSQL's WAL), and what did not fit is free again.
    pub fn is_full(self) -> bool {
        self.free_bytes < (16 << 20) + self.bytes / 100
    }
}

/// Where a volume is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeLocation {
    /// A directory of this machine.
    Path(std::path::PathBuf),
    /// A volume of the Docker daemon.
    DockerVolume(String),
    /// The storage of a server that exists already.
    Existing,
}

/// A running server.
#[async_trait]
pub trait Server: Send + Sync {
    /// How to reach it for set-up and checks.
    fn endpoint(&self) -> &Endpoint;

    /// How each instance of the workload reaches it: several have a schema and a user each, a single
    /// one uses [`Server::endpoint`].
    fn instances(&self) -> &[Endpoint];

    /// What the server says of itself, read over a connection and from its own namespace.
    async fn facts(&self) -> Result<ServerFacts>;

    /// Opens a session for set-up and checks at one of its endpoints.
    async fn session(&self, endpoint: &Endpoint) -> Result<Box<dyn Session>>;

    /// The number of its first process, the parent of the others, where this machine's kernel shows it.
    async fn process(&self) -> Option<u32>;

    /// None while the server runs, otherwise how it ended.
    async fn ended(&self) -> Option<String>;

    /// The server's log so far; empty when it cannot be had (provision `url`).
    async fn log(&self) -> Result<String>;

    /// Stops the server in an orderly way and waits for it. The volume stays.
    async fn stop(&self) -> Result<()>;

    /// Starts it again on what it left, after [`Server::stop`], and waits until it accepts connections.
    /// [`Server::endpoint`] and [`Server::instances`] may be others then.
    async fn start_again(&mut self) -> Result<()>;
}

/// How to reach a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Socket directory or host.
    pub address: Address,
    /// Role name.
    pub user: String,
    /// Password; never shown.
    pub password: String,
    /// Database name.
    pub database: String,
    /// Parameters set at the start of each session (`search_path`, for a schema of our own).
    pub session_settings: Vec<(String, String)>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("session_settings", &self.session_settings)
            .finish_non_exhaustive()
    }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The socket file itself: `DIR/.s.PGSQL.5432`.
    Unix(std::path::PathBuf),
    /// A host and a port.
    Tcp(String, u16),
}

/// A connection for set-up, checks and metadata: not the measured path.
#[async_trait]
pub trait Session: Send {
    /// Runs statements and ignores their rows.
    async fn execute(&mut self, sql: &str) -> Result<()>;

    /// Runs one query; rows of columns as text.
    async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>>;

    /// Feeds `COPY … FROM STDIN` with the chunks that `next` yields until it yields none.
    async fn copy_in(
        &mut self,
        sql: &str,
        next: &mut (dyn FnMut() -> Option<Vec<u8>> + Send),
    ) -> Result<u64>;
}

/// Where a run's results go, trial by trial.
pub trait RunSink: Send {
    /// A trial starts.
    fn trial_started(&mut self, id: &TrialId) -> Result<()>;
    /// An interval of the current trial is closed.
    fn interval(&mut self, interval: &Interval) -> Result<()>;
    /// Metrics were read beside the current trial.
    fn metrics(&mut self, samples: &[MetricSample]) -> Result<()>;
    /// The current trial ended; `log` is the server's log.
    fn trial_ended(&mut self, record: &TrialRecord, log: &str) -> Result<()>;
}

/// The only way core speaks.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event);
}

/// What an observer is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The run starts.
    RunStarted {
        /// Trials planned.
        trials: u32,
        /// Estimated length in seconds.
        estimated_s: f64,
    },
    /// A trial enters a phase.
    PhaseStarted {
        /// Number of the trial, from 0.
        trial: u32,
        /// Label of its cell.
        cell: String,
        /// The phase.
        phase: Phase,
        /// How long the phase will take, where that is known.
        expected_s: Option<f64>,
    },
    /// Part of a phase is done.
    Progress {
        /// From 0 to 1.
        fraction: f64,
    },
    /// A second passed while measuring or warming up.
    Second {
        /// Committed transactions in it.
        committed: u64,
    },
    /// A trial ended.
    TrialEnded {
        /// Its record.
        record: Box<TrialRecord>,
    },
    /// Something the user should know.
    Note {
        /// One plain sentence.
        text: String,
    },
}

/// The user's wish to stop, shared by everyone who might wait.
#[derive(Clone, Default)]
pub struct Cancel(Arc<(AtomicBool, Notify)>);

impl Cancel {
    /// Asks everyone to stop.
    pub fn cancel(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify_waiters();
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// Waits until somebody asks.
    pub async fn cancelled(&self) {
        let notified = self.0.1.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !self.is_cancelled() {
            notified.await;
        }
    }

    /// Runs `work` unless somebody asks first; the work is then dropped where it stands, and what
    /// it made is undone by [`Site::tear_down`].
    ///
    /// # Errors
    /// [`Error::interrupted`], or the work's own error.
    pub async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancelled() => Err(Error::interrupted()),
            result = work => result,
        }
    }
}
