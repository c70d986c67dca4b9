//! A server that exists already. Nothing is made in it but one schema of ours, marked by its comment,
//! and nothing else is ever dropped.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::Provision;
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Server, Session};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::{DEFAULT_PORT, EngineContext, OWN_CONNECTIONS, read_facts, too_many_clients};
use crate::drivers::session;
use crate::ledger::Resource;

/// Variables that may hold the password, in the order in which they are asked.
const PASSWORD_VARIABLES: [&str; 2] = ["BEDPLATE_PASSWORD", "PGPASSWORD"];

/// Where a URL points, with the password from the environment.
fn endpoint(url: &str) -> Result<Endpoint> {
    let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map_or(String::new(), |c| format!(": {c}"));
        Error::spec(format!("`engine.url` is not a connection URL{cause}"))
            .hint("write it as postgresql://USER@HOST:PORT/DATABASE")
    })?;
    if config.get_password().is_some() {
        return Err(Error::spec("`engine.url` holds a password")
            .hint(format!("take it out and set the variable {}", PASSWORD_VARIABLES[0])));
    }
    let port = config.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
    let address = match config.get_hosts() {
        [Host::Tcp(host)] => Address::Tcp(host.clone(), port),
        [Host::Unix(directory)] => Address::Unix(directory.join(format!(".s.PGSQL.{port}"))),
        [] => match config.get_hostaddrs() {
            [address] => Address::Tcp(address.to_string(), port),
            _ => return Err(Error::spec("`engine.url` names no host")),
        },
        _ => return Err(Error::spec("`engine.url` names more than one host")),
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = config
        .get_user()
        .map(String::from)
        .or_else(|| variable("PGUSER"))
        .or_else(|| variable("USER"))
        .ok_or_else(|| Error::spec("`engine.url` names no user"))?;
    Ok(Endpoint {
        address,
        database: config.get_dbname().map_or_else(|| user.clone(), String::from),
        user,
        password: PASSWORD_VARIABLES.into_iter().find_map(variable).unwrap_or_default(),
        session_settings: Vec::new(),
    })
}

/// Checks that the server answers and has room for the clients.
pub(super) async fn preflight(url: &str, clients: u64) -> Result<()> {
    let endpoint = endpoint(url)?;
    let mut session = session::connect(&endpoint).await.map_err(|error| {
        error.hint(format!("check `engine.url`; the password comes from {}", PASSWORD_VARIABLES[0]))
    })?;
    let rows = session
        .query(
            "SELECT current_setting('max_connections')::int \
             - CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN 0 \
               ELSE current_setting('superuser_reserved_connections')::int END \
             - (SELECT count(*) FROM pg_stat_activity \
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), \
             has_database_privilege(current_database(), 'CREATE')",
        )
        .await?;
    let row = rows.first().map_or(&[] as &[_], Vec::as_slice);
    let [Some(room), Some(may_create)] = row else {
        return Err(Error::driver("the server did not say how many connections it has"));
    };
    let room: u64 = room.parse().unwrap_or(0);
    if clients + OWN_CONNECTIONS > room {
        return Err(too_many_clients(
            clients,
            &format!(
                "the {room} connections that are free on {}",
                session::shown(&endpoint.address)
            ),
        )
        .hint("lower `workload.clients`, or raise the server's `max_connections`"));
    }
    if may_create != "t" {
        return Err(Error::provision(format!(
            "user {} may not make a schema in database {}",
            endpoint.user, endpoint.database
        ))
        .hint(format!("GRANT CREATE ON DATABASE {} TO {}", endpoint.database, endpoint.user)));
    }
    Ok(())
}

/// The schema of a trial; a name that needs no quotes.
fn schema_name(resource_name: &str) -> String {
    resource_name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase()
}

/// What the comment of a schema of ours says.
fn mark(resource_name: &str) -> String {
    format!("bedplate:{resource_name}")
}

