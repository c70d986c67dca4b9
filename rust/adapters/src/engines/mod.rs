//! Database servers, provisioned three ways: a container, binaries of this machine, or a server that
//! exists already.
//!
//! Whatever is made here is on the ledger before it exists; it goes by the undoing of its entry, by
//! name. Dropping a server value does nothing.

pub mod container;
mod mariadb;
mod postgres;
pub mod process;
pub mod url;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bedplate_core::error::{Error, ErrorKind, Result};
use bedplate_core::plan::{
    EngineKind, EnginePlan, Plan, Provision, TlsMode, TransportKind, WorkloadPlan,
};
use bedplate_core::record::{ServerFacts, TrialId};
use bedplate_core::seam::{Address, Endpoint, Session, Volume};
use rustix::process::Signal;

use crate::drivers::tls::ClientTls;
use crate::ledger::{Ledger, Resource};

/// What an engine needs for one server.
pub struct EngineContext<'a> {
    /// Where everything is written down before it is made.
    pub ledger: &'a Ledger,
    /// The trial that the server is for.
    pub id: &'a TrialId,
    /// What is wanted.
    pub engine: &'a EnginePlan,
    /// How many instances of the workload will run in it.
    pub instances: u32,
    /// What the data directory lives on.
    pub volume: &'a dyn Volume,
    /// Where short-lived files are made.
    pub work_dir: &'a Path,
}

/// What differs between kinds of database in making, reaching and asking a server.
#[async_trait]
trait Database: Send + Sync {
    /// What differs and is a plain value.
    fn particulars(&self) -> &'static Particulars;

    /// Name of the socket of a server with that port.
    fn socket_file(&self, port: u16) -> String;

    /// Opens a session.
    async fn connect(&self, endpoint: &Endpoint, tls: &ClientTls) -> Result<Box<dyn Session>>;

    /// Finds out whether there is a server, which may well refuse.
    async fn find(&self, endpoint: &Endpoint, tls: &ClientTls) -> Result<()>;

    /// What the server says of itself; provenance and mount are the engine's to add.
    async fn facts(&self, session: &mut dyn Session) -> Result<ServerFacts>;

    /// How a container of the official image is told what is wanted; `sockets` is where the host's
    /// directory for sockets is mounted.
    fn container(
        &self,
        engine: &EnginePlan,
        password: &str,
        port: u16,
        sockets: Option<&str>,
    ) -> ContainerRecipe;

    /// Text of the secret file that installing and the first start may read.
    fn secret(&self, password: &str) -> String;

    /// Arguments of the program that makes a data directory.
    fn install(&self, engine: &EnginePlan, installing: &Installing<'_>) -> Vec<String>;

    /// Arguments of the server's program.
    fn serve(
        &self,
        engine: &EnginePlan,
        installing: &Installing<'_>,
        listening: &Listening<'_>,
    ) -> Vec<String>;

    /// Further arguments of the first start.
    fn serve_first(&self, secret: &Path) -> Vec<String>;

    /// Where a URL points, with the password from the environment.
    fn endpoint(&self, url: &str) -> Result<Endpoint>;

    /// Connections that are free, this one among them.
    async fn room(&self, session: &mut dyn Session) -> Result<u64>;

    /// What the user may make.
    async fn rights(&self, session: &mut dyn Session, endpoint: &Endpoint) -> Result<Rights>;

    /// Makes a schema that carries the mark, and a user of its own where one is asked for.
    async fn make_schema(&self, session: &mut dyn Session, schema: &NewSchema<'_>) -> Result<()>;

    /// What a schema carries where a mark would be; none when there is no such schema.
    async fn marks(&self, session: &mut dyn Session, name: &str) -> Result<Option<Vec<String>>>;

    /// Drops a schema with everything in it, and its user where there is one.
    async fn drop_schema(
        &self,
        session: &mut dyn Session,
        name: &str,
        user: Option<&str>,
    ) -> Result<()>;

    /// Makes sessions of the endpoint begin in the schema.
    fn enter(&self, endpoint: &mut Endpoint, schema: &str);
}

/// The plain values in which kinds of database differ.
struct Particulars {
    kind: EngineKind,
    /// The port, unless `settings.port` says otherwise.
    port: u16,
    superuser: &'static str,
    /// The database that clients of a server of ours use.
    database: &'static str,
    /// Where the volume is mounted in a container, as in the official image.
    mount_point: &'static str,
    /// Name of the data directory below the volume, whose root may hold a `lost+found`.
    data_directory: &'static str,
    /// Names of the server's program, the newest first.
    server: &'static [&'static str],
    /// Names of the program that makes a data directory, the newest first.
    installer: &'static [&'static str],
    /// Directories beside that of the server's program in which the other programs may be.
    siblings: &'static [&'static str],
    /// Debian's package.
    package: &'static str,
    /// The users that a server may run as when we are root, the first that exists.
    users: &'static [&'static str],
    /// Beginnings of the names of variables that would change settings behind the plan's back.
    variables: &'static [&'static str],
    /// The variable of the database's own tools that may hold the password.
    password_variable: &'static str,
    /// Ends a server in an orderly way.
    stop: Signal,
    stop_name: &'static str,
    /// Ends a server at once.
    stop_now: Signal,
    stop_now_name: &'static str,
}

