//! Database servers, provisioned three ways: a container, binaries of this machine, or a server that
//! exists already.
//!
//! Whatever is made here is on the ledger before it exists; it goes by the undoing of its entry, by
//! name. Dropping a server value does nothing.

pub mod container;
pub mod process;
pub mod url;

use std::io::Read;
use std::path::{Path, PathBuf};

use bedplate_core::error::{Error, ErrorKind, Result};
use bedplate_core::plan::{EnginePlan, Initdb, Plan, Provision, TransportKind};
use bedplate_core::record::{ServerFacts, TrialId};
use bedplate_core::seam::{Session, Volume};

use crate::ledger::{Ledger, Resource};

/// What an engine needs for one server.
pub struct EngineContext<'a> {
    /// Where everything is written down before it is made.
    pub ledger: &'a Ledger,
    /// The trial that the server is for.
    pub id: &'a TrialId,
    /// What is wanted.
    pub engine: &'a EnginePlan,
    /// What the data directory lives on.
    pub volume: &'a dyn Volume,
    /// Where short-lived files are made.
    pub work_dir: &'a Path,
}

/// PostgreSQL's port, unless `settings.port` says otherwise.
pub const DEFAULT_PORT: u16 = 5432;

/// Connections of ours beside the clients': one for set-up and checks, one for reading metrics.
const OWN_CONNECTIONS: u64 = 2;

/// The longest path of a Unix socket.
const SOCKET_PATH_BYTES: usize = 107;

/// Checks, before anything is made, that every engine of the plan can be had here: image, binaries,
/// port, connections. An image that is missing is pulled.
///
/// # Errors
/// The first thing that is missing, with the step that brings it.
pub async fn preflight(plan: &Plan) -> Result<()> {
    let mut seen: Vec<&EnginePlan> = Vec::new();
    for cell in &plan.cells {
        if !seen.contains(&&cell.engine) {
            seen.push(&cell.engine);
        }
    }
    for engine in seen {
        let clients = plan
            .cells
            .iter()
            .filter(|cell| cell.engine == *engine)
            .map(|cell| u64::from(cell.workload.clients))
            .max()
            .unwrap_or(0);
        match &engine.provision {
            Provision::Url { url } => url::preflight(url, clients).await?,
            Provision::Container { images, .. } => {
                preflight_own(plan, engine)?;
                container::preflight(images).await?;
            }
            Provision::Process { bin_dir } => {
                preflight_own(plan, engine)?;
                process::preflight(engine, bin_dir).await?;
            }
        }
    }
    Ok(())
}

/// What is checked of a server that we start, in whichever way.
fn preflight_own(plan: &Plan, engine: &EnginePlan) -> Result<()> {
    let port = port(engine)?;
    if engine.transport == TransportKind::Tcp {
        if setting(engine, "port").is_some()
            && std::net::TcpListener::bind(("127.0.0.1", port)).is_err()
        {
            return Err(Error::provision(format!("port {port} is in use")).hint(
                "choose another `engine.settings.port`, or leave it out: a free one is then taken",
            ));
        }
    } else {
        // The run has no name yet; this is as long as the shortest.
        let name = format!("bedplate-{}-t0000", "r".repeat(16));
        socket_path(&plan.work_dir.join(directory_name(&name)), port)?;
    }
    Ok(())
}

fn too_many_clients(clients: u64, limit: &str) -> Error {
    Error::spec(format!(
        "`workload.clients` = {clients} does not fit into {limit} \
         ({OWN_CONNECTIONS} connections are bedplate's own)"
    ))
}

/// A declared setting; names are not case-sensitive.
fn setting<'a>(engine: &'a EnginePlan, name: &str) -> Option<&'a str> {
    engine
        .settings
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// The port that is declared, or PostgreSQL's own.
fn port(engine: &EnginePlan) -> Result<u16> {
    match setting(engine, "port") {
        None => Ok(DEFAULT_PORT),
        Some(text) => {
            text.trim().parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                Error::spec(format!("`engine.settings.port` is `{text}`, not a port"))
            })
        }
    }
}

/// Arguments `-c key=value` for `postgres`: the declared settings, and messages in English, which
/// is what we look for in logs.
fn server_arguments(engine: &EnginePlan) -> Vec<String> {
    let mut settings: Vec<(&str, &str)> =
        engine.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    if setting(engine, "lc_messages").is_none() {
        settings.push(("lc_messages", "C"));
    }
    settings.iter().flat_map(|(key, value)| ["-c".into(), format!("{key}={value}")]).collect()
}

