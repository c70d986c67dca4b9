//! A server from the PostgreSQL binaries of this machine.
//!
//! PostgreSQL refuses to run as root, so as root its programs run as the user `postgres` (or
//! `nobody`). The kernel ends the server when this process dies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EnginePlan, Provision, TransportKind};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Server, Session, VolumeLocation};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::{
    EngineContext, initdb_arguments, make_socket_directory, not_ready, port, random_password,
    read_facts, server_arguments, setting, socket_path,
};
use crate::drivers::session;
use crate::ledger::Resource;
use crate::{command, mountinfo};

/// How long a server may take to get ready.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to shut down, and then to follow SIGQUIT.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// The users that the server may run as when we are root, the first that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Name of the data directory below the volume.
const DATA_DIRECTORY: &str = "pgdata";
/// Name of the server's log beside its socket.
const LOG_FILE: &str = "server.log";

/// Whom PostgreSQL's programs run as.
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

/// The account to switch to; none when we are not root.
fn account() -> Result<Option<Account>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")
        .map_err(|error| Error::provision(format!("cannot read /etc/passwd: {error}")))?;
    USERS.iter().find_map(|user| account_in(&passwd, user)).map(Some).ok_or_else(|| {
        Error::provision("PostgreSQL does not run as root, and there is no other user for it")
            .hint("useradd --system postgres")
    })
}

fn account_in(passwd: &str, user: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| *name == user)?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { name, uid, gid })
    })
}

/// The words in front of a program of PostgreSQL: another user, the root directory (ours may be
/// closed to that user), and a signal for when we die.
fn prefix(account: Option<&Account>, death_signal: &str) -> Vec<String> {
    let mut words: Vec<String> =
        Vec::from(["setpriv".into(), "--pdeathsig".into(), death_signal.into()]);
    if let Some(account) = account {
        words.extend([
            format!("--reuid={}", account.uid),
            format!("--regid={}", account.gid),
            "--clear-groups".into(),
        ]);
    }
    words.extend(["--", "sh", "-c", "cd / && exec \"$0\" \"$@\""].map(String::from));
    words
}

/// Checks that the binaries are here, can be run, and are of the version that is wanted.
pub(super) async fn preflight(engine: &EnginePlan, bin_dir: &Path) -> Result<()> {
    for program in ["initdb", "postgres"] {
        if !bin_dir.join(program).is_file() {
            return Err(Error::provision(format!(
                "there is no `{program}` in {}",
                bin_dir.display()
            ))
            .hint("apt-get install postgresql, or give `bin_dir` of `engine.provision`"));
        }
    }
    let account = account()?;
    let version = binaries_version(bin_dir, account.as_ref()).await?;
    if !engine.allow_other_version && !engine.is_version(&version.number) {
        return Err(Error::provision(format!(
            "`engine.version` is {}, but {} holds {}",
            engine.version,
            bin_dir.display(),
            version.number
        ))
        .hint("name the directory of that version, or set `allow_other_version = true`"));
    }
    Ok(())
}

/// What `postgres --version` says.
pub(crate) struct BinariesVersion {
    /// In full: `postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)`.
    pub(crate) full: String,
    /// The number alone: `15.20`.
    pub(crate) number: String,
}

async fn binaries_version(bin_dir: &Path, account: Option<&Account>) -> Result<BinariesVersion> {
    let mut words = prefix(account, "KILL");
    words.extend([bin_dir.join("postgres").display().to_string(), "--version".into()]);
    let output = command::ask(&words).await.map_err(|error| {
        let mut reworded =
            Error::provision(format!("{} cannot be run", bin_dir.join("postgres").display()))
                .hint("every user must be able to enter its directory");
        reworded.evidence = error.evidence;
        reworded
    })?;
    let full = output.stdout.trim().to_owned();
    let number = full.split_whitespace().nth(2).unwrap_or_default().to_owned();
    Ok(BinariesVersion { full, number })
}

/// What the binaries in a directory say of themselves, whoever we are.
pub(crate) async fn version_of(bin_dir: &Path) -> Result<BinariesVersion> {
    binaries_version(bin_dir, None).await
}

