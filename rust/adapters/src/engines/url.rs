//! A server that exists already. Nothing is made in it but one schema of ours, which carries our mark,
//! and nothing else is ever dropped. A schema of MariaDB is a database.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EngineKind, EnginePlan, Provision};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Endpoint, Server, Session};

use super::{
    Access, EngineContext, NewSchema, OWN_CONNECTIONS, PASSWORD_VARIABLE, Right, Rights,
    client_tls, database, instance_numbers, random_password, too_many_clients,
};
use crate::drivers::session::shown;
use crate::drivers::tls::ClientTls;
use crate::ledger::Resource;

/// Checks that the server answers, is of the wanted kind, has room for the clients, and lets us make a
/// schema, or for several instances schemas and users.
pub(super) async fn preflight(
    engine: &EnginePlan,
    url: &str,
    clients: u64,
    several: bool,
) -> Result<()> {
    let database = database(engine.kind);
    let access = Access::new(database, database.endpoint(url)?, client_tls(engine)?);
    let endpoint = &access.endpoint;
    let mut session = access.session().await.map_err(|error| match error.hint {
        Some(_) => error,
        None => {
            error.hint(format!("check `engine.url`; the password comes from {PASSWORD_VARIABLE}"))
        }
    })?;
    database.facts(&mut *session).await?;
    let room = database.room(&mut *session).await?;
    if clients + OWN_CONNECTIONS > room {
        let address = shown(&endpoint.address);
        let limit = format!("the {room} connections that are free on {address}");
        return Err(too_many_clients(clients, &limit)
            .hint("lower `workload.clients`, or raise the server's `max_connections`"));
    }
    let Rights { schema, users } = database.rights(&mut *session, endpoint).await?;
    let mut needed = std::iter::once(schema).chain(several.then_some(users));
    match needed.find(|right| !right.given) {
        None => Ok(()),
        Some(Right { what, remedy, .. }) => {
            Err(Error::provision(format!("user {} may not make {what}", endpoint.user))
                .hint(remedy))
        }
    }
}

/// The kind of the server that a URL of the ledger names.
fn kind_of(url: &str) -> EngineKind {
    match url.split_once("://") {
        Some(("mysql" | "mariadb", _)) => EngineKind::MariaDb,
        _ => EngineKind::Postgres,
    }
}

/// The schema of a trial; a name that needs no quotes.
pub(super) fn schema_name(resource_name: &str) -> String {
    resource_name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase()
}

/// The mark of a schema of ours.
pub(super) fn mark(resource_name: &str) -> String {
    format!("bedplate:{resource_name}")
}

/// Makes the trial's schema in the existing server; for several instances, a schema and a user each.
///
/// # Errors
/// When the server cannot be reached or refuses, or when a schema of that name exists.
pub async fn start(ctx: &EngineContext<'_>) -> Result<Box<dyn Server>> {
    let Provision::Url { url } = &ctx.engine.provision else {
        return Err(Error::spec("`engine.provision` is not `url`"));
    };
    let database = database(ctx.engine.kind);
    let tls = client_tls(ctx.engine)?;
    let mut access = Access::new(database, database.endpoint(url)?, tls);
    let name = ctx.id.resource_name();
    let schema = schema_name(&name);
    let mut session = access.session().await?;
    let provenance = BTreeMap::from([
        ("provision".to_owned(), "url".to_owned()),
        ("server_address".to_owned(), shown(&access.endpoint.address)),
        ("database".to_owned(), access.endpoint.database.clone()),
        ("schema".to_owned(), schema.clone()),
    ]);
    if ctx.instances > 1 {
        for number in instance_numbers(ctx.instances) {
            let instance = format!("{name}-{number}");
            let schema = schema_name(&instance);
            // Random, so that it cannot be the name of somebody else.
            let user = format!("bedplate_{}", &random_password()?[..16]);
            claim(ctx, url, &mut *session, &schema, Some(&user)).await?;
            access.make_instance(&mut *session, &mark(&instance), &schema, &user).await?;
        }
    } else {
        claim(ctx, url, &mut *session, &schema, None).await?;
        let new = NewSchema { name: &schema, mark: &mark(&name), user: None };
        database.make_schema(&mut *session, &new).await?;
        database.enter(&mut access.endpoint, &schema);
    }
    Ok(Box::new(UrlServer { access, provenance }))
}

