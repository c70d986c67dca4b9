//! What is PostgreSQL's own in making and reaching a server.

use std::path::Path;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EngineKind, EnginePlan, Initdb, TransportKind};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Session};
use rustix::process::Signal;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::{
    ContainerRecipe, Database, Installing, Listening, NewSchema, NewUser, Particulars, Right,
    Rights, declared, setting, user_variable,
};
use crate::drivers::session;
use crate::drivers::tls::ClientTls;

/// PostgreSQL.
pub(super) struct Postgres;

const PARTICULARS: Particulars = Particulars {
    kind: EngineKind::Postgres,
    port: 5432,
    superuser: "postgres",
    database: "postgres",
    mount_point: "/var/lib/postgresql/data",
    data_directory: "pgdata",
    server: &["postgres"],
    installer: &["initdb"],
    siblings: &[],
    package: "postgresql",
    users: &["postgres", "nobody"],
    variables: &["PG"],
    password_variable: "PGPASSWORD",
    // Fast shutdown, then immediate shutdown.
    stop: Signal::INT,
    stop_name: "SIGINT",
    stop_now: Signal::QUIT,
    stop_now_name: "QUIT",
};

#[async_trait]
impl Database for Postgres {
    fn particulars(&self) -> &'static Particulars {
        &PARTICULARS
    }

    fn socket_file(&self, port: u16) -> String {
        format!(".s.PGSQL.{port}")
    }

    async fn connect(&self, endpoint: &Endpoint, _: &ClientTls) -> Result<Box<dyn Session>> {
        Ok(Box::new(session::connect(endpoint).await?))
    }

    async fn find(&self, endpoint: &Endpoint, _: &ClientTls) -> Result<()> {
        session::find(endpoint).await
    }

    async fn facts(&self, session: &mut dyn Session) -> Result<ServerFacts> {
        let mut facts = ServerFacts::default();
        let rows = session.query("SELECT version(), current_setting('server_version')").await?;
        if let [Some(full), Some(version)] = rows.first().map_or(&[] as &[_], Vec::as_slice) {
            facts.version_full.clone_from(full);
            // The packager's words follow after a blank.
            facts.version = version.split_whitespace().next().unwrap_or_default().to_owned();
        }
        let settings = "SELECT name, current_setting(name, true) FROM pg_settings";
        for row in session.query(settings).await? {
            if let [Some(name), value] = row.as_slice() {
                facts.settings.insert(name.clone(), value.clone().unwrap_or_default());
            }
        }
        Ok(facts)
    }

    /// The socket is made beside the image's own, which its tools look for.
    fn container(
        &self,
        engine: &EnginePlan,
        password: &str,
        _: u16,
        sockets: Option<&str>,
    ) -> ContainerRecipe {
        let mut command = vec!["postgres".to_owned()];
        command.extend(server_arguments(engine));
        if let Some(directory) = sockets {
            command.push("-c".into());
            command.push(format!("unix_socket_directories=/var/run/postgresql,{directory}"));
        }
        let mut environment = vec![
            ("PGDATA", self.particulars().data_in_container()),
            ("POSTGRES_PASSWORD", password.to_owned()),
        ];
        if let Some(initdb) = &engine.initdb {
            environment.push(("POSTGRES_INITDB_ARGS", shell_words(&initdb_arguments(initdb))));
        }
        // The temporary server of the first start says so too, but on standard output.
        let ready = "database system is ready to accept connections".to_owned();
        ContainerRecipe { command, environment, ready }
    }

    fn secret(&self, password: &str) -> String {
        format!("{password}\n")
    }

    fn install(&self, engine: &EnginePlan, installing: &Installing<'_>) -> Vec<String> {
        let mut arguments = vec![
            "-D".into(),
            installing.data_dir.display().to_string(),
            "--username=postgres".into(),
            format!("--pwfile={}", installing.secret.display()),
            "--auth-local=trust".into(),
            "--auth-host=md5".into(),
        ];
        arguments.extend(engine.initdb.iter().flat_map(initdb_arguments));
        arguments
    }

    /// The Unix socket is made for TCP too: without a place of its own it would go into a directory of
    /// the system.
    fn serve(
        &self,
        engine: &EnginePlan,
        installing: &Installing<'_>,
        listening: &Listening<'_>,
    ) -> Vec<String> {
        let addresses = match engine.transport {
            TransportKind::Unix => "",
            TransportKind::Tcp => "127.0.0.1",
        };
        let mut arguments: Vec<String> = vec!["-D".into(), path(installing.data_dir)];
        arguments.extend(["-k".into(), path(listening.directory)]);
        arguments.extend(["-c".into(), format!("listen_addresses={addresses}")]);
        arguments.extend(["-c".into(), format!("port={}", listening.port)]);
        arguments.extend(server_arguments(engine));
        arguments
    }

    fn serve_first(&self, _: &Path) -> Vec<String> {
        Vec::new()
    }

    fn endpoint(&self, url: &str) -> Result<Endpoint> {
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error)
                .map_or(String::new(), |cause| format!(": {cause}"));
            Error::spec(format!("`engine.url` is not a connection URL{cause}"))
                .hint("write it as postgresql://USER@HOST:PORT/DATABASE")
        })?;
        if config.get_password().is_some() {
            return Err(super::password_in_url());
        }
        let port = config.get_ports().first().copied().unwrap_or(PARTICULARS.port);
        let address = match config.get_hosts() {
            [Host::Tcp(host)] => Address::Tcp(host.clone(), port),
            [Host::Unix(directory)] => Address::Unix(directory.join(self.socket_file(port))),
            [] => match config.get_hostaddrs() {
                [address] => Address::Tcp(address.to_string(), port),
                _ => return Err(Error::spec("`engine.url` names no host")),
            },
            _ => return Err(Error::spec("`engine.url` names more than one host")),
        };
        let user = config
            .get_user()
            .map(String::from)
            .or_else(|| user_variable("PGUSER"))
            .or_else(|| user_variable("USER"))
            .ok_or_else(|| Error::spec("`engine.url` names no user"))?;
        Ok(Endpoint {
            address,
            database: config.get_dbname().map_or_else(|| user.clone(), String::from),
            user,
            password: super::password_of(&PARTICULARS),
            session_settings: Vec::new(),
        })
    }

    async fn room(&self, session: &mut dyn Session) -> Result<u64> {
        let rows = session
            .query(
                "SELECT current_setting('max_connections')::int \
                 - CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN 0 \
                   ELSE current_setting('superuser_reserved_connections')::int END \
                 - (SELECT count(*) FROM pg_stat_activity \
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())",
            )
            .await?;
        super::first_number(&rows)
    }

    async fn rights(&self, session: &mut dyn Session, endpoint: &Endpoint) -> Result<Rights> {
        let allowed = "SELECT has_database_privilege(current_database(), 'CREATE'), \
                       (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user)";
        let rows = session.query(allowed).await?;
        let (user, database) = (&endpoint.user, &endpoint.database);
        let (quoted, of) = (identifier(database), identifier(user));
        Ok(Rights {
            schema: Right {
                given: super::is_yes(&rows, 0),
                what: format!("a schema in database {database}"),
                remedy: format!("GRANT CREATE ON DATABASE {quoted} TO {of}"),
            },
            users: Right {
                given: super::is_yes(&rows, 1),
                what: super::USERS.into(),
                remedy: format!("ALTER ROLE {user} CREATEROLE"),
            },
        })
    }

    /// One transaction: the schema, its mark and its user exist together or not at all.
    async fn make_schema(&self, session: &mut dyn Session, schema: &NewSchema<'_>) -> Result<()> {
        let (name, mark) = (identifier(schema.name), literal(schema.mark));
        let mut statements =
            vec![format!("CREATE SCHEMA {name}"), format!("COMMENT ON SCHEMA {name} IS {mark}")];
        if let Some(NewUser { name: user, password, .. }) = &schema.user {
            let (user, password) = (identifier(user), literal(password));
            statements.push(format!("CREATE ROLE {user} LOGIN PASSWORD {password}"));
            statements.push(format!("GRANT ALL ON SCHEMA {name} TO {user}"));
        }
        session.execute(&format!("BEGIN; {}; COMMIT", statements.join("; "))).await
    }

    async fn marks(&self, session: &mut dyn Session, name: &str) -> Result<Option<Vec<String>>> {
        let rows = session
            .query(&format!(
                "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = {}",
                literal(name)
            ))
            .await?;
        Ok(rows.into_iter().next().map(|row| row.into_iter().flatten().collect()))
    }

    async fn drop_schema(
        &self,
        session: &mut dyn Session,
        name: &str,
        user: Option<&str>,
    ) -> Result<()> {
        let mut statements = vec![format!("DROP SCHEMA {} CASCADE", identifier(name))];
        statements.extend(user.map(|user| format!("DROP ROLE {}", identifier(user))));
        session.execute(&format!("BEGIN; {}; COMMIT", statements.join("; "))).await
    }

    fn enter(&self, endpoint: &mut Endpoint, schema: &str) {
        endpoint.session_settings.push(("search_path".into(), schema.into()));
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Arguments `-c key=value` for `postgres`: the declared settings, and messages in English, which
/// is what we look for in logs.
fn server_arguments(engine: &EnginePlan) -> Vec<String> {
    let mut settings = declared(engine);
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

/// Words of a shell command; `POSTGRES_INITDB_ARGS` is a piece of shell.
fn shell_words(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.@,/".contains(c);
    let quoted: Vec<String> = words
        .iter()
        .map(|word| {
            if word.chars().all(plain) {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    quoted.join(" ")
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant that is the same with and without `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_arguments() {
        let engine = super::super::tests::engine(
            EngineKind::Postgres,
            &[("fsync", "on"), ("work_mem", "8 MB")],
        );
        assert_eq!(
            server_arguments(&engine),
            ["-c", "fsync=on", "-c", "work_mem=8 MB", "-c", "lc_messages=C"]
        );
        let initdb = Initdb { locale: "C".into(), encoding: "UTF8".into(), checksums: true };
        assert_eq!(
            initdb_arguments(&initdb),
            ["--no-locale", "--encoding=UTF8", "--data-checksums"]
        );
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        let words = ["--no-locale".to_owned(), "--locale=de $x'".to_owned()];
        assert_eq!(shell_words(&words), r"--no-locale '--locale=de $x'\'''");
    }

    #[test]
    fn a_url_becomes_an_endpoint() {
        let tcp = Postgres.endpoint("postgres://u@db.example:5433/d").unwrap();
        assert_eq!(tcp.address, Address::Tcp("db.example".into(), 5433));
        assert_eq!((tcp.user.as_str(), tcp.database.as_str()), ("u", "d"));
        let unix = Postgres.endpoint("host=/run/postgresql user=u").unwrap();
        assert_eq!(unix.address, Address::Unix("/run/postgresql/.s.PGSQL.5432".into()));
        assert_eq!(unix.database, "u");
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        let error = Postgres.endpoint("postgres://u:hunter2@localhost/d").unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        assert!(error.hint.unwrap().contains("BEDPLATE_PASSWORD"));
    }

    #[test]
    fn a_literal_is_quoted() {
        assert_eq!(literal(r"a'b\c"), r"E'a''b\\c'");
    }
}