impl Particulars {
    /// The data directory in a container.
    fn data_in_container(&self) -> String {
        format!("{}/{}", self.mount_point, self.data_directory)
    }
}

/// What a container is started with.
struct ContainerRecipe {
    command: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// What the server says, on standard error, when it accepts connections.
    ready: String,
}

/// Where the programs of this machine find and put things.
struct Installing<'a> {
    /// The directory above that of the server's program.
    base_dir: &'a Path,
    data_dir: &'a Path,
    /// The file with [`Database::secret`].
    secret: &'a Path,
}

/// Where a server of this machine listens.
struct Listening<'a> {
    /// Of its socket.
    directory: &'a Path,
    port: u16,
}

/// A schema of ours.
struct NewSchema<'a> {
    name: &'a str,
    mark: &'a str,
    user: Option<NewUser<'a>>,
}

/// A user that may use one schema of ours and nothing else.
struct NewUser<'a> {
    name: &'a str,
    password: &'a str,
    address: &'a Address,
}

/// What the user of a server that exists already may make.
struct Rights {
    schema: Right,
    /// Users, which several instances need.
    users: Right,
}

/// What [`Rights::users`] lets a user make.
const USERS: &str = "a user for each of several instances";

/// A right, given or not.
struct Right {
    given: bool,
    /// What it lets the user make.
    what: String,
    /// The statement that gives it.
    remedy: String,
}

fn database(kind: EngineKind) -> &'static dyn Database {
    match kind {
        EngineKind::Postgres => &postgres::Postgres,
        EngineKind::MariaDb => &mariadb::MariaDb,
    }
}

/// Debian's package with the server of a kind of database.
pub(crate) fn package(kind: EngineKind) -> &'static str {
    database(kind).particulars().package
}

/// How the connections to an engine's server are encrypted, for sessions and load alike.
///
/// # Errors
/// When the certificates of `engine.tls_ca` cannot be used.
pub fn client_tls(engine: &EnginePlan) -> Result<ClientTls> {
    ClientTls::new(engine.tls, engine.tls_ca.as_deref())
        .map_err(|error| error.hint("`engine.tls_ca` is a PEM file with certificates"))
}

/// A way to a server.
struct Access {
    database: &'static dyn Database,
    endpoint: Endpoint,
    /// Of the instances of the workload; none when there is one, which uses `endpoint`.
    instances: Vec<Endpoint>,
    tls: ClientTls,
}

impl Access {
    fn new(database: &'static dyn Database, endpoint: Endpoint, tls: ClientTls) -> Self {
        Self { database, endpoint, instances: Vec::new(), tls }
    }

    async fn session(&self) -> Result<Box<dyn Session>> {
        self.session_at(&self.endpoint).await
    }

    async fn session_at(&self, endpoint: &Endpoint) -> Result<Box<dyn Session>> {
        self.database.connect(endpoint, &self.tls).await
    }

    fn instances(&self) -> &[Endpoint] {
        match self.instances.as_slice() {
            [] => std::slice::from_ref(&self.endpoint),
            instances => instances,
        }
    }

    /// Makes the schemas and users of several instances in a server that we started, which takes
    /// them with it when it goes.
    async fn make_instances(&mut self, ctx: &EngineContext<'_>) -> Result<()> {
        if ctx.instances == 1 {
            return Ok(());
        }
        let mut session = self.session().await?;
        let mark = url::mark(&ctx.id.resource_name());
        for number in instance_numbers(ctx.instances) {
            let name = format!("bench{number}");
            self.make_instance(&mut *session, &mark, &name, &name).await?;
        }
        Ok(())
    }

    /// Makes the schema and the user of an instance.
    async fn make_instance(
        &mut self,
        session: &mut dyn Session,
        mark: &str,
        name: &str,
        user: &str,
    ) -> Result<()> {
        let password = random_password()?;
        let new = NewUser { name: user, password: &password, address: &self.endpoint.address };
        let schema = NewSchema { name, mark, user: Some(new) };
        self.database.make_schema(session, &schema).await?;
        let mut endpoint = Endpoint { user: user.into(), password, ..self.endpoint.clone() };
        self.database.enter(&mut endpoint, name);
        self.instances.push(endpoint);
        Ok(())
    }

