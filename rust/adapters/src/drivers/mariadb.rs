//! The client protocol of MariaDB and MySQL as a state machine without input or output, for the
//! measured path.
//!
//! How statements are sent: [`QueryProtocol::Simple`] is one COM_QUERY with the values in the text.
//! [`QueryProtocol::Prepared`] prepares a statement when a connection first needs it, in a round trip
//! of its own, and then executes it with integers bound as LONGLONG and rows in the binary form.
//! [`QueryProtocol::Extended`] prepares, executes and closes the statement each time: two round trips,
//! for the number of the statement must be known before it can be executed. A statement that the
//! server cannot prepare (error 1295; `BEGIN` on old versions) is sent as text.
//!
//! Rows are read in full and dropped as they come, so a row of any length needs no room.

use bedplate_core::load::{Failure, Reply, Wire};
use bedplate_core::plan::QueryProtocol;
use bedplate_core::script::Statement;
use bedplate_core::seam::Endpoint;
use bytes::{Buf, BytesMut};

use super::mariadb_login::{
    COM_QUERY, COM_QUIT, DEPRECATE_EOF, ERROR, FULL_PACKET, HEADER_BYTES, LOCAL_FILE, Login,
    MORE_RESULTS, ServerError, append_packets, end_status, ends_rows, integer, ok,
};
use super::tls::{ClientTls, TlsChannel};

const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const COM_STMT_CLOSE: u8 = 0x19;

/// The type of a parameter: LONGLONG, signed.
const LONGLONG: [u8; 2] = [8, 0];
/// The server cannot prepare such a statement.
const NOT_PREPARABLE: u16 = 1295;
/// Where the number of a statement is in an execution of it, after header and command.
const STATEMENT_ID: std::ops::Range<usize> = HEADER_BYTES + 1..HEADER_BYTES + 5;

/// One connection to MariaDB or MySQL.
pub struct MariadbWire {
    login: Login,
    protocol: QueryProtocol,
    phase: Phase,
    /// Sequence number of the next packet.
    sequence: u8,
    /// Bytes of the current packet that are still to come and to be dropped.
    skip: usize,
    /// Whether the packet that was dropped last is continued by the next one.
    continued: bool,
    /// Until the server has let us in and the session settings are made.
    opening: bool,
    /// Statements by number (protocol `prepared`).
    statements: Vec<Prepared>,
    /// The statement being prepared.
    preparing: Preparing,
    /// The encrypted side of the connection, when it has one.
    tls: Option<Box<Encrypted>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting for the server's greeting.
    Greeting,
    /// Waiting to be let in.
    Login,
    /// Nothing is asked.
    Idle,
    /// Waiting for the first packet of a result.
    Result,
    /// Waiting for so many definitions of columns.
    Columns(u64),
    /// Waiting for the EOF after the definitions.
    ColumnsEnd,
    /// Waiting for rows or their end.
    Rows,
    /// Waiting for the answer to a prepare.
    Prepare,
    /// Waiting for so many definitions of a prepared statement's parameters and columns.
    Definitions(u32),
}

/// What is known of a statement on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prepared {
    Unknown,
    /// The server has this number for it, and knows the types of its parameters.
    Ready(u32),
    /// It is sent as text.
    Text,
}

/// A statement whose prepare is under way.
#[derive(Default)]
struct Preparing {
    index: usize,
    id: u32,
    parameters: usize,
    /// As many as the server sees.
    markers: usize,
    /// The execution that follows, without the number of the statement.
    execute: BytesMut,
    /// What is sent when the server cannot prepare it.
    text: BytesMut,
}

struct Encrypted {
    channel: TlsChannel,
    /// Received in the clear and not dealt with.
    received: BytesMut,
    /// Being sent, in the clear.
    sending: BytesMut,
}

impl MariadbWire {
    /// A connection that is to be opened to `endpoint`, encrypted as `tls` says. The session settings
    /// of the endpoint are made with `SET` as soon as the server lets us in.
    pub fn new(endpoint: &Endpoint, protocol: QueryProtocol, tls: &ClientTls) -> Self {
        Self {
            login: Login::new(endpoint, tls, 0),
            protocol,
            phase: Phase::Greeting,
            sequence: 0,
            skip: 0,
            continued: false,
            opening: true,
            statements: Vec::new(),
            preparing: Preparing::default(),
            tls: None,
        }
    }

    /// Lets `append` say what is to be sent, and encrypts it when the connection is encrypted.
    fn say(&mut self, out: &mut BytesMut, append: impl FnOnce(&mut Self, &mut BytesMut)) {
        let Some(mut encrypted) = self.tls.take() else {
            append(self, out);
            return;
        };
        encrypted.sending.clear();
        append(self, &mut encrypted.sending);
        // A channel that takes no more is found out when the server's answer does not come.
        let _ = encrypted.send(out);
        self.tls = Some(encrypted);
    }