/// Makes a fresh cluster on the volume, starts its server and waits until it accepts connections.
///
/// # Errors
/// When a program fails or the server does not get ready; the last lines of its log are the evidence.
pub async fn start(ctx: &EngineContext<'_>) -> Result<Box<dyn Server>> {
    let Provision::Process { bin_dir } = &ctx.engine.provision else {
        return Err(Error::spec("`engine.provision` is not `process`"));
    };
    let VolumeLocation::Path(volume) = ctx.volume.location() else {
        return Err(Error::spec(
            "a server of this machine needs a storage with a path; use site `local`, or a container",
        ));
    };
    let account = account()?;
    let name = ctx.id.resource_name();
    let version = binaries_version(bin_dir, account.as_ref()).await?;

    let directory = make_socket_directory(ctx)?;
    check_enterable(&directory, account.as_ref()).await?;
    check_enterable(&volume, account.as_ref()).await?;
    // Our own names for it must be the kernel's too: mounts and processes are looked up by it.
    let volume = fs::canonicalize(&volume).map_err(|error| unusable(&volume, &error))?;
    let data_dir = volume.join(DATA_DIRECTORY);
    ctx.ledger.add(&name, Resource::ServerProcess { data_dir: data_dir.clone() })?;
    make_owned_directory(&data_dir, account.as_ref())?;

    let password = random_password()?;
    initialise(ctx, bin_dir, account.as_ref(), &data_dir, &password).await?;

    let (address, listen, port) = match ctx.engine.transport {
        TransportKind::Unix => {
            let port = port(ctx.engine)?;
            (Address::Unix(socket_path(&directory, port)?), "", port)
        }
        TransportKind::Tcp => {
            let port = match setting(ctx.engine, "port") {
                Some(_) => port(ctx.engine)?,
                None => free_port()?,
            };
            // The socket is unused, but a cluster without one would put it into a system directory.
            (Address::Tcp("127.0.0.1".into(), port), "127.0.0.1", port)
        }
    };
    let log_path = directory.join(LOG_FILE);
    let log = fs::File::create(&log_path).map_err(|error| unusable(&log_path, &error))?;
    let mut words = prefix(account.as_ref(), "QUIT");
    words.push(bin_dir.join("postgres").display().to_string());
    words.extend(["-D".into(), data_dir.display().to_string()]);
    words.extend(["-k".into(), directory.display().to_string()]);
    words.extend(["-c".into(), format!("listen_addresses={listen}")]);
    words.extend(["-c".into(), format!("port={port}")]);
    words.extend(server_arguments(ctx.engine));
    let child = spawn_server(&words, log)?;

    let mut provenance = std::collections::BTreeMap::from([
        ("provision".to_owned(), "process".to_owned()),
        ("bin_dir".to_owned(), bin_dir.display().to_string()),
        ("postgres_version".to_owned(), version.full),
        ("data_directory".to_owned(), data_dir.display().to_string()),
    ]);
    if let Some(account) = account {
        provenance.insert("user".into(), account.name);
    }
    let server = ProcessServer {
        pid: child.id().and_then(|pid| Pid::from_raw(pid as i32)),
        ended: reap(child),
        endpoint: Endpoint {
            address,
            user: "postgres".into(),
            password,
            database: "postgres".into(),
            session_settings: Vec::new(),
        },
        data_dir,
        log_path,
        provenance,
    };
    server.wait_until_ready().await?;
    Ok(Box::new(server))
}

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    Error::provision(format!("cannot use {}: {error}", path.display()))
}

/// Checks that the server's user can enter a directory, which depends on every directory above it.
async fn check_enterable(directory: &Path, account: Option<&Account>) -> Result<()> {
    let mut words = prefix(account, "KILL");
    words.extend(["test".into(), "-x".into(), directory.display().to_string()]);
    command::ask(&words).await.map(|_| ()).map_err(|_| {
        let who = account.map_or("this user", |account| account.name.as_str());
        Error::provision(format!("{who} cannot enter {}", directory.display())).hint(
            "choose a `work_dir` whose parent directories every user can enter, such as /var/tmp/bedplate",
        )
    })
}

/// Makes a directory that only the server's user can enter.
fn make_owned_directory(path: &Path, account: Option<&Account>) -> Result<()> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
        .and_then(|()| own(path, account))
        .map_err(|error| unusable(path, &error))
}

fn own(path: &Path, account: Option<&Account>) -> std::io::Result<()> {
    match account {
        Some(account) => std::os::unix::fs::chown(path, Some(account.uid), Some(account.gid)),
        None => Ok(()),
    }
}

/// Runs `initdb`.
async fn initialise(
    ctx: &EngineContext<'_>,
    bin_dir: &Path,
    account: Option<&Account>,
    data_dir: &Path,
    password: &str,
) -> Result<()> {
    // Beside the data directory, which must be empty; gone with the volume if we die now.
    let secret = data_dir.with_file_name(format!("{DATA_DIRECTORY}.secret"));
    write_secret(&secret, password, account).map_err(|error| unusable(&secret, &error))?;
    let mut words = prefix(account, "KILL");
    words.push(bin_dir.join("initdb").display().to_string());
    words.extend(["-D".into(), data_dir.display().to_string()]);
    words.extend([
        "--username=postgres".into(),
        format!("--pwfile={}", secret.display()),
        "--auth-local=trust".into(),
        "--auth-host=md5".into(),
    ]);
    words.extend(initdb_arguments(&ctx.engine.initdb));
    let done = command::run(ctx.ledger, &words).await;
    fs::remove_file(&secret).map_err(|error| unusable(&secret, &error))?;
    done.map(|_| ()).map_err(|error| {
        let mut reworded = Error::provision("`initdb` failed");
        reworded.evidence = error.evidence;
        reworded
    })
}

