//! PostgreSQL's protocol (version 3.0) as a state machine without input or output, for the measured
//! path. The messages of a statement are those libpq sends for pgbench, in the same order.

use bedplate_core::load::{Failure, Reply, Wire};
use bedplate_core::plan::QueryProtocol;
use bedplate_core::script::Statement;
use bedplate_core::seam::Endpoint;
use bytes::BytesMut;
use postgres_protocol::IsNull;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::{backend, frontend};

/// Type byte and length of a message.
const HEADER_BYTES: usize = 5;

/// One connection to PostgreSQL.
pub struct PostgresWire {
    endpoint: Endpoint,
    protocol: QueryProtocol,
    phase: Phase,
    scram: Option<sasl::ScramSha256>,
    /// Failure reported by the server, kept until it is ready for the next statement.
    failure: Option<Failure>,
    /// Statements that the server has parsed, by number (protocol `prepared`).
    parsed: Vec<bool>,
    /// Bind and execute of a statement whose parse is under way (protocol `prepared`).
    after_parse: BytesMut,
    values: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until the first ReadyForQuery.
    Starting,
    /// Waiting for the end of a parse (protocol `prepared`, first use).
    Parsing,
    /// Waiting for the end of a statement.
    Executing,
}

impl PostgresWire {
    /// A connection that is to be opened to `endpoint`.
    pub fn new(endpoint: &Endpoint, protocol: QueryProtocol) -> Self {
        Self {
            endpoint: endpoint.clone(),
            protocol,
            phase: Phase::Starting,
            scram: None,
            failure: None,
            parsed: Vec::new(),
            after_parse: BytesMut::new(),
            values: Vec::new(),
        }
    }

    /// Deals with one whole message; `None` means that nothing has ended yet.
    fn message(&mut self, tag: u8, message: &[u8], out: &mut BytesMut) -> Option<Reply> {
        match tag {
            // ReadyForQuery: whatever was asked has ended.
            b'Z' => self.ready(out),
            b'E' => self.error(message),
            b'R' => match self.authenticate(message, out) {
                Ok(()) => None,
                Err(reason) => Some(Reply::Broken(reason)),
            },
            // ParameterStatus, BackendKeyData, NoticeResponse and everything a statement yields
            // before the server is ready again: rows are read in full and dropped.
            _ => None,
        }
    }

    fn ready(&mut self, out: &mut BytesMut) -> Option<Reply> {
        let failure = self.failure.take();
        if self.phase == Phase::Parsing && failure.is_none() {
            self.phase = Phase::Executing;
            out.extend_from_slice(&self.after_parse);
            self.after_parse.clear();
            return None;
        }
        self.phase = Phase::Executing;
        Some(failure.map_or(Reply::Done, Reply::Failed))
    }

    fn error(&mut self, message: &[u8]) -> Option<Reply> {
        let failure = match parse_error(message) {
            Ok(failure) => failure,
            Err(reason) => return Some(Reply::Broken(reason)),
        };
        // An error before the first ReadyForQuery ends the connection, as do those of class 57P.
        if self.phase == Phase::Starting || failure.sqlstate.starts_with("57P") {
            return Some(Reply::Broken(format!("{}: {}", failure.sqlstate, failure.message)));
        }
        self.failure = Some(failure);
        None
    }

