//! What is MariaDB's own in making and reaching a server.

use std::path::Path;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EngineKind, EnginePlan, TransportKind};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Session};
use rustix::process::Signal;

use super::{
    ContainerRecipe, Database, Installing, Listening, NewSchema, NewUser, Particulars, Right,
    Rights, declared, setting, user_variable,
};
use crate::drivers::mariadb_session;
use crate::drivers::tls::ClientTls;

/// MariaDB.
pub(super) struct MariaDb;

const PARTICULARS: Particulars = Particulars {
    kind: EngineKind::MariaDb,
    port: 3306,
    superuser: "root",
    database: "bedplate",
    mount_point: "/var/lib/mysql",
    data_directory: "data",
    server: &["mariadbd", "mysqld"],
    installer: &["mariadb-install-db", "mysql_install_db"],
    siblings: &["bin", "sbin", "scripts"],
    package: "mariadb-server",
    users: &["mysql", "nobody", "postgres"],
    variables: &["MYSQL", "MARIADB"],
    password_variable: "MYSQL_PWD",
    stop: Signal::TERM,
    stop_name: "SIGTERM",
    // There is no quicker shutdown than the orderly one, and nothing of a server outlives its process.
    stop_now: Signal::KILL,
    stop_now_name: "KILL",
};

/// MariaDB's own default. Configuration files, also those in images, have other ideas; the plan has
/// counted on this one.
const MAX_CONNECTIONS: &str = "151";

/// The table that marks a database of ours on a server whose databases have no comment.
const MARK_TABLE: &str = "bedplate_mark";

