//! Sessions with MariaDB or MySQL for set-up, checks and metadata. Not the measured path.
//!
//! The login, the packets and TLS are those of the measured wire, so that a session can reach
//! whatever the wire can reach.

use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::seam::{Address, Endpoint, Session};
use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::mariadb_login::{
    COM_QUERY, COM_QUIT, DEPRECATE_EOF, Denial, ERROR, FULL_PACKET, HEADER_BYTES, LOCAL_FILE,
    LOCAL_FILES, Login, MORE_RESULTS, MULTI_STATEMENTS, ServerError, append_packets, end_status,
    ends_rows, integer, ok,
};
use super::session::shown;
use super::tls::{ClientTls, TlsChannel};

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Statements are shown in errors up to this many characters.
const SHOWN_CHARACTERS: usize = 500;
/// A local file is sent in packets of at most this length.
const FILE_PACKET: usize = 1 << 20;

/// One connection to a MariaDB or MySQL server.
pub struct MariadbSession {
    channel: Channel,
    capabilities: u32,
}

/// Opens a session, encrypted as `tls` says; the session settings of the endpoint are made.
///
/// # Errors
/// [`bedplate_core::ErrorKind::Driver`] when the server cannot be reached or refuses.
pub async fn connect(endpoint: &Endpoint, tls: &ClientTls) -> Result<MariadbSession> {
    attempt(endpoint, tls).await.map_err(|denial| not_connected(endpoint, denial))
}

/// Finds out whether there is a server, which may well refuse.
///
/// # Errors
/// [`bedplate_core::ErrorKind::Driver`] when nobody answers.
pub async fn find(endpoint: &Endpoint, tls: &ClientTls) -> Result<()> {
    match attempt(endpoint, tls).await {
        Err(denial) if !denial.by_server => Err(not_connected(endpoint, denial)),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn attempt(
    endpoint: &Endpoint,
    tls: &ClientTls,
) -> std::result::Result<MariadbSession, Denial> {
    tokio::time::timeout(CONNECT_TIMEOUT, open(endpoint, tls))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()).into()))
}

fn not_connected(endpoint: &Endpoint, Denial { reason, hint, .. }: Denial) -> Error {
    let address = shown(&endpoint.address);
    let error = Error::driver(format!("cannot connect to {address}: {reason}"));
    Error { hint, ..error }
}

async fn open(endpoint: &Endpoint, tls: &ClientTls) -> std::result::Result<MariadbSession, Denial> {
    let stream: Box<dyn Stream> = match &endpoint.address {
        Address::Unix(path) => {
            Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?)
        }
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(|error| error.to_string())?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            Box::new(stream)
        }
    };
    let mut channel = Channel { stream, tls: None, received: BytesMut::new(), sequence: 0 };
    let mut login = Login::new(endpoint, tls, LOCAL_FILES | MULTI_STATEMENTS);
    let greeting = channel.packet().await?;
    let mut out = BytesMut::new();
    let (encrypted, sequence) = login.greeting(&greeting, &mut out)?;
    // The channel has encrypted what must be; the bytes go out as they are.
    channel.stream.write_all(&out).await.map_err(|error| error.to_string())?;
    (channel.tls, channel.sequence) = (encrypted, sequence);
    loop {
        let packet = channel.packet().await?;
        let mut out = BytesMut::new();
        let Some(next) = login.answer(&packet, channel.sequence, &mut out)? else { break };
        channel.sequence = next;
        channel.send(&out).await?;
    }
    let mut session = MariadbSession { channel, capabilities: login.capabilities };
    if let Some(statement) = login.settings()? {
        session.run(&statement, None).await.map_err(|failure| failure.to_string())?;
    }
    Ok(session)
}

/// Why a statement has no result.
enum Trouble {
    /// The server refused it; the session goes on.
    Refused(ServerError),
    /// The conversation broke off.
    Broken(String),
}

impl From<String> for Trouble {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

impl From<&str> for Trouble {
    fn from(reason: &str) -> Self {
        Self::Broken(reason.into())
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Broken(reason) => f.write_str(reason),
        }
    }
}

type Rows = Vec<Vec<Option<String>>>;