    fn authenticate(&mut self, message: &[u8], out: &mut BytesMut) -> Result<(), String> {
        let invalid = |error: std::io::Error| format!("authentication: {error}");
        let user = self.endpoint.user.as_bytes();
        let password = self.endpoint.password.as_bytes();
        let mut buffer = BytesMut::from(message);
        match backend::Message::parse(&mut buffer).map_err(invalid)? {
            Some(backend::Message::AuthenticationOk) => {}
            Some(backend::Message::AuthenticationCleartextPassword) => {
                frontend::password_message(password, out).map_err(invalid)?;
            }
            Some(backend::Message::AuthenticationMd5Password(body)) => {
                let hash = md5_hash(user, password, body.salt());
                frontend::password_message(hash.as_bytes(), out).map_err(invalid)?;
            }
            Some(backend::Message::AuthenticationSasl(_)) => {
                let scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
                frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), out)
                    .map_err(invalid)?;
                self.scram = Some(scram);
            }
            Some(backend::Message::AuthenticationSaslContinue(body)) => {
                let scram = self.scram.as_mut().ok_or("authentication: no SASL under way")?;
                scram.update(body.data()).map_err(invalid)?;
                frontend::sasl_response(scram.message(), out).map_err(invalid)?;
            }
            Some(backend::Message::AuthenticationSaslFinal(body)) => {
                let mut scram = self.scram.take().ok_or("authentication: no SASL under way")?;
                scram.finish(body.data()).map_err(invalid)?;
            }
            _ => return Err("authentication: the server asks for a method not known here".into()),
        }
        Ok(())
    }

    /// Bind, describe, execute and sync of a parsed statement, as libpq sends them: parameters and
    /// results in text, and a description that pgbench, too, asks for and does not need.
    fn execute(
        name: &str,
        statement: &Statement,
        slots: &[i64],
        digits: &mut Vec<u8>,
        out: &mut BytesMut,
    ) {
        let bound = frontend::bind(
            "",
            name,
            [],
            &statement.parameters,
            |&slot, buffer| {
                digits.clear();
                append_integer(slots[slot], digits);
                buffer.extend_from_slice(digits);
                Ok(IsNull::No)
            },
            [],
            out,
        );
        debug_assert!(bound.is_ok(), "a statement has fewer than 32,768 parameters");
        let described = frontend::describe(b'P', "", out);
        let executed = frontend::execute("", 0, out);
        debug_assert!(described.is_ok() && executed.is_ok(), "an empty name has no zero byte");
        frontend::sync(out);
    }
}

impl Wire for PostgresWire {
    fn open(&mut self, out: &mut BytesMut) {
        // A connection that is opened anew has parsed nothing yet.
        self.phase = Phase::Starting;
        self.failure = None;
        self.parsed.clear();
        let endpoint = &self.endpoint;
        let mut parameters = vec![
            ("user", endpoint.user.as_str()),
            ("database", endpoint.database.as_str()),
            ("application_name", "bedplate"),
            ("client_encoding", "UTF8"),
        ];
        parameters.extend(
            endpoint.session_settings.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        );
        let written = frontend::startup_message(parameters, out);
        debug_assert!(written.is_ok(), "names and values hold no zero byte");
    }

    fn request(&mut self, statement: &Statement, values: &[i64], out: &mut BytesMut) {
        self.phase = Phase::Executing;
        match self.protocol {
            QueryProtocol::Simple => append_query(statement, values, &mut self.values, out),
            QueryProtocol::Extended => {
                let parsed = frontend::parse("", &statement.text, [], out);
                debug_assert!(parsed.is_ok(), "a statement holds no zero byte");
                Self::execute("", statement, values, &mut self.values, out);
            }
            QueryProtocol::Prepared => {
                let name = StatementName::new(statement.index);
                if self.parsed.get(statement.index).copied().unwrap_or(false) {
                    Self::execute(name.as_str(), statement, values, &mut self.values, out);
                    return;
                }
                // As pgbench 14 and later: parsed when first needed, in a round trip of its own.
                self.parsed.resize(self.parsed.len().max(statement.index + 1), false);
                self.parsed[statement.index] = true;
                self.phase = Phase::Parsing;
                let parsed = frontend::parse(name.as_str(), &statement.text, [], out);
                debug_assert!(parsed.is_ok(), "a statement holds no zero byte");
                frontend::sync(out);
                self.after_parse.clear();
                Self::execute(
                    name.as_str(),
                    statement,
                    values,
                    &mut self.values,
                    &mut self.after_parse,
                );
            }
        }
    }

