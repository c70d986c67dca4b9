//! Sessions for set-up, checks and metadata: tokio-postgres, one connection each. Not the measured
//! path.

use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::seam::{Address, Endpoint, Session};
use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Statements are shown in errors up to this many characters.
const SHOWN_CHARACTERS: usize = 500;

/// One connection to a PostgreSQL server.
pub struct PostgresSession {
    client: Client,
}

/// Opens a session.
///
/// # Errors
/// [`bedplate_core::ErrorKind::Driver`] when the server cannot be reached or refuses.
pub async fn connect(endpoint: &Endpoint) -> Result<PostgresSession> {
    attempt(endpoint).await?.map_err(|error| not_connected(endpoint, &text(&error)))
}

/// Finds out whether there is a server, which may well refuse.
///
/// # Errors
/// [`bedplate_core::ErrorKind::Driver`] when nobody answers.
pub async fn find(endpoint: &Endpoint) -> Result<()> {
    match attempt(endpoint).await? {
        Err(error) if error.as_db_error().is_none() => Err(not_connected(endpoint, &text(&error))),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn attempt(
    endpoint: &Endpoint,
) -> Result<std::result::Result<PostgresSession, tokio_postgres::Error>> {
    let config = config(endpoint)?;
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, config.connect(NoTls)).await;
    let connected = connected.map_err(|_| {
        not_connected(endpoint, &format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))
    })?;
    Ok(connected.map(|(client, connection)| {
        // The task ends with the client; what it would report, the client's next call reports too.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        PostgresSession { client }
    }))
}

fn not_connected(endpoint: &Endpoint, reason: &str) -> Error {
    Error::driver(format!("cannot connect to {}: {reason}", shown(&endpoint.address)))
}

/// The address in the words of the user.
pub fn shown(address: &Address) -> String {
    match address {
        Address::Unix(path) => path.display().to_string(),
        Address::Tcp(host, port) => format!("{host}:{port}"),
    }
}

fn config(endpoint: &Endpoint) -> Result<Config> {
    let mut config = Config::new();
    config
        .user(&endpoint.user)
        .password(&endpoint.password)
        .dbname(&endpoint.database)
        .application_name("bedplate")
        .connect_timeout(CONNECT_TIMEOUT);
    match &endpoint.address {
        Address::Tcp(host, port) => {
            config.host(host).port(*port);
        }
        Address::Unix(path) => {
            let port = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(".s.PGSQL."))
                .and_then(|port| port.parse().ok());
            let (Some(directory), Some(port)) = (path.parent(), port) else {
                return Err(Error::driver(format!(
                    "`{}` is not the socket of a PostgreSQL server",
                    path.display()
                )));
            };
            config.host_path(directory).port(port);
        }
    }
    let options: Vec<String> = endpoint
        .session_settings
        .iter()
        .map(|(key, value)| format!("-c {key}={}", escaped(value)))
        .collect();
    if !options.is_empty() {
        config.options(options.join(" "));
    }
    Ok(config)
}

/// A value in the `options` start-up parameter: blanks and backslashes are escaped.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if character.is_whitespace() || character == '\\' {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[async_trait]
impl Session for PostgresSession {
    async fn execute(&mut self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(|error| refused(&error, sql))
    }

    async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let messages = self.client.simple_query(sql).await.map_err(|error| refused(&error, sql))?;
        Ok(messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => {
                    Some((0..row.len()).map(|column| row.get(column).map(String::from)).collect())
                }
                _ => None,
            })
            .collect())
    }

    async fn copy_in(
        &mut self,
        sql: &str,
        next: &mut (dyn FnMut() -> Option<Vec<u8>> + Send),
    ) -> Result<u64> {
        let sink =
            self.client.copy_in::<_, Bytes>(sql).await.map_err(|error| refused(&error, sql))?;
        futures_util::pin_mut!(sink);
        while let Some(chunk) = next() {
            sink.send(Bytes::from(chunk)).await.map_err(|error| refused(&error, sql))?;
        }
        sink.finish().await.map_err(|error| refused(&error, sql))
    }
}

/// What tokio-postgres says, with its cause.
fn text(error: &tokio_postgres::Error) -> String {
    if let Some(refusal) = error.as_db_error() {
        return refusal.message().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

fn refused(error: &tokio_postgres::Error, sql: &str) -> Error {
    let mut evidence = String::new();
    if let Some(refusal) = error.as_db_error() {
        evidence = format!("{}: {}\n", refusal.severity(), refusal.message());
        for (name, more) in [("detail", refusal.detail()), ("hint", refusal.hint())] {
            if let Some(more) = more {
                evidence.push_str(&format!("{name}: {more}\n"));
            }
        }
        evidence.push_str(&format!("sqlstate: {}\n", refusal.code().code()));
    }
    evidence.push_str("statement: ");
    evidence.extend(sql.chars().take(SHOWN_CHARACTERS));
    let message = match error.as_db_error() {
        Some(refusal) => format!("the server refused a statement: {}", refusal.message()),
        None => format!("the conversation with the server failed: {}", text(error)),
    };
    Error::driver(message).evidence(evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_settings_are_escaped() {
        assert_eq!(escaped("a b\\c"), "a\\ b\\\\c");
    }

    #[test]
    fn a_socket_is_told_by_its_name() {
        let endpoint = |path: &str| Endpoint {
            address: Address::Unix(path.into()),
            user: "u".into(),
            password: "p".into(),
            database: "d".into(),
            session_settings: vec![("search_path".into(), "s".into())],
        };
        assert_eq!(config(&endpoint("/run/.s.PGSQL.5433")).unwrap().get_ports(), [5433]);
        assert!(config(&endpoint("/run/socket")).is_err());
    }
}