impl MariadbSession {
    /// Executes a text of one or more statements; the rows of all of them go to `rows`.
    async fn run(
        &mut self,
        sql: &str,
        rows: Option<&mut Rows>,
    ) -> std::result::Result<u64, Trouble> {
        self.channel.command(COM_QUERY, sql.as_bytes()).await?;
        let first = self.channel.packet().await?;
        if first.first() == Some(&LOCAL_FILE) {
            // A file that nobody offered: an empty one, so that the server comes to an end.
            self.channel.append(&[]).await?;
            self.results(None, rows).await?;
            return Err("the server asks for a file of this machine".into());
        }
        self.results(Some(first), rows).await
    }

    /// Reads results to the end of the last, `first` being the first packet when it has been read;
    /// returns the number of rows that were changed.
    async fn results(
        &mut self,
        mut first: Option<BytesMut>,
        mut rows: Option<&mut Rows>,
    ) -> std::result::Result<u64, Trouble> {
        let mut changed = 0;
        loop {
            let packet = match first.take() {
                Some(packet) => packet,
                None => self.channel.packet().await?,
            };
            let status = match packet.first() {
                Some(0) => {
                    let (affected, status) = ok(&packet).ok_or("an OK packet is cut short")?;
                    changed += affected;
                    status
                }
                Some(&ERROR) => return Err(Trouble::Refused(ServerError::parse(&packet))),
                _ => {
                    let (columns, _) = integer(&packet).ok_or("unreadable number of columns")?;
                    self.result_set(columns, rows.as_deref_mut()).await?
                }
            };
            if status & MORE_RESULTS == 0 {
                return Ok(changed);
            }
        }
    }

    async fn result_set(
        &mut self,
        columns: u64,
        mut rows: Option<&mut Rows>,
    ) -> std::result::Result<u16, Trouble> {
        let definitions = columns + u64::from(self.capabilities & DEPRECATE_EOF == 0);
        for _ in 0..definitions {
            self.channel.packet().await?;
        }
        loop {
            let packet = self.channel.packet().await?;
            let first = *packet.first().ok_or("an empty packet came instead of a row")?;
            if first == ERROR {
                return Err(Trouble::Refused(ServerError::parse(&packet)));
            }
            if ends_rows(first, packet.len(), self.capabilities) {
                return end_status(&packet, self.capabilities)
                    .ok_or_else(|| "the end of the rows is cut short".into());
            }
            if let Some(rows) = &mut rows {
                rows.push(row(&packet, columns).ok_or("unreadable row")?);
            }
        }
    }

    async fn load(
        &mut self,
        sql: &str,
        next: &mut (dyn FnMut() -> Option<Vec<u8>> + Send),
    ) -> std::result::Result<u64, Trouble> {
        self.channel.command(COM_QUERY, sql.as_bytes()).await?;
        let first = self.channel.packet().await?;
        if first.first() != Some(&LOCAL_FILE) {
            self.results(Some(first), None).await?;
            return Err("the server asks for no data after this statement".into());
        }
        while let Some(chunk) = next() {
            for piece in chunk.chunks(FILE_PACKET) {
                self.channel.append(piece).await?;
            }
        }
        self.channel.append(&[]).await?;
        self.results(None, None).await
    }
}

impl Drop for MariadbSession {
    /// Takes leave, as far as that can be done without waiting; the server's log would otherwise
    /// complain of an aborted connection.
    fn drop(&mut self) {
        let _ = self.channel.command(COM_QUIT, &[]).now_or_never();
    }
}