    fn rollback(&mut self, out: &mut BytesMut) {
        self.phase = Phase::Executing;
        let written = frontend::query("ROLLBACK", out);
        debug_assert!(written.is_ok(), "the text holds no zero byte");
    }

    fn terminate(&mut self, out: &mut BytesMut) {
        frontend::terminate(out);
    }

    fn receive(&mut self, input: &[u8], out: &mut BytesMut) -> (usize, Reply) {
        let mut consumed = 0;
        while let Some(header) = input[consumed..].first_chunk::<HEADER_BYTES>() {
            let [tag, length @ ..] = *header;
            let length = u32::from_be_bytes(length) as usize;
            if length < 4 {
                return (consumed, Reply::Broken("a message is shorter than its header".into()));
            }
            let end = consumed + 1 + length;
            let Some(message) = input.get(consumed..end) else { break };
            consumed = end;
            if let Some(reply) = self.message(tag, message, out) {
                return (consumed, reply);
            }
        }
        (consumed, Reply::Pending)
    }
}

/// Name of a prepared statement without an allocation: `s0`, `s1`, ….
struct StatementName {
    bytes: [u8; 21],
    length: usize,
}

impl StatementName {
    fn new(index: usize) -> Self {
        let mut bytes = [0; 21];
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(index).as_bytes();
        bytes[0] = b's';
        bytes[1..=digits.len()].copy_from_slice(digits);
        Self { bytes, length: 1 + digits.len() }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

fn append_integer(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A `Query` message with the values in the text.
fn append_query(statement: &Statement, slots: &[i64], text: &mut Vec<u8>, out: &mut BytesMut) {
    text.clear();
    for (piece, slot) in statement.pieces.iter().zip(&statement.parameters) {
        text.extend_from_slice(piece.as_bytes());
        append_integer(slots[*slot], text);
    }
    if let Some(last) = statement.pieces.last() {
        text.extend_from_slice(last.as_bytes());
    }
    let length = u32::try_from(text.len() + HEADER_BYTES).unwrap_or(u32::MAX);
    out.extend_from_slice(b"Q");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text);
    out.extend_from_slice(&[0]);
}

fn parse_error(message: &[u8]) -> Result<Failure, String> {
    use fallible_iterator::FallibleIterator;
    let unreadable = |error: std::io::Error| format!("unreadable error message: {error}");
    let mut buffer = BytesMut::from(message);
    let Some(backend::Message::ErrorResponse(body)) =
        backend::Message::parse(&mut buffer).map_err(unreadable)?
    else {
        return Err("unreadable error message".into());
    };
    let (mut sqlstate, mut text) = (String::new(), String::new());
    let mut fields = body.fields();
    while let Some(field) = fields.next().map_err(unreadable)? {
        let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => sqlstate = value,
            b'M' => text = value,
            _ => {}
        }
    }
    // serialization_failure and deadlock_detected
    let retryable = matches!(sqlstate.as_str(), "40001" | "40P01");
    Ok(Failure { sqlstate, message: text, retryable })
}

#[cfg(test)]
mod tests {
    use bedplate_core::plan::{EngineKind, WorkloadKind};
    use bedplate_core::script::{Command, Script};
    use bedplate_core::seam::Address;
    use bedplate_core::workload;

    use super::*;

    fn wire(protocol: QueryProtocol) -> PostgresWire {
        let endpoint = Endpoint {
            address: Address::Tcp("localhost".into(), 5432),
            user: "u".into(),
            password: "p".into(),
            database: "d".into(),
            session_settings: vec![("search_path".into(), "s".into())],
        };
        PostgresWire::new(&endpoint, protocol)
    }

    fn first_statement(script: &Script) -> &Statement {
        script
            .commands
            .iter()
            .find_map(|command| match command {
                Command::Sql(statement) => Some(statement),
                Command::Set { .. } => None,
            })
            .expect("a statement")
    }