    fn ask(&mut self, statement: &Statement, values: &[i64], out: &mut BytesMut) {
        let known = match self.protocol {
            QueryProtocol::Simple => Prepared::Text,
            QueryProtocol::Extended => Prepared::Unknown,
            QueryProtocol::Prepared => {
                self.statements.get(statement.index).copied().unwrap_or(Prepared::Unknown)
            }
        };
        match known {
            Prepared::Text => {
                self.phase = Phase::Result;
                self.sequence = append_query(statement, values, out);
            }
            Prepared::Ready(id) => {
                self.phase = Phase::Result;
                self.sequence = append_execute(id, false, statement, values, out);
            }
            Prepared::Unknown => {
                let preparing = &mut self.preparing;
                preparing.index = statement.index;
                preparing.parameters = statement.parameters.len();
                preparing.execute.clear();
                append_execute(0, true, statement, values, &mut preparing.execute);
                preparing.text.clear();
                append_query(statement, values, &mut preparing.text);
                self.phase = Phase::Prepare;
                self.sequence = append_prepare(statement, out);
            }
        }
    }

    /// Looks at received bytes in the clear.
    fn listen(&mut self, input: &[u8], out: &mut BytesMut) -> (usize, Reply) {
        let mut at = 0;
        loop {
            let dropped = self.skip.min(input.len() - at);
            at += dropped;
            self.skip -= dropped;
            let Some((&[low, middle, high, sequence], rest)) = input[at..].split_first_chunk()
            else {
                return (at, Reply::Pending);
            };
            let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
            if self.phase == Phase::Rows && rest.is_empty() && length > 0 && !self.continued {
                // The first byte tells a row from the end.
                return (at, Reply::Pending);
            }
            let is_row = self.continued || self.starts_row(rest, length);
            let payload = rest.get(..length);
            if !is_row && payload.is_none() {
                return (at, Reply::Pending);
            }
            // What the server says unasked (that it shuts down) has a number of its own.
            if sequence != self.sequence && self.phase != Phase::Idle {
                let expected = self.sequence;
                let reason = format!("packet {sequence} came where {expected} was expected");
                return (at, Reply::Broken(reason));
            }
            self.sequence = sequence.wrapping_add(1);
            at += HEADER_BYTES;
            if is_row {
                self.skip = length;
                self.continued = length == FULL_PACKET;
                continue;
            }
            at += length;
            let step = match payload {
                None | Some([]) => Err("an empty packet came where none was expected".into()),
                Some(payload) => self.packet(payload, out),
            };
            match step {
                Ok(None) => {}
                Ok(Some(reply)) => return (at, reply),
                Err(reason) => return (at, Reply::Broken(reason)),
            }
        }
    }

    fn starts_row(&self, rest: &[u8], length: usize) -> bool {
        self.phase == Phase::Rows
            && length > 0
            && rest.first().is_some_and(|&first| {
                first != ERROR && !ends_rows(first, length, self.login.capabilities)
            })
    }

    /// Deals with one whole packet that is not a row; `None` means that nothing has ended yet. An
    /// error is the reason why the connection is of no more use.
    fn packet(&mut self, payload: &[u8], out: &mut BytesMut) -> Result<Option<Reply>, String> {
        match self.phase {
            Phase::Greeting => {
                let (channel, sequence) = self.login.greeting(payload, out)?;
                self.tls = channel.map(|channel| Box::new(Encrypted::new(channel)));
                self.sequence = sequence;
                self.phase = Phase::Login;
                return Ok(None);
            }
            Phase::Login => return self.let_in(payload, out),
            _ if payload[0] == ERROR => return self.failed(&ServerError::parse(payload), out),
            Phase::Idle => return Err("the server speaks unasked".into()),
            Phase::Result => match payload[0] {
                0 => {
                    let (_, status) = ok(payload).ok_or("an OK packet is cut short")?;
                    return Ok(self.ended(status));
                }
                LOCAL_FILE => return Err("the server asks for a file of this machine".into()),
                _ => {
                    let (columns, _) = integer(payload).ok_or("unreadable number of columns")?;
                    self.phase = Phase::Columns(columns);
                }
            },
            Phase::Columns(left) if left > 1 => self.phase = Phase::Columns(left - 1),
            Phase::Columns(_) if self.deprecates_eof() => self.phase = Phase::Rows,
            Phase::Columns(_) => self.phase = Phase::ColumnsEnd,
            Phase::ColumnsEnd => self.phase = Phase::Rows,
            Phase::Rows => {
                let status = end_status(payload, self.login.capabilities)
                    .ok_or("the end of the rows is cut short")?;
                return Ok(self.ended(status));
            }
            Phase::Prepare => {
                let [0, i0, i1, i2, i3, c0, c1, p0, p1, ..] = *payload else {
                    return Err("unreadable answer to a prepare".into());
                };
                let columns = u16::from_le_bytes([c0, c1]);
                let parameters = u16::from_le_bytes([p0, p1]);
                self.preparing.id = u32::from_le_bytes([i0, i1, i2, i3]);
                self.preparing.markers = parameters.into();
                let eofs = [parameters, columns].iter().filter(|&&count| count > 0).count() as u32;
                let eofs = if self.deprecates_eof() { 0 } else { eofs };
                let definitions = u32::from(parameters) + u32::from(columns) + eofs;
                if definitions == 0 {
                    return Ok(self.prepared(out));
                }
                self.phase = Phase::Definitions(definitions);
            }
            Phase::Definitions(left) if left > 1 => self.phase = Phase::Definitions(left - 1),
            Phase::Definitions(_) => return Ok(self.prepared(out)),
        }
        Ok(None)
    }

