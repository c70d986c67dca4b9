//! A server from the binaries of this machine.
//!
//! Database servers refuse to run as root, so as root their programs run as another user. The kernel
//! ends the server when this process dies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EngineKind, EnginePlan, Provision, TransportKind};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Server, Session, VolumeLocation};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Access, Database, EngineContext, Installing, Listening, Particulars, client_tls, database,
    make_socket_directory, not_ready, port, random_password, setting, socket_path, without_tls,
};
use crate::ledger::Resource;
use crate::{command, mountinfo};

/// How long a server may take to get ready.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to shut down, and then to end at once.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// Name of the server's log beside its socket.
const LOG_FILE: &str = "server.log";

/// Whom a database's programs run as.
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

/// The account to switch to; none when we are not root.
fn account(about: &Particulars) -> Result<Option<Account>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")
        .map_err(|error| Error::provision(format!("cannot read /etc/passwd: {error}")))?;
    about.users.iter().find_map(|user| account_in(&passwd, user)).map(Some).ok_or_else(|| {
        let name = about.kind.name();
        let user = about.users.first().copied().unwrap_or_default();
        Error::provision(format!("{name} does not run as root, and there is no other user for it"))
            .hint(format!("useradd --system {user}"))
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

/// The words in front of a database's program: another user, the root directory (ours may be
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

/// The programs of one installation.
struct Programs {
    server: PathBuf,
    installer: PathBuf,
}

impl Programs {
    /// The programs in a directory; those beside the server's program may be in one next to it.
    fn in_dir(about: &Particulars, bin_dir: &Path) -> Result<Self> {
        let mut dirs = vec![bin_dir.to_owned()];
        let parent = bin_dir.parent().unwrap_or(bin_dir);
        dirs.extend(about.siblings.iter().map(|name| parent.join(name)));
        let find = |names: &[&str]| {
            let files = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
            files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
                let name = names.first().copied().unwrap_or_default();
                Error::provision(format!("there is no `{name}` in {}", bin_dir.display()))
                    .hint(format!("apt-get install {}, or set `engine.bin_dir`", about.package))
            })
        };
        let installer = find(about.installer)?;
        Ok(Self { server: find(about.server)?, installer })
    }

    /// The directory above that of the server's program.
    fn base_dir(&self) -> &Path {
        let bin_dir = self.server.parent().unwrap_or(&self.server);
        bin_dir.parent().unwrap_or(bin_dir)
    }
}