/// Writes a schema down that is to be made, and its user. Somebody else's of that name must not come on
/// the ledger: it would never go from there.
async fn claim(
    ctx: &EngineContext<'_>,
    url: &str,
    session: &mut dyn Session,
    schema: &str,
    user: Option<&str>,
) -> Result<()> {
    if database(ctx.engine.kind).marks(session, schema).await?.is_some() {
        return Err(Error::provision(format!(
            "schema `{schema}` exists already and is left alone"
        ))
        .hint("run again: each run has names of its own"));
    }
    let resource = Resource::Schema {
        url: url.to_owned(),
        schema: schema.to_owned(),
        user: user.map(str::to_owned),
        tls: ctx.engine.tls,
        tls_ca: ctx.engine.tls_ca.clone(),
    };
    ctx.ledger.add(&ctx.id.resource_name(), resource).map(|_| ())
}

/// Drops a schema of ours with everything in it, and its user: only if it carries our mark. A schema
/// that does not exist is success.
///
/// # Errors
/// When the server cannot be reached or refuses, or when the schema is not ours.
pub async fn drop_schema(
    url: &str,
    schema: &str,
    user: Option<&str>,
    tls: ClientTls,
) -> Result<()> {
    let database = database(kind_of(url));
    let access = Access::new(database, database.endpoint(url)?, tls);
    let mut session = access.session().await?;
    let Some(marks) = database.marks(&mut *session, schema).await? else { return Ok(()) };
    let ours = marks
        .iter()
        .filter_map(|found| found.strip_prefix(&mark("")))
        .any(|name| schema_name(name) == schema);
    if !ours {
        return Err(Error::provision(format!(
            "schema `{schema}` does not carry bedplate's mark and is left alone"
        )));
    }
    database.drop_schema(&mut *session, schema, user).await
}

struct UrlServer {
    access: Access,
    provenance: BTreeMap<String, String>,
}

#[async_trait]
impl Server for UrlServer {
    fn endpoint(&self) -> &Endpoint {
        &self.access.endpoint
    }

    async fn facts(&self) -> Result<ServerFacts> {
        self.access.facts(&self.provenance).await
    }

    fn instances(&self) -> &[Endpoint] {
        self.access.instances()
    }

    async fn session(&self, endpoint: &Endpoint) -> Result<Box<dyn Session>> {
        self.access.session_at(endpoint).await
    }

    async fn process(&self) -> Option<u32> {
        None
    }

    async fn ended(&self) -> Option<String> {
        let Access { database, endpoint, tls, .. } = &self.access;
        database.find(endpoint, tls).await.err().map(|error| format!("is gone: {error}"))
    }

    async fn log(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Does nothing: the server is not ours. The schema goes by its ledger entry.
    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn start_again(&mut self) -> Result<()> {
        Err(Error::provision("a server that exists already is not ours to be started again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_needs_no_quotes() {
        assert_eq!(
            schema_name("bedplate-20261130T101112-a1-t0001"),
            "bedplate_20261130t101112_a1_t0001"
        );
    }

    #[test]
    fn the_scheme_of_a_url_tells_the_kind() {
        assert_eq!(kind_of("mysql://u@h"), EngineKind::MariaDb);
        assert_eq!(kind_of("mariadb://u@h"), EngineKind::MariaDb);
        assert_eq!(kind_of("postgresql://u@h/d"), EngineKind::Postgres);
        assert_eq!(kind_of("host=/run user=mysql"), EngineKind::Postgres);
    }
}