    fn deprecates_eof(&self) -> bool {
        self.login.capabilities & DEPRECATE_EOF != 0
    }

    /// Authentication, and the session settings after it.
    fn let_in(&mut self, payload: &[u8], out: &mut BytesMut) -> Result<Option<Reply>, String> {
        if let Some(sequence) = self.login.answer(payload, self.sequence, out)? {
            self.sequence = sequence;
            return Ok(None);
        }
        match self.login.settings()? {
            Some(statement) => {
                self.phase = Phase::Result;
                self.sequence = append_text(&statement, out);
                Ok(None)
            }
            None => Ok(self.ended(0)),
        }
    }

    /// A result ended; the statement, too, unless another result follows.
    fn ended(&mut self, status: u16) -> Option<Reply> {
        if status & MORE_RESULTS != 0 {
            self.phase = Phase::Result;
            return None;
        }
        self.phase = Phase::Idle;
        self.opening = false;
        Some(Reply::Done)
    }

    fn failed(&mut self, error: &ServerError, out: &mut BytesMut) -> Result<Option<Reply>, String> {
        if self.phase == Phase::Prepare && error.number == NOT_PREPARABLE {
            if self.protocol == QueryProtocol::Prepared {
                self.know(self.preparing.index, Prepared::Text);
            }
            out.extend_from_slice(&self.preparing.text);
            self.sequence = 1;
            self.phase = Phase::Result;
            return Ok(None);
        }
        if self.opening || self.phase == Phase::Idle || error.ends_connection() {
            return Err(error.to_string());
        }
        self.phase = Phase::Idle;
        Ok(Some(Reply::Failed(Failure {
            sqlstate: error.sqlstate.clone(),
            message: format!("{}: {}", error.number, error.message),
            retryable: error.is_retryable(),
        })))
    }

    /// A prepare ended well: the execution follows.
    fn prepared(&mut self, out: &mut BytesMut) -> Option<Reply> {
        let Preparing { index, id, parameters, markers, .. } = self.preparing;
        if markers != parameters {
            self.phase = Phase::Idle;
            return Some(Reply::Failed(Failure {
                sqlstate: "07001".into(),
                message: format!(
                    "the server sees {markers} parameters in a statement that has {parameters}"
                ),
                retryable: false,
            }));
        }
        self.preparing.execute[STATEMENT_ID].copy_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&self.preparing.execute);
        if self.protocol == QueryProtocol::Prepared {
            self.know(index, Prepared::Ready(id));
        } else {
            // The server says nothing to a close, so it can be sent at once.
            append_command(COM_STMT_CLOSE, out, |out| out.extend_from_slice(&id.to_le_bytes()));
        }
        self.sequence = 1;
        self.phase = Phase::Result;
        None
    }

    fn know(&mut self, index: usize, what: Prepared) {
        if self.statements.len() <= index {
            self.statements.resize(index + 1, Prepared::Unknown);
        }
        self.statements[index] = what;
    }
}

impl Wire for MariadbWire {
    /// The server speaks first: there is nothing to send.
    fn open(&mut self, _: &mut BytesMut) {
        // A connection that is opened anew knows nothing of the one before.
        self.phase = Phase::Greeting;
        self.sequence = 0;
        self.skip = 0;
        self.continued = false;
        self.opening = true;
        self.statements.clear();
        self.tls = None;
    }

    fn request(&mut self, statement: &Statement, values: &[i64], out: &mut BytesMut) {
        self.say(out, |wire, out| wire.ask(statement, values, out));
    }

    fn rollback(&mut self, out: &mut BytesMut) {
        self.say(out, |wire, out| {
            wire.phase = Phase::Result;
            wire.sequence = append_text("ROLLBACK", out);
        });
    }

    fn terminate(&mut self, out: &mut BytesMut) {
        self.say(out, |_, out| {
            append_command(COM_QUIT, out, |_| {});
        });
    }

    fn receive(&mut self, input: &[u8], out: &mut BytesMut) -> (usize, Reply) {
        let Some(mut encrypted) = self.tls.take() else {
            return self.listen(input, out);
        };
        let read = encrypted.channel.read(input, &mut encrypted.received);
        encrypted.sending.clear();
        let (count, reply) = self.listen(&encrypted.received, &mut encrypted.sending);
        encrypted.received.advance(count);
        // There may be something to send even after a failure: the reason for it.
        let sent = encrypted.send(out);
        self.tls = Some(encrypted);
        match (reply, read.and(sent)) {
            (Reply::Pending, Err(reason)) => (input.len(), Reply::Broken(reason)),
            (reply, _) => (input.len(), reply),
        }
    }
}