    /// Whether the server is ready, and only the encryption that is demanded stands in the way.
    async fn lacks_tls(&self) -> bool {
        self.tls.mode() != TlsMode::Off
            && self.database.connect(&self.endpoint, &ClientTls::off()).await.is_ok()
    }

    /// What the server says of itself, and what we know of it.
    async fn facts(&self, provenance: &BTreeMap<String, String>) -> Result<ServerFacts> {
        let mut facts = self.database.facts(&mut *self.session().await?).await?;
        facts.provenance.extend(provenance.clone());
        facts.provenance.insert("tls".into(), self.tls.mode().word().into());
        Ok(facts)
    }
}

/// The numbers of several instances in names, `01` and so on.
fn instance_numbers(count: u32) -> impl Iterator<Item = String> {
    (1..=count).map(|number| format!("{number:02}"))
}

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
        let workloads =
            plan.cells.iter().filter(|cell| cell.engine == *engine).map(|cell| &cell.workload);
        client_tls(engine)?;
        match &engine.provision {
            Provision::Url { url } => {
                let clients = workloads.clone().map(WorkloadPlan::clients_in_all).max();
                let several = workloads.clone().any(|workload| workload.instances > 1);
                url::preflight(engine, url, clients.unwrap_or(0), several).await?;
            }
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
        socket_path(database(engine.kind), &plan.work_dir.join(directory_name(&name)), port)?;
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

/// The declared settings.
fn declared(engine: &EnginePlan) -> Vec<(&str, &str)> {
    engine.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// The port that is declared, or the database's own.
fn port(engine: &EnginePlan) -> Result<u16> {
    match setting(engine, "port") {
        None => Ok(database(engine.kind).particulars().port),
        Some(text) => {
            text.trim().parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                Error::spec(format!("`engine.settings.port` is `{text}`, not a port"))
            })
        }
    }
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
fn socket_path(database: &dyn Database, directory: &Path, port: u16) -> Result<PathBuf> {
    let path = directory.join(database.socket_file(port));
    if path.as_os_str().len() > SOCKET_PATH_BYTES {
        return Err(Error::spec(format!(
            "the socket {} has a path of more than {SOCKET_PATH_BYTES} bytes",
            path.display()
        ))
        .hint("choose a shorter `work_dir`"));
    }
    Ok(path)
}

/// Whether the only row of a query says yes in a column, in whichever database's words.
fn is_yes(rows: &[Vec<Option<String>>], column: usize) -> bool {
    let value = rows.first().and_then(|row| row.get(column)?.as_deref());
    matches!(value, Some("t" | "1"))
}

/// The number that a query has as its only value.
fn first_number(rows: &[Vec<Option<String>>]) -> Result<u64> {
    rows.first()
        .and_then(|row| row.first()?.as_deref()?.parse().ok())
        .ok_or_else(|| Error::driver(format!("the server answered {rows:?}, which is no number")))
}

/// A variable of the environment that is not empty.
fn user_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The variable that may hold the password of a server that exists already, of whatever kind.
const PASSWORD_VARIABLE: &str = "BEDPLATE_PASSWORD";

/// The password of a server that exists already, from the environment.
fn password_of(particulars: &Particulars) -> String {
    [PASSWORD_VARIABLE, particulars.password_variable]
        .into_iter()
        .find_map(user_variable)
        .unwrap_or_default()
}

fn password_in_url() -> Error {
    Error::spec("`engine.url` holds a password")
        .hint(format!("take it out and set the variable {PASSWORD_VARIABLE}"))
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

/// The error that a server we started has no TLS as it is demanded.
fn without_tls(error: Error) -> Error {
    error.hint(
        "declare `ssl_cert` and `ssl_key` in `engine.settings`, or set `engine.tls = \"off\"`",
    )
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
    use bedplate_core::plan::SettingsProfile;

    use super::*;

    pub(super) fn engine(kind: EngineKind, settings: &[(&str, &str)]) -> EnginePlan {
        EnginePlan {
            label: "x".into(),
            kind,
            version: "13".into(),
            allow_other_version: false,
            provision: Provision::Process { bin_dir: "/nowhere".into() },
            transport: TransportKind::Unix,
            settings: settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            settings_profile: SettingsProfile::Stock,
            pages: None,
            tls: TlsMode::Off,
            tls_ca: None,
            initdb: None,
        }
    }

    #[test]
    fn a_long_socket_path_is_refused() {
        assert!(socket_path(&postgres::Postgres, Path::new("/tmp"), 5432).is_ok());
        for kind in EngineKind::ALL {
            let directory = format!("/{}", "d".repeat(100));
            let error = socket_path(database(kind), Path::new(&directory), 5432).unwrap_err();
            assert_eq!(error.hint.as_deref(), Some("choose a shorter `work_dir`"));
        }
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
