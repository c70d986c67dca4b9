//! The record of everything that this process has made and not yet undone.
//!
//! One file of JSON lines per process, written before a thing exists and again after it is gone.
//! The file stays locked while its owner (or a tool that the owner started) lives, so whoever gets
//! the lock knows that the owner is dead: process ids may be reused and machines restarted.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bedplate_core::error::{Error, Result};
use bedplate_core::plan::TlsMode;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::undo::undo;

/// How long a sweep waits for the last tools of a dead owner to end.
const ORPHANS_END_WITHIN: Duration = Duration::from_secs(30);
/// How long it takes a process that was just killed to die.
const DYING_WITHIN: Duration = Duration::from_millis(250);

/// A thing that was made and can be undone by what is written here alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Resource {
    /// A container; its anonymous volumes go with it.
    Container {
        /// Its name.
        name: String,
    },
    /// A volume of the Docker daemon.
    DockerVolume {
        /// Its name.
        name: String,
    },
    /// A directory with everything in it. Some part of the path's name must begin with `bedplate-`,
    /// and nothing may be mounted in it.
    Directory {
        /// Its absolute path.
        path: PathBuf,
    },
    /// An image file and the loop devices on it.
    LoopImage {
        /// The image's absolute path, without symbolic links.
        image: PathBuf,
    },
    /// A pool of ZFS; its name begins with `bedplate-`.
    Pool {
        /// Its name.
        name: String,
    },
    /// The array of md that the loop devices of an image are part of.
    Array {
        /// The image's absolute path, without symbolic links.
        image: PathBuf,
    },
    /// A block device of this machine, which stays; what we put on it goes.
    Device {
        /// Its path.
        path: PathBuf,
        /// What tells it from all others.
        id: String,
        /// What was made on it: a file system in the word of mkfs, or `zfs`.
        file_system: String,
    },
    /// An image file in a Docker volume and the loop devices on it.
    DockerLoopImage {
        /// The volume that holds the image.
        volume: String,
        /// The image's file name.
        name: String,
    },
    /// A mount.
    Mount {
        /// The mount point's absolute path, without symbolic links.
        path: PathBuf,
    },
    /// A database server that runs as processes of this machine.
    ServerProcess {
        /// Its data directory's absolute path.
        data_dir: PathBuf,
    },
    /// A schema in a server that existed already; dropped only if it carries our mark.
    Schema {
        /// Connection URL without a password; its scheme tells the kind of the server.
        url: String,
        /// The schema's name.
        schema: String,
        /// The user that was made for it alone.
        #[serde(default)]
        user: Option<String>,
        /// How connections to the server are encrypted.
        #[serde(default = "no_tls")]
        tls: TlsMode,
        /// The certificates that mode `verify` trusts.
        #[serde(default)]
        tls_ca: Option<PathBuf>,
    },
}

/// What ledgers without a word about it mean.
fn no_tls() -> TlsMode {
    TlsMode::Off
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container { name } => write!(f, "container {name}"),
            Self::DockerVolume { name } => write!(f, "docker volume {name}"),
            Self::Directory { path } => write!(f, "directory {}", path.display()),
            Self::LoopImage { image } => write!(f, "loop image {}", image.display()),
            Self::Pool { name } => write!(f, "pool {name}"),
            Self::Array { image } => write!(f, "array on {}", image.display()),
            Self::Device { path, file_system, .. } => {
                write!(f, "{file_system} on {}", path.display())
            }
            Self::DockerLoopImage { volume, name } => {
                write!(f, "loop image {name} in docker volume {volume}")
            }
            Self::Mount { path } => write!(f, "mount {}", path.display()),
            Self::ServerProcess { data_dir } => write!(f, "server in {}", data_dir.display()),
            Self::Schema { schema, .. } => write!(f, "schema {schema}"),
        }
    }
}

/// Names one entry of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u64);

/// One line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Owner { owner: Owner },
    Add { add: u64, scope: String, resource: Resource },
    Done { done: u64 },
}

/// Who wrote a ledger. Only a help for waiting: that an owner is dead is known by its lock.
#[derive(Serialize, Deserialize)]
struct Owner {
    pid: u32,
    /// The process's start in clock ticks since boot.
    started: String,
    boot_id: String,
}

/// The ledger of this process, or one taken over from a dead process.
pub struct Ledger {
    path: PathBuf,
    state: Mutex<State>,
    /// Undoing happens once at a time, in order.
    undoing: tokio::sync::Mutex<()>,
}

struct State {
    file: File,
    next: u64,
    entries: BTreeMap<u64, (String, Resource)>,
    /// Lines of another version of this program, which cannot be undone and must not be lost.
    foreign: Vec<String>,
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// What was undone, in words.
    pub undone: Vec<String>,
    /// What could not be undone and why; it stays on its ledger.
    pub failed: Vec<String>,
}

