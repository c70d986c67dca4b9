//! Running the tools of this machine.
//!
//! A tool never outlives its caller: when the future that waits for it is dropped, the tool is
//! killed and waited for; when the whole process dies, the kernel kills the tool.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use bedplate_core::error::{Error, Result};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::ledger::Ledger;

/// Directories with tools that an ordinary user's `PATH` may lack.
const SYSTEM_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// What a tool said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The value of the first line `KEY=…` of what our scripts tell.
pub(crate) fn value<'a>(told: &'a str, key: &str) -> Option<&'a str> {
    told.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::trim)
}

/// The file of a tool on `PATH` or in the system's directories.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The same, as an error that says what to install.
///
/// # Errors
/// When the tool is not installed.
pub fn require_tool(name: &str) -> Result<PathBuf> {
    find_tool(name).ok_or_else(|| missing(name))
}

fn search_path() -> OsString {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&inherited).chain(SYSTEM_DIRS.map(PathBuf::from));
    std::env::join_paths(dirs).unwrap_or(inherited)
}

fn missing(name: &str) -> Error {
    let package = match name {
        "mkfs.ext4" => "e2fsprogs",
        "mkfs.xfs" => "xfsprogs",
        "dd" | "stat" => "coreutils",
        "losetup" | "mount" | "setpriv" => "util-linux mount",
        _ => return Error::provision(format!("`{name}` is not installed")),
    };
    Error::provision(format!("`{name}` is not installed"))
        .hint(format!("apt-get install {package}"))
}

/// Asks a tool something; nothing is made that would have to be undone.
///
/// # Errors
/// When the tool is not installed or fails; its output is the evidence.
pub async fn ask<S: AsRef<OsStr>>(argv: &[S]) -> Result<Output> {
    run_with(argv, Stdio::null()).await
}

/// Runs a tool that changes the machine.
///
/// The tool holds the ledger's lock while it lives, so that no sweep starts before the last tool of
/// a dead process has ended.
///
/// # Errors
/// When the tool is not installed or fails; its output is the evidence.
pub async fn run<S: AsRef<OsStr>>(ledger: &Ledger, argv: &[S]) -> Result<Output> {
    run_with(argv, ledger.lock_holder()?).await
}

async fn run_with<S: AsRef<OsStr>>(argv: &[S], stdin: Stdio) -> Result<Output> {
    let Some(name) = argv.first().map(|name| name.as_ref().to_string_lossy().into_owned()) else {
        return Err(Error::provision("an empty command was to be run"));
    };
    let tool = require_tool(&name)?;
    let setpriv = require_tool("setpriv")?;
    let failed = |error: io::Error| Error::provision(format!("`{name}` cannot be run: {error}"));

    // The death signal is set by setpriv, as setting it here would need unsafe code.
    let mut command = Command::new(setpriv);
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(tool)
        .args(&argv[1..])
        .env("LC_ALL", "C")
        .env("PATH", search_path())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = Running(spawn(command).map_err(failed)?);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut stdout =
        running.0.stdout.take().ok_or_else(|| failed(io::Error::other("no output")))?;
    let mut stderr =
        running.0.stderr.take().ok_or_else(|| failed(io::Error::other("no output")))?;
    let (read_out, read_err, status) =
        tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err), running.0.wait());
    read_out.and(read_err).map_err(failed)?;
    let status = status.map_err(failed)?;
    let output = Output {
        stdout: String::from_utf8_lossy(&out).into_owned(),
        stderr: String::from_utf8_lossy(&err).into_owned(),
    };
    if status.success() {
        return Ok(output);
    }
    let line: Vec<_> = argv.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let text = format!("$ {}\n{}{}", line.join(" "), output.stdout, output.stderr);
    Err(Error::provision(format!("`{name}` failed: {status}")).evidence(text.trim_end()))
}

/// A child that is killed and waited for when nobody waits for it any more.
///
/// This is the one place where dropping waits: what follows is the undoing of what the tool was
/// making, and that must not begin while the tool still runs.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            drop(self.0.start_kill());
            while matches!(self.0.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Spawns a command from a thread that lives as long as the process, which is what a death signal
/// needs: the kernel sends it when the *thread* that spawned the child ends.
///
/// # Errors
/// When the command cannot be spawned.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    type Job = Box<dyn FnOnce() + Send>;
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();

    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Job>();
        // Should the thread not start, the receiver is gone and every spawn says so.
        drop(std::thread::Builder::new().name("bedplate-spawn".to_owned()).spawn(move || {
            for job in receiver {
                job();
            }
        }));
        sender
    });
    let runtime = Handle::current();
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner
        .send(Box::new(move || {
            let _entered = runtime.enter();
            drop(answer.send(command.spawn()));
        }))
        .map_err(|_| gone())?;
    // Not awaited: the millisecond is short, and a child must never be without an owner.
    child.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tool_that_fails_shows_why() {
        let error = ask(&["ls", "/does/not/exist"]).await.unwrap_err();
        assert!(error.message.starts_with("`ls` failed"), "{error}");
        assert!(error.evidence.unwrap().contains("No such file"));
    }

    #[tokio::test]
    async fn a_tool_that_is_missing_is_named() {
        let error = ask(&["no-such-tool"]).await.unwrap_err();
        assert_eq!(error.message, "`no-such-tool` is not installed");
    }

    #[tokio::test]
    async fn a_dropped_wait_kills_the_tool() {
        let marker = format!("{}.25", 1000 + std::process::id());
        let argv = ["sleep", marker.as_str()];
        let waited = tokio::time::timeout(Duration::from_millis(200), ask(&argv)).await;
        assert!(waited.is_err());
        let alive = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&marker))
        });
        assert!(!alive);
    }
}