/// A row of the text form.
fn row(packet: &[u8], columns: u64) -> Option<Vec<Option<String>>> {
    let mut rest = packet;
    let mut row = Vec::new();
    for _ in 0..columns {
        if let Some((&LOCAL_FILE, after)) = rest.split_first() {
            row.push(None);
            rest = after;
            continue;
        }
        let (length, after) = integer(rest)?;
        let (value, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(row)
}

#[async_trait]
impl Session for MariadbSession {
    async fn execute(&mut self, sql: &str) -> Result<()> {
        self.run(sql, None).await.map(|_| ()).map_err(|trouble| refused(&trouble, sql))
    }

    async fn query(&mut self, sql: &str) -> Result<Rows> {
        let mut rows = Vec::new();
        self.run(sql, Some(&mut rows)).await.map_err(|trouble| refused(&trouble, sql))?;
        Ok(rows)
    }

    /// Feeds `LOAD DATA LOCAL INFILE 'any name' …`; the server must have `local_infile` on.
    async fn copy_in(
        &mut self,
        sql: &str,
        next: &mut (dyn FnMut() -> Option<Vec<u8>> + Send),
    ) -> Result<u64> {
        self.load(sql, next).await.map_err(|trouble| refused(&trouble, sql))
    }
}

fn refused(trouble: &Trouble, sql: &str) -> Error {
    let mut evidence = String::new();
    let message = match trouble {
        Trouble::Refused(error) => {
            evidence.push_str(&format!("error: {error}\n"));
            format!("the server refused a statement: {}", error.message)
        }
        Trouble::Broken(reason) => format!("the conversation with the server failed: {reason}"),
    };
    evidence.push_str("statement: ");
    evidence.extend(sql.chars().take(SHOWN_CHARACTERS));
    Error::driver(message).evidence(evidence)
}

/// A socket of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Packets over a socket, encrypted or not.
struct Channel {
    stream: Box<dyn Stream>,
    tls: Option<TlsChannel>,
    /// Received, in the clear, not dealt with.
    received: BytesMut,
    sequence: u8,
}

impl Channel {
    /// The next payload, of however many packets.
    async fn packet(&mut self) -> std::result::Result<BytesMut, String> {
        let mut payload = BytesMut::new();
        loop {
            self.receive(HEADER_BYTES).await?;
            let length =
                u32::from_le_bytes([self.received[0], self.received[1], self.received[2], 0])
                    as usize;
            let sequence = self.received[3];
            self.receive(HEADER_BYTES + length).await?;
            self.received.advance(HEADER_BYTES);
            let part = self.received.split_to(length);
            // An error may come unasked, with a number of its own.
            if sequence != self.sequence && part.first() != Some(&ERROR) {
                let expected = self.sequence;
                return Err(format!("packet {sequence} came where {expected} was expected"));
            }
            self.sequence = sequence.wrapping_add(1);
            if payload.is_empty() {
                payload = part;
            } else {
                payload.extend_from_slice(&part);
            }
            if length < FULL_PACKET {
                return Ok(payload);
            }
        }
    }

    /// Receives until so many bytes are there.
    async fn receive(&mut self, count: usize) -> std::result::Result<(), String> {
        let mut encrypted = BytesMut::new();
        while self.received.len() < count {
            let buffer = if self.tls.is_some() { &mut encrypted } else { &mut self.received };
            buffer.reserve(8192);
            let received = self.stream.read_buf(buffer).await.map_err(|error| error.to_string())?;
            if received == 0 {
                return Err("the server closed the connection".into());
            }
            if let Some(tls) = &mut self.tls {
                let read = tls.read(&encrypted, &mut self.received);
                encrypted.clear();
                let mut out = BytesMut::new();
                tls.flush(&mut out)?;
                // The reason why the peer is not trusted is worth more than that it cannot be told.
                let sent = self.stream.write_all(&out).await;
                read?;
                sent.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Sends bytes, encrypted when the connection is.
    async fn send(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        let sent = match &mut self.tls {
            None => self.stream.write_all(bytes).await,
            Some(tls) => {
                let mut out = BytesMut::new();
                tls.write(bytes)?;
                tls.flush(&mut out)?;
                self.stream.write_all(&out).await
            }
        };
        sent.map_err(|error| error.to_string())
    }

    /// Sends a payload that starts a conversation.
    async fn command(&mut self, command: u8, text: &[u8]) -> std::result::Result<(), String> {
        self.sequence = 0;
        let mut payload = Vec::with_capacity(1 + text.len());
        payload.push(command);
        payload.extend_from_slice(text);
        self.append(&payload).await
    }

    /// Sends a payload that goes on with a conversation.
    async fn append(&mut self, payload: &[u8]) -> std::result::Result<(), String> {
        let mut out = BytesMut::with_capacity(payload.len() + HEADER_BYTES);
        self.sequence = append_packets(payload, self.sequence, &mut out);
        self.send(&out).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_row_has_values_and_nulls() {
        let expected = vec![Some("ab".to_owned()), None, Some(String::new())];
        assert_eq!(row(b"\x02ab\xfb\0", 3), Some(expected));
        assert_eq!(row(b"\x02a", 1), None);
    }
}