impl Encrypted {
    fn new(channel: TlsChannel) -> Self {
        Self { channel, received: BytesMut::new(), sending: BytesMut::new() }
    }

    fn send(&mut self, out: &mut BytesMut) -> Result<(), String> {
        if !self.sending.is_empty() {
            self.channel.write(&self.sending)?;
        }
        self.channel.flush(out)
    }
}

/// Appends a command; returns the sequence number of the first packet of its answer.
fn append_command(command: u8, out: &mut BytesMut, append: impl FnOnce(&mut BytesMut)) -> u8 {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, command]);
    append(out);
    let length = out.len() - start - HEADER_BYTES;
    if length < FULL_PACKET {
        let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        out[start..start + 3].copy_from_slice(&length[..3]);
        return 1;
    }
    let payload = out.split_off(start + HEADER_BYTES);
    out.truncate(start);
    append_packets(&payload, 0, out)
}

fn append_text(text: &str, out: &mut BytesMut) -> u8 {
    append_command(COM_QUERY, out, |out| out.extend_from_slice(text.as_bytes()))
}

/// A query with the values in the text.
fn append_query(statement: &Statement, slots: &[i64], out: &mut BytesMut) -> u8 {
    append_command(COM_QUERY, out, |out| {
        for (piece, slot) in statement.pieces.iter().zip(&statement.parameters) {
            out.extend_from_slice(piece.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(slots[*slot]).as_bytes());
        }
        if let Some(last) = statement.pieces.last() {
            out.extend_from_slice(last.as_bytes());
        }
    })
}

/// A prepare with `?` for the parameters and without the semicolon.
fn append_prepare(statement: &Statement, out: &mut BytesMut) -> u8 {
    append_command(COM_STMT_PREPARE, out, |out| {
        let (last, pieces) = statement.pieces.split_last().unwrap_or((&statement.text, &[]));
        for piece in pieces {
            out.extend_from_slice(piece.as_bytes());
            out.extend_from_slice(b"?");
        }
        out.extend_from_slice(last.strip_suffix(';').unwrap_or(last).as_bytes());
    })
}

/// An execution without a cursor; the types go with it when the server does not know them yet.
fn append_execute(
    id: u32,
    with_types: bool,
    statement: &Statement,
    slots: &[i64],
    out: &mut BytesMut,
) -> u8 {
    append_command(COM_STMT_EXECUTE, out, |out| {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&[0, 1, 0, 0, 0]);
        let parameters = &statement.parameters;
        if parameters.is_empty() {
            return;
        }
        // No value is NULL.
        out.resize(out.len() + parameters.len().div_ceil(8), 0);
        out.extend_from_slice(&[with_types.into()]);
        if with_types {
            for _ in parameters {
                out.extend_from_slice(&LONGLONG);
            }
        }
        for &slot in parameters {
            out.extend_from_slice(&slots[slot].to_le_bytes());
        }
    })
}

#[cfg(test)]
mod tests {
    use bedplate_core::script::Script;
    use bedplate_core::seam::Address;

    use super::*;

    /// CLIENT_MYSQL, CONNECT_WITH_DB, PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH.
    const CAPABILITIES: u32 = 1 | 1 << 3 | 1 << 9 | 1 << 15 | 1 << 19;
    const OK: &[u8] = b"\0\0\0\x02\0\0\0";
    const DEADLOCK: &[u8] = b"\xff\xbd\x04#40001Deadlock found";

    fn wire(protocol: QueryProtocol, settings: &[(&str, &str)]) -> MariadbWire {
        let endpoint = Endpoint {
            address: Address::Tcp("localhost".into(), 3306),
            user: "u".into(),
            password: "p".into(),
            database: "d".into(),
            session_settings: settings
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        };
        MariadbWire::new(&endpoint, protocol, &ClientTls::off())
    }