#[async_trait]
impl Database for MariaDb {
    fn particulars(&self) -> &'static Particulars {
        &PARTICULARS
    }

    fn socket_file(&self, _: u16) -> String {
        "mysqld.sock".into()
    }

    async fn connect(&self, endpoint: &Endpoint, tls: &ClientTls) -> Result<Box<dyn Session>> {
        Ok(Box::new(mariadb_session::connect(endpoint, tls).await?))
    }

    async fn find(&self, endpoint: &Endpoint, tls: &ClientTls) -> Result<()> {
        mariadb_session::find(endpoint, tls).await
    }

    async fn facts(&self, session: &mut dyn Session) -> Result<ServerFacts> {
        let mut facts = ServerFacts::default();
        let rows = session.query("SELECT VERSION()").await?;
        if let Some(Some(full)) = rows.first().and_then(|row| row.first()) {
            if !full.contains("MariaDB") {
                return Err(Error::provision(format!("the server is MySQL {full}, not MariaDB")));
            }
            facts.version_full.clone_from(full);
            facts.version = full.split('-').next().unwrap_or_default().to_owned();
        }
        for row in session.query("SHOW GLOBAL VARIABLES").await? {
            if let [Some(name), value] = row.as_slice() {
                facts.settings.insert(name.clone(), value.clone().unwrap_or_default());
            }
        }
        for row in session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await? {
            if let [_, Some(cipher)] = row.as_slice()
                && !cipher.is_empty()
            {
                facts.provenance.insert("tls_cipher".into(), cipher.clone());
            }
        }
        Ok(facts)
    }

    /// The variables are those of old images, which new ones still know. A command that starts with a
    /// dash gets the name of the image's own program before it.
    fn container(
        &self,
        engine: &EnginePlan,
        password: &str,
        port: u16,
        sockets: Option<&str>,
    ) -> ContainerRecipe {
        let mut command = vec![format!("--datadir={}", self.particulars().data_in_container())];
        if let Some(directory) = sockets {
            command.push(format!("--socket={directory}/{}", self.socket_file(port)));
        }
        command.extend(server_arguments(engine));
        let environment = vec![
            ("MYSQL_ROOT_PASSWORD", password.to_owned()),
            ("MYSQL_ROOT_HOST", "%".to_owned()),
            ("MYSQL_DATABASE", PARTICULARS.database.to_owned()),
            ("MYSQL_INITDB_SKIP_TZINFO", "1".to_owned()),
        ];
        // The temporary server of the first start has port 0.
        ContainerRecipe { command, environment, ready: format!("port: {port} ") }
    }

    /// What the server executes before it takes its first connection: the accounts of the installation
    /// that have no password go, and the one that is ours gets one.
    fn secret(&self, password: &str) -> String {
        let password = literal(password);
        format!(
            "SET @drop = (SELECT CONCAT('DROP USER ', GROUP_CONCAT(QUOTE(User), '@', QUOTE(Host))) \
             FROM mysql.user WHERE User IN ('', 'root') AND Host <> 'localhost');\n\
             EXECUTE IMMEDIATE COALESCE(@drop, 'DO 0');\n\
             CREATE USER 'root'@'%' IDENTIFIED BY {password};\n\
             GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n\
             SET PASSWORD FOR 'root'@'localhost' = PASSWORD({password});\n\
             CREATE DATABASE {};\n",
            identifier(PARTICULARS.database)
        )
    }

    /// The settings are given here too: some, such as the size of a page, are decided now.
    fn install(&self, engine: &EnginePlan, installing: &Installing<'_>) -> Vec<String> {
        let mut arguments = vec![
            "--no-defaults".into(),
            format!("--basedir={}", installing.base_dir.display()),
            format!("--datadir={}", installing.data_dir.display()),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
        ];
        arguments.extend(server_arguments(engine));
        arguments
    }

    fn serve(
        &self,
        engine: &EnginePlan,
        installing: &Installing<'_>,
        listening: &Listening<'_>,
    ) -> Vec<String> {
        let mut arguments = vec![
            "--no-defaults".into(),
            format!("--basedir={}", installing.base_dir.display()),
            format!("--datadir={}", installing.data_dir.display()),
            format!("--pid-file={}", installing.data_dir.join("mysqld.pid").display()),
            format!(
                "--socket={}",
                listening.directory.join(self.socket_file(listening.port)).display()
            ),
        ];
        // A server without a network says that its port is 0, so one whose port was declared has one.
        if engine.transport == TransportKind::Unix && setting(engine, "port").is_none() {
            arguments.push("--skip-networking".into());
        } else {
            arguments.push("--bind-address=127.0.0.1".into());
            arguments.push(format!("--port={}", listening.port));
        }
        arguments.extend(server_arguments(engine));
        arguments
    }

    fn serve_first(&self, secret: &Path) -> Vec<String> {
        vec![format!("--init-file={}", secret.display())]
    }

    /// `mysql://USER@HOST:PORT`, or `mysql://USER@localhost?socket=/PATH`. A database may follow the
    /// port: it is the one that is used until ours is made.
    fn endpoint(&self, url: &str) -> Result<Endpoint> {
        let wrong = |what: &str| {
            Error::spec(format!("`engine.url` is not a connection URL: {what}"))
                .hint("write it as mysql://USER@HOST:PORT")
        };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (_, rest) = base.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(super::password_in_url());
        }
        let mut socket = None;
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("socket", path)) => {
                    socket = Some(decoded(path).ok_or_else(|| wrong("bad escape"))?);
                }
                Some(("password", _)) => return Err(super::password_in_url()),
                _ => return Err(wrong("the only parameter is `socket`")),
            }
        }
        let (host, port) = match host.rsplit_once(':') {
            // A colon within brackets belongs to an address.
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| wrong("its port is not a number"))?)
            }
            _ => (host, PARTICULARS.port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = match socket {
            Some(path) => Address::Unix(path.into()),
            None if host.is_empty() => return Err(Error::spec("`engine.url` names no host")),
            None => Address::Tcp(host.to_owned(), port),
        };
        let user = match user.filter(|user| !user.is_empty()) {
            Some(user) => decoded(user).ok_or_else(|| wrong("bad escape"))?,
            None => {
                user_variable("USER").ok_or_else(|| Error::spec("`engine.url` names no user"))?
            }
        };
        Ok(Endpoint {
            address,
            user,
            password: super::password_of(&PARTICULARS),
            database: decoded(database).ok_or_else(|| wrong("bad escape"))?,
            session_settings: Vec::new(),
        })
    }

    /// The one connection that is kept for administrators is not counted.
    async fn room(&self, session: &mut dyn Session) -> Result<u64> {
        let rows = session
            .query(
                "SELECT GREATEST(0, LEAST(@@GLOBAL.max_connections + 1 - \
                 (SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS \
                  WHERE VARIABLE_NAME = 'THREADS_CONNECTED'), \
                 IF(@@max_user_connections > 0, @@max_user_connections, 1000000)))",
            )
            .await?;
        super::first_number(&rows)
    }

    /// Rights that come with a role are not listed, so a user with a role is believed.
    async fn rights(&self, session: &mut dyn Session, _: &Endpoint) -> Result<Rights> {
        // A name like those of trials.
        let name = literal(&super::url::schema_name("bedplate-20000101T000000-a0-t0000"));
        let rows = session
            .query(&format!(
                "SELECT CURRENT_ROLE() IS NOT NULL \
                 OR EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES \
                            WHERE PRIVILEGE_TYPE = 'CREATE' AND GRANTEE = me.grantee) \
                 OR EXISTS (SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES \
                            WHERE PRIVILEGE_TYPE = 'CREATE' AND GRANTEE = me.grantee \
                            AND {name} LIKE TABLE_SCHEMA), \
                 CURRENT_ROLE() IS NOT NULL \
                 OR EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES \
                            WHERE PRIVILEGE_TYPE = 'CREATE USER' AND IS_GRANTABLE = 'YES' \
                            AND GRANTEE = me.grantee), \
                 me.grantee \
                 FROM (SELECT CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''') \
                       AS grantee) AS me"
            ))
            .await?;
        // The account, which is a user at a host.
        let account = rows.first().and_then(|row| row.get(2)?.clone()).unwrap_or_default();
        Ok(Rights {
            schema: Right {
                given: super::is_yes(&rows, 0),
                what: "a database whose name begins with bedplate_".into(),
                remedy: format!(r"GRANT ALL ON `bedplate\_%`.* TO {account}"),
            },
            users: Right {
                given: super::is_yes(&rows, 1),
                what: super::USERS.into(),
                remedy: format!("GRANT ALL ON *.* TO {account} WITH GRANT OPTION"),
            },
        })
    }

    /// The mark is the database's comment. Before MariaDB 10.5 databases have none: it is then the
    /// comment of a table. Who dies between the two statements leaves an empty database.
    async fn make_schema(&self, session: &mut dyn Session, schema: &NewSchema<'_>) -> Result<()> {
        let NewSchema { name, mark, user } = schema;
        let (quoted, mark) = (identifier(name), literal(mark));
        // What is in the comment is read by 10.5 and later.
        session.execute(&format!("CREATE DATABASE {quoted} /*M!100500 COMMENT {mark} */")).await?;
        if self.marks(session, name).await?.is_some_and(|marks| marks.is_empty()) {
            let table = format!("{quoted}.{}", identifier(MARK_TABLE));
            session.execute(&format!("CREATE TABLE {table} (a INT) COMMENT {mark}")).await?;
        }
        if let Some(NewUser { name: user, password, address }) = user {
            // A user of the host `%` stands behind an anonymous one of `localhost`, which a socket
            // is.
            let host = if matches!(address, Address::Unix(_)) { "localhost" } else { "%" };
            let user = format!("{}@'{host}'", literal(user));
            let password = literal(password);
            session.execute(&format!("CREATE USER {user} IDENTIFIED BY {password}")).await?;
            // An underscore would stand for any character.
            let pattern = identifier(&name.replace('_', r"\_"));
            session.execute(&format!("GRANT ALL ON {pattern}.* TO {user}")).await?;
        }
        Ok(())
    }

    async fn marks(&self, session: &mut dyn Session, name: &str) -> Result<Option<Vec<String>>> {
        let name = literal(name);
        let schemas =
            format!("SELECT * FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = {name}");
        let Some(schema) = session.query(&schemas).await?.into_iter().next() else {
            return Ok(None);
        };
        // The comment is the sixth column, where there is one.
        let mut marks: Vec<String> = schema.into_iter().skip(5).flatten().collect();
        let tables = format!(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA = {name} AND TABLE_NAME = {}",
            literal(MARK_TABLE)
        );
        marks.extend(session.query(&tables).await?.into_iter().flatten().flatten());
        marks.retain(|mark| !mark.is_empty());
        Ok(Some(marks))
    }

    /// The user goes first: without the database nothing would say that it is ours.
    async fn drop_schema(
        &self,
        session: &mut dyn Session,
        name: &str,
        user: Option<&str>,
    ) -> Result<()> {
        if let Some(user) = user.map(literal) {
            let hosts = format!("{user}@'localhost', {user}@'%'");
            session.execute(&format!("DROP USER IF EXISTS {hosts}")).await?;
        }
        session.execute(&format!("DROP DATABASE {}", identifier(name))).await
    }

    fn enter(&self, endpoint: &mut Endpoint, schema: &str) {
        endpoint.database = schema.into();
    }
}