fn write_secret(path: &Path, password: &str, account: Option<&Account>) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{password}")?;
    own(path, account)
}

/// A port of the loopback interface that nobody uses now.
fn free_port() -> Result<u16> {
    std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Error::provision(format!("there is no free port: {error}")))
}

/// Starts the server's program with our own log; it is in a process group of its own, so that a
/// Ctrl-C in the terminal reaches only us.
fn spawn_server(words: &[String], log: fs::File) -> Result<Child> {
    let failed =
        |error: std::io::Error| Error::provision(format!("`postgres` cannot be run: {error}"));
    let errors = log.try_clone().map_err(failed)?;
    let mut server = Command::new(command::require_tool("setpriv")?);
    server.args(&words[1..]).env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        // Variables of libpq and of the server itself would change settings behind the plan's back.
        if name.to_string_lossy().starts_with("PG") {
            server.env_remove(name);
        }
    }
    server.process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
    command::spawn(server).map_err(failed)
}

/// Waits for the child in a task, so that its end is known at once and it never stays a zombie.
fn reap(mut child: Child) -> watch::Receiver<Option<ExitStatus>> {
    let (tell, ended) = watch::channel(None);
    tokio::spawn(async move {
        let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0));
        tell.send_replace(Some(status));
    });
    ended
}

struct ProcessServer {
    pid: Option<Pid>,
    ended: watch::Receiver<Option<ExitStatus>>,
    endpoint: Endpoint,
    data_dir: PathBuf,
    log_path: PathBuf,
    provenance: std::collections::BTreeMap<String, String>,
}

impl ProcessServer {
    async fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        loop {
            if let Some(how) = self.ended().await {
                let log = self.log().await.unwrap_or_default();
                return Err(not_ready(format!("the server {how} before it was ready"), &log));
            }
            match session::connect(&self.endpoint).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    let log = self.log().await.unwrap_or_default();
                    let seconds = STARTUP_TIMEOUT.as_secs();
                    let text = format!("the server was not ready within {seconds} s: {error}");
                    return Err(not_ready(text, &log));
                }
                Err(_) => sleep(POLL).await,
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid
            && self.ended.borrow().is_none()
        {
            // It may have ended in this very moment, which is what we want.
            let _ = kill_process(pid, signal);
        }
    }

    /// How the process ended, once it has.
    async fn wait(&self) -> Option<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = ended.wait_for(Option::is_some).await.ok()?;
        *status
    }
}

/// The end of a process in words.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

#[async_trait]
impl Server for ProcessServer {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn facts(&self) -> Result<ServerFacts> {
        let mut facts = read_facts(&mut *self.session().await?).await?;
        facts.provenance.clone_from(&self.provenance);
        if let Some(pid) = self.pid {
            let path = format!("/proc/{}/mountinfo", pid.as_raw_nonzero());
            let text = fs::read(&path).map_err(|error| unusable(Path::new(&path), &error))?;
            let mounts = mountinfo::parse(&String::from_utf8_lossy(&text));
            facts.data_mount =
                mountinfo::holding(&mounts, &self.data_dir).map(mountinfo::Mount::facts);
        }
        Ok(facts)
    }

    async fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(session::connect(&self.endpoint).await?))
    }

    async fn ended(&self) -> Option<String> {
        self.ended.borrow().map(ending)
    }

    async fn log(&self) -> Result<String> {
        fs::read(&self.log_path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|error| unusable(&self.log_path, &error))
    }

    async fn stop(&self) -> Result<()> {
        if self.ended.borrow().is_some() {
            return Ok(());
        }
        self.signal(Signal::INT);
        let mut late = "";
        let status = match timeout(STOP_TIMEOUT, self.wait()).await {
            Ok(status) => status,
            Err(_) => {
                late = " in time";
                self.signal(Signal::QUIT);
                timeout(QUIT_TIMEOUT, self.wait()).await.ok().flatten()
            }
        };
        match status {
            Some(status) if status.success() && late.is_empty() => Ok(()),
            status => {
                let how = status.map_or_else(|| "still runs".into(), ending);
                let log = self.log().await.unwrap_or_default();
                Err(not_ready(format!("the server did not shut down{late}: it {how}"), &log))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let passwd = "postgres2:x:1:2::/:/bin/sh\npostgres:x:114:120:PG,,,:/var/lib:/bin/bash\n";
        let account = account_in(passwd, "postgres").unwrap();
        assert_eq!((account.uid, account.gid), (114, 120));
        assert!(account_in(passwd, "nobody").is_none());
    }

    #[test]
    fn a_process_ends_in_words() {
        assert_eq!(ending(ExitStatus::from_raw(256)), "exited with status 1");
        assert_eq!(ending(ExitStatus::from_raw(9)), "was killed by signal 9");
    }

    #[test]
    fn a_free_port_can_be_bound() {
        assert!(std::net::TcpListener::bind(("127.0.0.1", free_port().unwrap())).is_ok());
    }
}