    /// A wire that has been let in.
    fn open_wire(protocol: QueryProtocol, more_capabilities: u32) -> MariadbWire {
        let mut wire = wire(protocol, &[]);
        let bytes = [
            packet(0, &greeting(CAPABILITIES | more_capabilities, "mysql_native_password")),
            packet(2, OK),
        ];
        let replies = bytes.map(|bytes| wire.receive(&bytes, &mut BytesMut::new()).1);
        assert_eq!(replies, [Reply::Pending, Reply::Done]);
        wire
    }

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_le_bytes();
        let mut bytes = vec![length[0], length[1], length[2], sequence];
        bytes.extend_from_slice(payload);
        bytes
    }

    fn packets(first: u8, payloads: &[&[u8]]) -> Vec<u8> {
        (first..).zip(payloads).flat_map(|(sequence, payload)| packet(sequence, payload)).collect()
    }

    fn greeting(capabilities: u32, plugin: &str) -> Vec<u8> {
        let [c0, c1, c2, c3] = capabilities.to_le_bytes();
        let mut bytes = b"\x0a5.5.5-10.11\0\x07\0\0\0noncenon\0".to_vec();
        bytes.extend_from_slice(&[c0, c1, 45, 2, 0, c2, c3, 21]);
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(b"cenoncenonce\0");
        bytes.extend_from_slice(plugin.as_bytes());
        bytes.push(0);
        bytes
    }

    fn statement(text: &str) -> Statement {
        let script = Script::compile(text, &["a", "b"]).expect("compiles");
        script.statements().next().expect("a statement").clone()
    }

    fn failure(sqlstate: &str, message: &str, retryable: bool) -> Reply {
        Reply::Failed(Failure { sqlstate: sqlstate.into(), message: message.into(), retryable })
    }

    /// Feeds the bytes to a wire made by `make`, whole and cut at every place; the replies and what is
    /// said must always be the same.
    fn every_cut(make: impl Fn() -> MariadbWire, bytes: &[u8]) -> (Reply, Vec<u8>) {
        let whole = {
            let mut out = BytesMut::new();
            let (consumed, reply) = make().receive(bytes, &mut out);
            assert_eq!(consumed, bytes.len());
            (reply, out.to_vec())
        };
        for cut in 0..bytes.len() {
            let mut wire = make();
            let mut out = BytesMut::new();
            let (consumed, first) = wire.receive(&bytes[..cut], &mut out);
            assert_eq!(first, Reply::Pending, "{cut}");
            let (rest, second) = wire.receive(&bytes[consumed..], &mut out);
            assert_eq!(consumed + rest, bytes.len(), "{cut}");
            assert_eq!((second, out.to_vec()), whole, "{cut}");
        }
        let mut wire = make();
        let (mut out, mut input, mut reply) = (BytesMut::new(), Vec::new(), Reply::Pending);
        for &byte in bytes {
            assert_eq!(reply, Reply::Pending);
            input.push(byte);
            let (consumed, now) = wire.receive(&input, &mut out);
            input.drain(..consumed);
            reply = now;
        }
        assert_eq!((reply, out.to_vec()), whole);
        whole
    }

    #[test]
    fn the_greeting_is_answered_with_user_proof_database_and_plugin() {
        let bytes = packet(0, &greeting(CAPABILITIES, "mysql_native_password"));
        let (reply, said) = every_cut(|| wire(QueryProtocol::Simple, &[]), &bytes);
        assert_eq!(reply, Reply::Pending);
        assert_eq!(said[3], 1);
        assert_eq!(said[4..8], CAPABILITIES.to_le_bytes());
        let rest = &said[36..];
        assert_eq!(rest[..3], *b"u\0\x14");
        assert_eq!(rest[23..], *b"d\0mysql_native_password\0");
    }

    #[test]
    fn another_plugin_is_answered_or_named() {
        let login = || {
            let mut wire = wire(QueryProtocol::Simple, &[]);
            // A default that is not known is no reason to give up.
            let bytes = packet(0, &greeting(CAPABILITIES, "caching_sha2_password"));
            assert_eq!(wire.receive(&bytes, &mut BytesMut::new()).1, Reply::Pending);
            wire
        };
        let switch = b"\xfeclient_ed25519\x0001234567890123456789012345678901";
        let (reply, said) = every_cut(login, &packets(2, &[switch]));
        assert_eq!(reply, Reply::Pending);
        assert_eq!((said.len(), said[3]), (68, 3));
        let (reply, _) = every_cut(login, &packets(2, &[b"\xfecaching_sha2_password\0nonce\0"]));
        let reason = "the server asks for the authentication plugin `caching_sha2_password`, which \
                      is not known here (known: mysql_native_password, client_ed25519)";
        assert_eq!(reply, Reply::Broken(reason.into()));
        let (reply, _) = every_cut(login, &packets(2, &[b"\xfe"]));
        assert!(matches!(reply, Reply::Broken(reason) if reason.contains("`mysql_old_password`")));
    }

    #[test]
    fn refusals_break_the_connection() {
        for (sequence, payload, reason) in [
            (0, &b"\xff\x10\x04Too many connections"[..], "1040 (HY000): Too many connections"),
            (0, b"\x09", "the server speaks protocol 9, not 10"),
        ] {
            let bytes = packet(sequence, payload);
            let (reply, _) = every_cut(|| wire(QueryProtocol::Simple, &[]), &bytes);
            assert_eq!(reply, Reply::Broken(reason.into()));
        }
        let mut wire = wire(QueryProtocol::Simple, &[]);
        let bytes = packet(0, &greeting(CAPABILITIES, "mysql_native_password"));
        wire.receive(&bytes, &mut BytesMut::new());
        let bytes = packet(2, b"\xff\x15\x04#28000Access denied");
        let (_, reply) = wire.receive(&bytes, &mut BytesMut::new());
        assert_eq!(reply, Reply::Broken("1045 (28000): Access denied".into()));
    }

    #[test]
    fn tls_that_is_not_offered_is_an_error() {
        let tls = ClientTls::new(bedplate_core::plan::TlsMode::Require, None).unwrap();
        let mut wire = wire(QueryProtocol::Simple, &[]);
        wire.login = Login::new(
            &Endpoint {
                address: Address::Tcp("localhost".into(), 3306),
                user: "u".into(),
                password: "p".into(),
                database: "d".into(),
                session_settings: Vec::new(),
            },
            &tls,
            0,
        );
        let bytes = packet(0, &greeting(CAPABILITIES, "mysql_native_password"));
        let (_, reply) = wire.receive(&bytes, &mut BytesMut::new());
        let reason = "`engine.tls` is \"require\", but the server does not offer TLS";
        assert_eq!(reply, Reply::Broken(reason.into()));
    }

    #[test]
    fn session_settings_are_made_before_the_connection_is_open() {
        let settings = [("autocommit", "0"), ("sql_mode", "ANSI")];
        let mut wire = wire(QueryProtocol::Simple, &settings);
        let mut out = BytesMut::new();
        let bytes = packet(0, &greeting(CAPABILITIES, "mysql_native_password"));
        wire.receive(&bytes, &mut out);
        out.clear();
        assert_eq!(wire.receive(&packet(2, OK), &mut out).1, Reply::Pending);
        assert_eq!(out.to_vec(), packet(0, b"\x03SET autocommit = 0, sql_mode = 'ANSI'"));
        let (_, reply) = wire.receive(&packet(1, b"\xff\xa9\x04#HY000Unknown"), &mut out);
        assert_eq!(reply, Reply::Broken("1193 (HY000): Unknown".into()));
    }

    #[test]
    fn a_simple_statement_is_one_query() {
        let mut out = BytesMut::new();
        let statement = statement("SELECT :b FROM t WHERE a = :a;");
        open_wire(QueryProtocol::Simple, 0).request(&statement, &[42, -7], &mut out);
        assert_eq!(out.to_vec(), packet(0, b"\x03SELECT -7 FROM t WHERE a = 42;"));
    }

    #[test]
    fn a_long_statement_is_several_packets() {
        let mut out = BytesMut::new();
        let statement = statement(&format!("SELECT '{}';", "x".repeat(FULL_PACKET)));
        let mut wire = open_wire(QueryProtocol::Simple, 0);
        wire.request(&statement, &[], &mut out);
        assert_eq!(out[..5], [255, 255, 255, 0, COM_QUERY]);
        let second = HEADER_BYTES + FULL_PACKET;
        assert_eq!(out[second..second + 4], [11, 0, 0, 1]);
        assert_eq!(wire.receive(&packet(2, OK), &mut out).1, Reply::Done);
    }

    #[test]
    fn results_are_read_to_their_end_with_and_without_eofs() {
        let eof: &[u8] = b"\xfe\0\0\x02\0";
        let end: &[u8] = b"\xfe\0\0\x02\0\0\0";
        // Rows that look like an OK, an EOF and a file.
        let rows: [&[u8]; 3] = [b"\0", b"\xfe\xff\xff\xff\0\0\0\0\0\0\0", b"\xfb"];
        let [a, b, c] = rows;
        for (capabilities, payloads) in [
            (0, vec![&b"\x02"[..], b"\x03def", b"\x03def", eof, a, c, eof]),
            (DEPRECATE_EOF, vec![b"\x02", b"\x03def", b"\x03def", a, c, end]),
            (0, vec![b"\x01", b"\x03def", eof, a, b, eof]),
            (0, vec![OK]),
        ] {
            let make = || {
                let mut wire = open_wire(QueryProtocol::Simple, capabilities);
                wire.request(&statement("SELECT 1;"), &[], &mut BytesMut::new());
                wire
            };
            let (reply, said) = every_cut(make, &packets(1, &payloads));
            assert_eq!((reply, said), (Reply::Done, Vec::new()));
            // An error may come in the place of the end.
            let last = payloads.len() - 1;
            let payloads = [&payloads[..last], &[DEADLOCK]].concat();
            let (reply, _) = every_cut(make, &packets(1, &payloads));
            assert_eq!(reply, failure("40001", "1213: Deadlock found", true));
        }
    }

    #[test]
    fn several_results_are_one_reply() {
        let make = || {
            let mut wire = open_wire(QueryProtocol::Simple, DEPRECATE_EOF);
            wire.request(&statement("CALL p();"), &[], &mut BytesMut::new());
            wire
        };
        let more: &[u8] = b"\xfe\0\0\x0a\0\0\0";
        let payloads = [b"\x01", &b"\x03def"[..], b"\x011", more, b"\0\0\0\x0a\0\0\0", OK];
        assert_eq!(every_cut(make, &packets(1, &payloads)).0, Reply::Done);
    }

    #[test]
    fn a_row_of_several_packets_needs_no_room() {
        let mut wire = open_wire(QueryProtocol::Simple, DEPRECATE_EOF);
        wire.request(&statement("SELECT 1;"), &[], &mut BytesMut::new());
        let mut bytes = packets(1, &[b"\x01", b"\x03def"]);
        // A value of 16,777,215 bytes starts with 0xfd, so that the row is longer by four.
        let row = [&b"\xfd\xff\xff\xff"[..], &[b'x'; FULL_PACKET]].concat();
        let mut out = BytesMut::new();
        append_packets(&row, 3, &mut out);
        bytes.extend_from_slice(&out);
        // A row that is exactly full, and one whose continuation looks like an error and an end.
        out.clear();
        append_packets(&vec![END_LOOKALIKE; FULL_PACKET], 5, &mut out);
        append_packets(&[vec![0; FULL_PACKET], DEADLOCK.to_vec()].concat(), 7, &mut out);
        bytes.extend_from_slice(&out);
        bytes.extend(packet(9, b"\xfe\0\0\x02\0\0\0"));
        for step in [1000, 4096, FULL_PACKET - 1, bytes.len()] {
            let mut wire = open_wire(QueryProtocol::Simple, DEPRECATE_EOF);
            wire.request(&statement("SELECT 1;"), &[], &mut BytesMut::new());
            let (mut at, mut until) = (0, 0);
            let mut reply = Reply::Pending;
            while until < bytes.len() {
                assert_eq!(reply, Reply::Pending);
                until = (until + step).min(bytes.len());
                let (consumed, now) = wire.receive(&bytes[at..until], &mut BytesMut::new());
                at += consumed;
                assert!(until - at < 64, "{} bytes are kept", until - at);
                reply = now;
            }
            assert_eq!((at, reply), (bytes.len(), Reply::Done));
        }
    }

    const END_LOOKALIKE: u8 = 0xfe;

    /// COM_STMT_EXECUTE of statement 9 with two values.
    fn execution(with_types: bool, values: [i64; 2]) -> Vec<u8> {
        let mut payload = b"\x17\x09\0\0\0\0\x01\0\0\0\0".to_vec();
        payload.push(with_types.into());
        if with_types {
            payload.extend_from_slice(b"\x08\0\x08\0");
        }
        payload.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        packet(0, &payload)
    }

    #[test]
    fn a_prepared_statement_is_prepared_once() {
        let statement = statement("UPDATE t SET b = b + :b WHERE a = :a;");
        let eof: &[u8] = b"\xfe\0\0\x02\0";
        let answer: &[u8] = b"\0\x09\0\0\0\0\0\x02\0\0\0\0";
        for (capabilities, payloads) in [
            (0, vec![answer, b"\x03def", b"\x03def", eof]),
            (DEPRECATE_EOF, vec![answer, b"\x03def", b"\x03def"]),
        ] {
            let make = || {
                let mut wire = open_wire(QueryProtocol::Prepared, capabilities);
                let mut out = BytesMut::new();
                wire.request(&statement, &[42, -7], &mut out);
                let prepare = b"\x16UPDATE t SET b = b + ? WHERE a = ?";
                assert_eq!(out.to_vec(), packet(0, prepare));
                wire
            };
            let bytes = packets(1, &payloads);
            let (reply, said) = every_cut(make, &bytes);
            assert_eq!((reply, said), (Reply::Pending, execution(true, [-7, 42])));
            let mut wire = make();
            wire.receive(&bytes, &mut BytesMut::new());
            assert_eq!(wire.receive(&packet(1, OK), &mut BytesMut::new()).1, Reply::Done);
            let mut out = BytesMut::new();
            wire.request(&statement, &[43, 8], &mut out);
            assert_eq!(out.to_vec(), execution(false, [8, 43]));
            assert_eq!(wire.receive(&packet(1, OK), &mut BytesMut::new()).1, Reply::Done);
        }
    }

    #[test]
    fn extended_closes_what_it_prepared() {
        let statement = statement("UPDATE t SET b = b + :b WHERE a = :a;");
        let mut wire = open_wire(QueryProtocol::Extended, DEPRECATE_EOF);
        let answer: &[u8] = b"\0\x09\0\0\0\0\0\x02\0\0\0\0";
        for _ in 0..2 {
            let mut out = BytesMut::new();
            wire.request(&statement, &[42, -7], &mut out);
            assert_eq!(out[4], COM_STMT_PREPARE);
            out.clear();
            wire.receive(&packets(1, &[answer, b"\x03def", b"\x03def"]), &mut out);
            let close = packet(0, b"\x19\x09\0\0\0");
            assert_eq!(out.to_vec(), [execution(true, [-7, 42]), close].concat());
            assert_eq!(wire.receive(&packet(1, OK), &mut out).1, Reply::Done);
        }
    }

    #[test]
    fn what_cannot_be_prepared_is_sent_as_text() {
        let mut wire = open_wire(QueryProtocol::Prepared, 0);
        let mut out = BytesMut::new();
        wire.request(&statement("BEGIN;"), &[], &mut out);
        out.clear();
        let refusal = b"\xff\x0f\x05#HY000This command is not supported";
        assert_eq!(wire.receive(&packet(1, refusal), &mut out).1, Reply::Pending);
        assert_eq!(out.to_vec(), packet(0, b"\x03BEGIN;"));
        assert_eq!(wire.receive(&packet(1, OK), &mut out).1, Reply::Done);
        out.clear();
        wire.request(&statement("BEGIN;"), &[], &mut out);
        assert_eq!(out.to_vec(), packet(0, b"\x03BEGIN;"));
    }

    #[test]
    fn a_number_of_parameters_that_differs_is_a_failure() {
        let mut wire = open_wire(QueryProtocol::Prepared, DEPRECATE_EOF);
        let mut out = BytesMut::new();
        wire.request(&statement("SELECT ?;"), &[], &mut out);
        let answer: &[u8] = b"\0\x09\0\0\0\0\0\x01\0\0\0\0";
        let (_, reply) = wire.receive(&packets(1, &[answer, b"\x03def"]), &mut out);
        let message = "the server sees 1 parameters in a statement that has 0";
        assert_eq!(reply, failure("07001", message, false));
    }

    #[test]
    fn failures_have_their_class() {
        for (payload, reply) in [
            (DEADLOCK, failure("40001", "1213: Deadlock found", true)),
            (
                b"\xff\xb5\x04#HY000Lock wait timeout",
                failure("HY000", "1205: Lock wait timeout", true),
            ),
            (b"\xff\x26\x04#23000Duplicate", failure("23000", "1062: Duplicate", false)),
            (b"\xff\x87\x07#70100Connection was killed", {
                Reply::Broken("1927 (70100): Connection was killed".into())
            }),
            (b"\xff\x1d\x04#08S01Server shutdown", {
                Reply::Broken("1053 (08S01): Server shutdown".into())
            }),
            (b"\xfbfile", Reply::Broken("the server asks for a file of this machine".into())),
        ] {
            let make = || {
                let mut wire = open_wire(QueryProtocol::Simple, 0);
                wire.request(&statement("SELECT 1;"), &[], &mut BytesMut::new());
                wire
            };
            assert_eq!(every_cut(make, &packet(1, payload)).0, reply);
        }
    }

    #[test]
    fn disorder_breaks_the_connection() {
        let asked = || {
            let mut wire = open_wire(QueryProtocol::Simple, 0);
            wire.request(&statement("SELECT 1;"), &[], &mut BytesMut::new());
            wire
        };
        let reply = |bytes: &[u8]| asked().receive(bytes, &mut BytesMut::new()).1;
        let reason = "packet 2 came where 1 was expected";
        assert_eq!(reply(&packet(2, OK)), Reply::Broken(reason.into()));
        let reason = "an empty packet came where none was expected";
        assert_eq!(reply(&packet(1, b"")), Reply::Broken(reason.into()));
        let mut idle = open_wire(QueryProtocol::Simple, 0);
        let farewell = packet(0, b"\xff\x1d\x04#08S01Server shutdown");
        let (_, reply) = idle.receive(&farewell, &mut BytesMut::new());
        assert_eq!(reply, Reply::Broken("1053 (08S01): Server shutdown".into()));
    }

    #[test]
    fn a_connection_may_be_opened_anew() {
        let statement = statement("SELECT 1;");
        let mut wire = open_wire(QueryProtocol::Prepared, DEPRECATE_EOF);
        for _ in 0..2 {
            let mut out = BytesMut::new();
            wire.request(&statement, &[], &mut out);
            assert_eq!(out[4], COM_STMT_PREPARE);
            out.clear();
            let answer: &[u8] = b"\0\x09\0\0\0\0\0\0\0\0\0\0";
            assert_eq!(wire.receive(&packet(1, answer), &mut out).1, Reply::Pending);
            assert_eq!(
                wire.receive(&packets(1, &[b"\x01", b"\x03def"]), &mut out).1,
                Reply::Pending
            );
            wire.open(&mut out);
            let bytes = packet(0, &greeting(CAPABILITIES, "mysql_native_password"));
            assert_eq!(wire.receive(&bytes, &mut out).1, Reply::Pending);
            assert_eq!(wire.receive(&packet(2, OK), &mut out).1, Reply::Done);
        }
    }

    #[test]
    fn leave_and_rollback_are_commands() {
        let mut wire = open_wire(QueryProtocol::Simple, 0);
        let mut out = BytesMut::new();
        wire.rollback(&mut out);
        assert_eq!(out.to_vec(), packet(0, b"\x03ROLLBACK"));
        assert_eq!(wire.receive(&packet(1, OK), &mut out).1, Reply::Done);
        out.clear();
        wire.terminate(&mut out);
        assert_eq!(out.to_vec(), packet(0, b"\x01"));
    }
}