/// Checks that the binaries are here, can be run, and are of the version that is wanted.
pub(super) async fn preflight(engine: &EnginePlan, bin_dir: &Path) -> Result<()> {
    let about = database(engine.kind).particulars();
    let programs = Programs::in_dir(about, bin_dir)?;
    let version = server_version(about, &programs.server, account(about)?.as_ref()).await?;
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

/// What the server's program says of its version.
pub(crate) struct BinariesVersion {
    /// In full: `postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)`,
    /// `mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)`.
    pub(crate) full: String,
    /// The number alone: `15.20`.
    pub(crate) number: String,
}

async fn server_version(
    about: &Particulars,
    server: &Path,
    account: Option<&Account>,
) -> Result<BinariesVersion> {
    let mut words = prefix(account, "KILL");
    words.extend([server.display().to_string(), "--version".into()]);
    let output = command::ask(&words).await.map_err(|error| {
        let mut reworded = Error::provision(format!("{} cannot be run", server.display()))
            .hint("every user must be able to enter its directory");
        reworded.evidence = error.evidence;
        reworded
    })?;
    let full = output.stdout.trim().to_owned();
    let name = about.kind.name();
    if !full.contains(name) {
        return Err(Error::provision(format!("{} is not of {name}: {full}", server.display())));
    }
    let version = full.split_whitespace().nth(2).unwrap_or_default();
    let number = version.split('-').next().unwrap_or_default().to_owned();
    Ok(BinariesVersion { full, number })
}

/// The directory of the server's program of the installation that a directory belongs to, and what it
/// says of its version, whoever we are.
pub(crate) async fn installation(
    kind: EngineKind,
    bin_dir: &Path,
) -> Result<(PathBuf, BinariesVersion)> {
    let about = database(kind).particulars();
    let programs = Programs::in_dir(about, bin_dir)?;
    let version = server_version(about, &programs.server, None).await?;
    Ok((programs.server.parent().unwrap_or(bin_dir).to_owned(), version))
}

/// Names of the server's program, the newest first.
pub(crate) fn server_names(kind: EngineKind) -> &'static [&'static str] {
    database(kind).particulars().server
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
    let database = database(ctx.engine.kind);
    let about = database.particulars();
    let tls = client_tls(ctx.engine)?;
    let account = account(about)?;
    let name = ctx.id.resource_name();
    let programs = Programs::in_dir(about, bin_dir)?;
    let version = server_version(about, &programs.server, account.as_ref()).await?;

    let directory = make_socket_directory(ctx)?;
    check_enterable(&directory, account.as_ref()).await?;
    check_enterable(&volume, account.as_ref()).await?;
    // Our own names for it must be the kernel's too: mounts and processes are looked up by it.
    let volume = fs::canonicalize(&volume).map_err(|error| unusable(&volume, &error))?;
    let data_dir = volume.join(about.data_directory);
    ctx.ledger.add(&name, Resource::ServerProcess { data_dir: data_dir.clone() })?;
    make_owned_directory(&data_dir, account.as_ref())?;

    let (address, port) = match ctx.engine.transport {
        TransportKind::Unix => {
            let port = port(ctx.engine)?;
            (Address::Unix(socket_path(database, &directory, port)?), port)
        }
        TransportKind::Tcp => {
            let port = match setting(ctx.engine, "port") {
                Some(_) => port(ctx.engine)?,
                None => free_port()?,
            };
            (Address::Tcp("127.0.0.1".into(), port), port)
        }
    };
    let mut provenance = std::collections::BTreeMap::from([
        ("provision".to_owned(), "process".to_owned()),
        ("bin_dir".to_owned(), bin_dir.display().to_string()),
        (format!("{}_version", ctx.engine.kind.word()), version.full),
        ("data_directory".to_owned(), data_dir.display().to_string()),
    ]);
    provenance.extend(account.as_ref().map(|account| ("user".into(), account.name.clone())));

    let password = random_password()?;
    // Beside the data directory, which must be empty; gone with the volume if we die now.
    let secret = volume.join(format!("{}.secret", about.data_directory));
    write_secret(&secret, &database.secret(&password), account.as_ref())
        .map_err(|error| unusable(&secret, &error))?;
    let endpoint = Endpoint {
        address,
        user: about.superuser.into(),
        password,
        database: about.database.into(),
        session_settings: Vec::new(),
    };
    let access = Access::new(database, endpoint, tls);
    let installing =
        Installing { base_dir: programs.base_dir(), data_dir: &data_dir, secret: &secret };
    let listening = Listening { directory: &directory, port };
    let log_path = directory.join(LOG_FILE);
    let started = async {
        initialise(ctx, database, &programs.installer, account.as_ref(), &installing).await?;
        let mut words = prefix(account.as_ref(), about.stop_now_name);
        words.push(programs.server.display().to_string());
        words.extend(database.serve(ctx.engine, &installing, &listening));
        let first = [&words[..], &database.serve_first(&secret)].concat();
        let (pid, ended) = spawn_server(&first, &log_path, about.variables)?;
        let mut server = ProcessServer {
            pid,
            ended,
            access,
            data_dir: data_dir.clone(),
            log_path: log_path.clone(),
            provenance,
            words,
        };
        server.wait_until_ready().await?;
        server.access.make_instances(ctx).await?;
        Ok(server)
    }
    .await;
    fs::remove_file(&secret).map_err(|error| unusable(&secret, &error))?;
    Ok(Box::new(started?))
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

/// Makes the data directory.
async fn initialise(
    ctx: &EngineContext<'_>,
    database: &dyn Database,
    installer: &Path,
    account: Option<&Account>,
    installing: &Installing<'_>,
) -> Result<()> {
    let mut words = prefix(account, "KILL");
    words.push(installer.display().to_string());
    words.extend(database.install(ctx.engine, installing));
    command::run(ctx.ledger, &words).await.map(|_| ()).map_err(|error| {
        let name = installer.file_name().unwrap_or_default().to_string_lossy();
        let mut reworded = Error::provision(format!("`{name}` failed"));
        reworded.evidence = error.evidence;
        reworded
    })
}

fn write_secret(path: &Path, text: &str, account: Option<&Account>) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
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
fn spawn_server(words: &[String], log: &Path, without: &[&str]) -> Result<(Option<Pid>, Ending)> {
    let failed =
        |error: std::io::Error| Error::provision(format!("the server cannot be run: {error}"));
    let log = fs::OpenOptions::new().create(true).append(true).open(log);
    let log = log.map_err(failed)?;
    let errors = log.try_clone().map_err(failed)?;
    let mut server = Command::new(command::require_tool("setpriv")?);
    server.args(&words[1..]).env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if without.iter().any(|start| text.starts_with(start)) {
            server.env_remove(&name);
        }
    }
    server.process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
    let child = command::spawn(server).map_err(failed)?;
    Ok((child.id().and_then(|pid| Pid::from_raw(pid as i32)), reap(child)))
}