impl Ledger {
    /// Opens a new ledger under `state_dir`, which is made if need be.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    pub fn open(state_dir: &Path) -> Result<Self> {
        let dir = ledger_dir(state_dir);
        let failed = |error: io::Error| {
            Error::provision(format!("cannot open a ledger in {}: {error}", dir.display()))
                .hint("give a directory that can be written as the state directory")
        };
        // Only the ledgers are private: a server's own user must be able to enter what is beside them.
        std::fs::create_dir_all(state_dir).map_err(failed)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
        loop {
            let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let path = dir.join(format!("{}-{nanos}.jsonl", std::process::id()));
            let options = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
            let file = match options {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(failed)?,
            };
            // A sweep may look at the file before it is locked, and take it for an empty leftover.
            if !try_lock(&file).map_err(failed)? || !is_at(&file, &path) {
                continue;
            }
            let ledger = Self::of(
                path,
                State { file, next: 0, entries: BTreeMap::new(), foreign: Vec::new() },
            );
            ledger.state().write(&Line::Owner { owner: Owner::this_process() })?;
            File::open(&dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
            return Ok(ledger);
        }
    }

    fn of(path: PathBuf, state: State) -> Self {
        Self { path, state: Mutex::new(state), undoing: tokio::sync::Mutex::new(()) }
    }

    /// Writes down, durably, that `resource` is about to be made for the trial.
    ///
    /// # Errors
    /// When the file cannot be written; the thing must then not be made.
    pub fn add(&self, trial_name: &str, resource: Resource) -> Result<EntryId> {
        let mut state = self.state();
        let id = state.next;
        let scope = trial_name.to_owned();
        state.write(&Line::Add { add: id, scope: scope.clone(), resource: resource.clone() })?;
        state.next += 1;
        state.entries.insert(id, (scope, resource));
        Ok(EntryId(id))
    }

    /// Writes down that the thing is gone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn done(&self, id: EntryId) -> Result<()> {
        let mut state = self.state();
        if state.entries.contains_key(&id.0) {
            state.write(&Line::Done { done: id.0 })?;
            state.entries.remove(&id.0);
        }
        Ok(())
    }

    /// Name of the ledger, unique on this machine; labels of containers and volumes carry it.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What is on the ledger, oldest first: trial and thing.
    pub fn entries(&self) -> Vec<(String, Resource)> {
        self.state().entries.values().cloned().collect()
    }

    /// Undoes one entry now.
    ///
    /// # Errors
    /// When it cannot be undone; the entry stays.
    pub async fn undo(&self, id: EntryId) -> Result<()> {
        let resource = self.state().entries.get(&id.0).map(|(_, resource)| resource.clone());
        if let Some(resource) = resource {
            undo(self, &resource).await?;
            self.done(id)?;
        }
        Ok(())
    }

    /// Undoes, in reverse order, whatever was made for the trial and is still there.
    ///
    /// # Errors
    /// The first thing that could not be undone, with the others as evidence; they stay on the
    /// ledger.
    pub async fn undo_scope(&self, trial_name: &str) -> Result<()> {
        first_error(self.undo_where(Some(trial_name)).await.1)
    }

    /// Undoes, in reverse order, everything that is still there.
    ///
    /// # Errors
    /// As [`Ledger::undo_scope`].
    pub async fn undo_all(&self) -> Result<()> {
        first_error(self.undo_where(None).await.1)
    }

    async fn undo_where(&self, trial_name: Option<&str>) -> (Vec<String>, Vec<(String, Error)>) {
        let _alone = self.undoing.lock().await;
        let mut ids: Vec<(EntryId, Resource)> = Vec::new();
        for (id, (scope, resource)) in self.state().entries.iter().rev() {
            if trial_name.is_none_or(|wanted| wanted == scope) {
                ids.push((EntryId(*id), resource.clone()));
            }
        }
        let (mut undone, mut failed) = (Vec::new(), Vec::new());
        for (id, resource) in ids {
            match self.undo(id).await {
                Ok(()) => undone.push(resource.to_string()),
                Err(error) => failed.push((resource.to_string(), error)),
            }
        }
        (undone, failed)
    }

    /// Something for a tool to hold (as its standard input) that keeps the ledger locked as long as
    /// the tool lives.
    pub(crate) fn lock_holder(&self) -> Result<Stdio> {
        self.state()
            .file
            .try_clone()
            .map(Stdio::from)
            .map_err(|error| Error::provision(format!("cannot share the ledger's lock: {error}")))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // An empty ledger records nothing; any other stays for the sweep.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.entries.is_empty() && state.foreign.is_empty() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl State {
    fn write(&mut self, line: &Line) -> Result<()> {
        let failed = |error: &dyn fmt::Display| {
            Error::provision(format!("cannot write the ledger: {error}"))
                .hint("free some space in the state directory")
        };
        let mut text = serde_json::to_vec(line).map_err(|error| failed(&error))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|error| failed(&error))?;
        self.file.sync_data().map_err(|error| failed(&error))
    }
}