    /// A message by hand: tag, length, body.
    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body.len() + 4).expect("short").to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn startup_carries_the_session_settings() {
        let mut out = BytesMut::new();
        wire(QueryProtocol::Simple).open(&mut out);
        let expected = b"\0\x03\0\0user\0u\0database\0d\0application_name\0bedplate\0client_encoding\0UTF8\0search_path\0s\0\0";
        assert_eq!(&out[4..], expected);
        assert_eq!(out[..4], u32::try_from(expected.len() + 4).expect("short").to_be_bytes());
    }

    #[test]
    fn a_simple_statement_is_one_query_message() {
        let script =
            workload::script(WorkloadKind::SelectOnly, EngineKind::Postgres).expect("compiles");
        let mut out = BytesMut::new();
        // Slots: scale, aid.
        wire(QueryProtocol::Simple).request(first_statement(&script), &[1, 42], &mut out);
        let text = b"SELECT abalance FROM pgbench_accounts WHERE aid = 42;\0";
        assert_eq!(out.to_vec(), message(b'Q', text));
    }

    #[test]
    fn a_prepared_statement_is_parsed_once() {
        let script =
            workload::script(WorkloadKind::SelectOnly, EngineKind::Postgres).expect("compiles");
        let statement = first_statement(&script);
        let mut wire = wire(QueryProtocol::Prepared);
        let mut out = BytesMut::new();
        let tags = |bytes: &[u8]| {
            let mut tags = String::new();
            let mut at = 0;
            while at < bytes.len() {
                tags.push(char::from(bytes[at]));
                let length = bytes[at + 1..at + 5].try_into().map(u32::from_be_bytes);
                at += 1 + length.expect("a length") as usize;
            }
            tags
        };
        wire.request(statement, &[1, 42], &mut out);
        assert_eq!(tags(&out), "PS");
        out.clear();
        let mut reply = message(b'1', b"");
        reply.extend(message(b'Z', b"I"));
        assert_eq!(wire.receive(&reply, &mut out), (reply.len(), Reply::Pending));
        assert_eq!(tags(&out), "BDES");
        out.clear();
        let mut reply = message(b'2', b"");
        reply.extend(message(b'C', b"SELECT 1\0"));
        reply.extend(message(b'Z', b"I"));
        assert_eq!(wire.receive(&reply, &mut out), (reply.len(), Reply::Done));
        wire.request(statement, &[1, 43], &mut out);
        assert_eq!(tags(&out), "BDES");
    }

    #[test]
    fn any_cut_of_the_bytes_gives_the_same_reply() {
        let error = b"SERROR\0C40001\0Mcould not serialize\0\0";
        let mut bytes = message(b'E', error);
        bytes.extend(message(b'Z', b"E"));
        for cut in 0..bytes.len() {
            let mut wire = wire(QueryProtocol::Simple);
            wire.phase = Phase::Executing;
            let mut out = BytesMut::new();
            let (consumed, first) = wire.receive(&bytes[..cut], &mut out);
            assert_eq!(first, Reply::Pending, "{cut}");
            let (rest, second) = wire.receive(&bytes[consumed..], &mut out);
            assert_eq!(consumed + rest, bytes.len());
            let failure = Failure {
                sqlstate: "40001".into(),
                message: "could not serialize".into(),
                retryable: true,
            };
            assert_eq!(second, Reply::Failed(failure), "{cut}");
        }
    }

    #[test]
    fn a_fatal_error_breaks_the_connection() {
        let mut wire = wire(QueryProtocol::Simple);
        let bytes = message(b'E', b"SFATAL\0C53300\0Msorry, too many clients already\0\0");
        let (_, reply) = wire.receive(&bytes, &mut BytesMut::new());
        assert_eq!(reply, Reply::Broken("53300: sorry, too many clients already".into()));
    }
}