/// Arguments for `initdb`.
fn initdb_arguments(initdb: &Initdb) -> Vec<String> {
    let mut arguments = vec![if initdb.locale == "C" {
        String::from("--no-locale")
    } else {
        format!("--locale={}", initdb.locale)
    }];
    arguments.push(format!("--encoding={}", initdb.encoding));
    if initdb.checksums {
        arguments.push("--data-checksums".into());
    }
    arguments
}

/// Name of the directory that holds a server's socket and log.
fn directory_name(resource_name: &str) -> String {
    format!("{resource_name}-server")
}

/// Makes the directory that a server's socket lives in, open to every user.
fn make_socket_directory(ctx: &EngineContext<'_>) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let name = ctx.id.resource_name();
    let path = ctx.work_dir.join(directory_name(&name));
    ctx.ledger.add(&name, Resource::Directory { path: path.clone() })?;
    std::fs::create_dir_all(&path)
        .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)))
        .map_err(|error| {
            Error::provision(format!("cannot make the directory {}: {error}", path.display()))
        })?;
    Ok(path)
}

/// The socket in a directory; the kernel limits the length of its path.
fn socket_path(directory: &Path, port: u16) -> Result<PathBuf> {
    let path = directory.join(format!(".s.PGSQL.{port}"));
    if path.as_os_str().len() > SOCKET_PATH_BYTES {
        return Err(Error::spec(format!(
            "the socket {} has a path of more than {SOCKET_PATH_BYTES} bytes",
            path.display()
        ))
        .hint("choose a shorter `work_dir`"));
    }
    Ok(path)
}

/// What the server says of itself over a session; provenance and mount are the engine's to add.
async fn read_facts(session: &mut dyn Session) -> Result<ServerFacts> {
    let mut facts = ServerFacts::default();
    let rows = session.query("SELECT version(), current_setting('server_version')").await?;
    if let [Some(full), Some(version)] = rows.first().map_or(&[] as &[_], Vec::as_slice) {
        facts.version_full.clone_from(full);
        // The packager's words follow after a blank.
        facts.version = version.split_whitespace().next().unwrap_or_default().to_owned();
    }
    for row in session.query("SELECT name, current_setting(name, true) FROM pg_settings").await? {
        if let [Some(name), value] = row.as_slice() {
            facts.settings.insert(name.clone(), value.clone().unwrap_or_default());
        }
    }
    Ok(facts)
}

/// A random password: 32 hexadecimal digits.
fn random_password() -> Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Error::provision(format!("cannot read random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The error that a server we started did not get ready, with the end of its log.
fn not_ready(message: impl Into<String>, log: &str) -> Error {
    let error = Error::new(ErrorKind::Provision, message);
    match tail(log) {
        log if log.is_empty() => error,
        log => error.evidence(log),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_core::plan::EngineKind;

    use super::*;

    fn engine(settings: &[(&str, &str)]) -> EnginePlan {
        EnginePlan {
            label: "postgres".into(),
            kind: EngineKind::Postgres,
            version: "13".into(),
            allow_other_version: false,
            provision: Provision::Process { bin_dir: "/nowhere".into() },
            transport: TransportKind::Unix,
            settings: settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            initdb: Initdb { locale: "C".into(), encoding: "UTF8".into(), checksums: true },
        }
    }

    #[test]
    fn settings_become_arguments() {
        assert_eq!(
            server_arguments(&engine(&[("fsync", "on"), ("work_mem", "8 MB")])),
            ["-c", "fsync=on", "-c", "work_mem=8 MB", "-c", "lc_messages=C"]
        );
        assert_eq!(
            initdb_arguments(&engine(&[]).initdb),
            ["--no-locale", "--encoding=UTF8", "--data-checksums"]
        );
    }

    #[test]
    fn a_long_socket_path_is_refused() {
        assert!(socket_path(Path::new("/tmp"), 5432).is_ok());
        let error = socket_path(Path::new(&format!("/{}", "d".repeat(100))), 5432).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("choose a shorter `work_dir`"));
    }

    #[test]
    fn passwords_are_random() {
        let (a, b) = (random_password().unwrap(), random_password().unwrap());
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let log: String = (0..30).map(|n| format!("line {n}\n\n")).collect();
        assert!(tail(&log).starts_with("line 10\n"));
        assert!(tail(&log).ends_with("line 29"));
        assert_eq!(tail("one\n"), "one");
    }
}