/// Makes the trial's schema in the existing server.
///
/// # Errors
/// When the server cannot be reached or refuses, or when a schema of that name exists.
pub async fn start(ctx: &EngineContext<'_>) -> Result<Box<dyn Server>> {
    let Provision::Url { url } = &ctx.engine.provision else {
        return Err(Error::spec("`engine.provision` is not `url`"));
    };
    let mut endpoint = endpoint(url)?;
    let name = ctx.id.resource_name();
    let schema = schema_name(&name);
    let mut session = session::connect(&endpoint).await?;
    ctx.ledger.add(&name, Resource::Schema { url: url.clone(), schema: schema.clone() })?;
    // One transaction: the schema and its mark exist together or not at all.
    session
        .execute(&format!(
            "BEGIN; CREATE SCHEMA {}; COMMENT ON SCHEMA {} IS {}; COMMIT",
            identifier(&schema),
            identifier(&schema),
            literal(&mark(&name))
        ))
        .await?;
    let provenance = BTreeMap::from([
        ("provision".to_owned(), "url".to_owned()),
        ("server_address".to_owned(), session::shown(&endpoint.address)),
        ("database".to_owned(), endpoint.database.clone()),
        ("schema".to_owned(), schema.clone()),
    ]);
    endpoint.session_settings.push(("search_path".into(), schema));
    Ok(Box::new(UrlServer { endpoint, provenance }))
}

/// Drops a schema of ours with everything in it: only if its comment carries our mark. A schema that
/// does not exist is success.
///
/// # Errors
/// When the server cannot be reached or refuses, or when the schema is not ours.
pub async fn drop_schema(url: &str, schema: &str) -> Result<()> {
    let mut session = session::connect(&endpoint(url)?).await?;
    let rows = session
        .query(&format!(
            "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = {}",
            literal(schema)
        ))
        .await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let comment = row.first().and_then(Option::as_deref).unwrap_or_default();
    let ours = comment.strip_prefix(&mark("")).is_some_and(|name| schema_name(name) == schema);
    if !ours {
        return Err(Error::provision(format!(
            "schema `{schema}` does not carry bedplate's mark and is left alone"
        )));
    }
    session.execute(&format!("DROP SCHEMA {} CASCADE", identifier(schema))).await
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant that is the same with and without `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

struct UrlServer {
    endpoint: Endpoint,
    provenance: BTreeMap<String, String>,
}

#[async_trait]
impl Server for UrlServer {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn facts(&self) -> Result<ServerFacts> {
        let mut facts = read_facts(&mut *self.session().await?).await?;
        facts.provenance.clone_from(&self.provenance);
        Ok(facts)
    }

    async fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(session::connect(&self.endpoint).await?))
    }

    async fn ended(&self) -> Option<String> {
        session::connect(&self.endpoint).await.err().map(|error| format!("is gone: {error}"))
    }

    async fn log(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Does nothing: the server is not ours. The schema goes by its ledger entry.
    async fn stop(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_an_endpoint() {
        let tcp = endpoint("postgres://u@db.example:5433/d").unwrap();
        assert_eq!(tcp.address, Address::Tcp("db.example".into(), 5433));
        assert_eq!((tcp.user.as_str(), tcp.database.as_str()), ("u", "d"));
        let unix = endpoint("host=/run/postgresql user=u").unwrap();
        assert_eq!(unix.address, Address::Unix("/run/postgresql/.s.PGSQL.5432".into()));
        assert_eq!(unix.database, "u");
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        let error = endpoint("postgres://u:hunter2@localhost/d").unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        assert!(error.hint.unwrap().contains("BEDPLATE_PASSWORD"));
    }

    #[test]
    fn a_schema_name_needs_no_quotes() {
        assert_eq!(
            schema_name("bedplate-20261130T101112-a1-t0001"),
            "bedplate_20261130t101112_a1_t0001"
        );
        assert_eq!(literal(r"a'b\c"), r"E'a''b\\c'");
    }
}