impl Owner {
    fn this_process() -> Self {
        let pid = std::process::id();
        Self { pid, started: start_of(pid).unwrap_or_default(), boot_id: boot_id() }
    }

    fn is_visibly_alive(&self) -> bool {
        self.boot_id == boot_id() && start_of(self.pid).is_some_and(|start| start == self.started)
    }
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Start of a process that is neither gone nor a zombie.
fn start_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18).map(str::to_owned)).flatten()
}

fn ledger_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("ledger")
}

fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the open file is still the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn first_error(failed: Vec<(String, Error)>) -> Result<()> {
    let mut failed = failed.into_iter();
    let Some((what, first)) = failed.next() else { return Ok(()) };
    let mut evidence: Vec<String> = first.evidence.iter().cloned().collect();
    evidence.extend(failed.map(|(what, error)| format!("{what}: {error}")));
    let mut error = Error::provision(format!("{what} could not be undone: {first}"))
        .hint(first.hint.unwrap_or_else(|| "bedplate clean".to_owned()));
    if !evidence.is_empty() {
        error = error.evidence(evidence.join("\n"));
    }
    Err(error)
}

/// Undoes what dead processes left behind, as their ledgers under `state_dir` tell.
///
/// # Errors
/// When the directory of the ledgers cannot be read. What cannot be undone is in the report.
pub async fn sweep(state_dir: &Path) -> Result<SweepReport> {
    let dir = ledger_dir(state_dir);
    let failed = |error: io::Error| {
        Error::provision(format!("cannot read the ledgers in {}: {error}", dir.display()))
    };
    let mut report = SweepReport::default();
    let listing = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(report),
        other => other.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in listing {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        match take_over(&path).await {
            Ok(None) => {}
            Ok(Some(ledger)) => {
                let (undone, failures) = ledger.undo_where(None).await;
                report.undone.extend(undone);
                report.failed.extend(failures.into_iter().map(|(what, error)| {
                    let hint = error.hint.iter().map(|hint| format!(" (hint: {hint})"));
                    format!("{what}: {error}{}", hint.collect::<String>())
                }));
                let foreign = ledger.state().foreign.clone();
                report.failed.extend(
                    foreign.into_iter().map(|line| {
                        format!("{}: written by another version: {line}", path.display())
                    }),
                );
            }
            Err(error) => report.failed.push(format!("{}: {error}", path.display())),
        }
    }
    Ok(report)
}

/// The ledger of a dead owner, now locked by this process; none while its owner lives.
async fn take_over(path: &Path) -> Result<Option<Ledger>> {
    let failed = |error: io::Error| Error::provision(format!("cannot take over: {error}"));
    let mut file = match OpenOptions::new().read(true).append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut text = String::new();
    let started = Instant::now();
    while !try_lock(&file).map_err(failed)? {
        text = std::fs::read_to_string(path).unwrap_or_default();
        let owner = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
        let alive = match owner {
            Some(Line::Owner { owner }) => owner.is_visibly_alive(),
            _ => true,
        };
        if started.elapsed() >= if alive { DYING_WITHIN } else { ORPHANS_END_WITHIN } {
            return Ok(None);
        }
        sleep(Duration::from_millis(25)).await;
    }
    if !is_at(&file, path) {
        return Ok(None);
    }
    text.clear();
    file.read_to_string(&mut text).map_err(failed)?;
    if !text.is_empty() && !text.ends_with('\n') {
        // The owner died while it wrote this line, so before it made what the line tells of.
        file.write_all(b"\n").map_err(failed)?;
    }
    let mut state = State { file, next: 0, entries: BTreeMap::new(), foreign: Vec::new() };
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Owner { .. }) => {}
            Ok(Line::Add { add, scope, resource }) => {
                state.next = state.next.max(add + 1);
                state.entries.insert(add, (scope, resource));
            }
            Ok(Line::Done { done }) => {
                state.entries.remove(&done);
            }
            Err(_) if serde_json::from_str::<serde_json::Value>(line).is_ok() => {
                state.foreign.push(line.to_owned());
            }
            Err(_) => {}
        }
    }
    Ok(Some(Ledger::of(path.to_owned(), state)))
}