/// Arguments `--name=value`.
fn server_arguments(engine: &EnginePlan) -> Vec<String> {
    let mut settings = declared(engine);
    if setting(engine, "max_connections").is_none() {
        settings.push(("max_connections", MAX_CONNECTIONS));
    }
    settings.iter().map(|(key, value)| format!("--{key}={value}")).collect()
}

/// Text with the escapes of a URL taken out; none when an escape is not one.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_arguments() {
        let engine = |settings| super::super::tests::engine(EngineKind::MariaDb, settings);
        assert_eq!(
            server_arguments(&engine(&[("innodb_doublewrite", "ON")])),
            ["--innodb_doublewrite=ON", "--max_connections=151"]
        );
        assert_eq!(server_arguments(&engine(&[("max_connections", "9")])), ["--max_connections=9"]);
    }

    #[test]
    fn a_url_becomes_an_endpoint() {
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        for (url, address, user, database) in [
            ("mysql://u@db.example:3307/d", tcp("db.example", 3307), "u", "d"),
            ("mariadb://u@db.example", tcp("db.example", 3306), "u", ""),
            ("mysql://a%40b@[::1]:3307", tcp("::1", 3307), "a@b", ""),
            ("mysql://u@[fe80::1]/", tcp("fe80::1", 3306), "u", ""),
            (
                "mysql://u@localhost?socket=/run/my%20sqld.sock",
                Address::Unix("/run/my sqld.sock".into()),
                "u",
                "",
            ),
        ] {
            let endpoint = MariaDb.endpoint(url).unwrap();
            assert_eq!(endpoint.address, address, "{url}");
            assert_eq!((endpoint.user.as_str(), endpoint.database.as_str()), (user, database));
        }
    }

    #[test]
    fn a_url_that_is_none_is_refused_and_no_password_is_repeated() {
        for (url, expected) in [
            ("mysql://u@h:many", "`engine.url` is not a connection URL: its port is not a number"),
            (
                "mysql://u@h?a=b",
                "`engine.url` is not a connection URL: the only parameter is `socket`",
            ),
            ("mysql://%zz@h", "`engine.url` is not a connection URL: bad escape"),
            ("mysql://u@", "`engine.url` names no host"),
            ("mysql://u:hunter2@h", "`engine.url` holds a password"),
            ("mysql://u@h?password=hunter2", "`engine.url` holds a password"),
        ] {
            let error = MariaDb.endpoint(url).unwrap_err();
            assert_eq!(error.message, expected, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn names_and_texts_are_quoted() {
        assert_eq!(identifier("a`b"), "`a``b`");
        assert_eq!(literal(r"a'b\c"), r"'a''b\\c'");
    }
}