/// How a process ended, once it has.
type Ending = watch::Receiver<Option<ExitStatus>>;

/// Waits for the child in a task, so that its end is known at once and it never stays a zombie.
fn reap(mut child: Child) -> Ending {
    let (tell, ended) = watch::channel(None);
    tokio::spawn(async move {
        let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0));
        tell.send_replace(Some(status));
    });
    ended
}

struct ProcessServer {
    pid: Option<Pid>,
    ended: Ending,
    access: Access,
    data_dir: PathBuf,
    log_path: PathBuf,
    provenance: std::collections::BTreeMap<String, String>,
    /// The command of every start.
    words: Vec<String>,
}

impl ProcessServer {
    async fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        loop {
            if let Some(how) = self.ended().await {
                let log = self.log().await.unwrap_or_default();
                return Err(not_ready(format!("the server {how} before it was ready"), &log));
            }
            match self.access.session().await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    let log = self.log().await.unwrap_or_default();
                    let seconds = STARTUP_TIMEOUT.as_secs();
                    let text = format!("the server was not ready within {seconds} s: {error}");
                    return Err(not_ready(text, &log));
                }
                Err(error) if self.access.lacks_tls().await => return Err(without_tls(error)),
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
        &self.access.endpoint
    }

    async fn facts(&self) -> Result<ServerFacts> {
        let mut facts = self.access.facts(&self.provenance).await?;
        if let Some(pid) = self.pid {
            let path = format!("/proc/{}/mountinfo", pid.as_raw_nonzero());
            let text = fs::read(&path).map_err(|error| unusable(Path::new(&path), &error))?;
            let mounts = mountinfo::parse(&String::from_utf8_lossy(&text));
            facts.data_mount =
                mountinfo::holding(&mounts, &self.data_dir).map(mountinfo::Mount::facts);
        }
        Ok(facts)
    }

    fn instances(&self) -> &[Endpoint] {
        self.access.instances()
    }

    async fn session(&self, endpoint: &Endpoint) -> Result<Box<dyn Session>> {
        self.access.session_at(endpoint).await
    }

    async fn process(&self) -> Option<u32> {
        self.pid.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
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
        let about = self.access.database.particulars();
        self.signal(about.stop);
        let mut late = "";
        let status = match timeout(STOP_TIMEOUT, self.wait()).await {
            Ok(status) => status,
            Err(_) => {
                late = " in time";
                self.signal(about.stop_now);
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

    async fn start_again(&mut self) -> Result<()> {
        let variables = self.access.database.particulars().variables;
        (self.pid, self.ended) = spawn_server(&self.words, &self.log_path, variables)?;
        self.wait_until_ready().await
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
