//! The start of a conversation with MariaDB or MySQL, without input or output: greeting,
//! capabilities, TLS, authentication. Shared by the measured wire and the session.

use bedplate_core::plan::TlsMode;
use bedplate_core::seam::Endpoint;
use bytes::BytesMut;
use curve25519_dalek::{EdwardsPoint, Scalar};
use sha1::Sha1;
use sha2::{Digest, Sha512};

use super::tls::{ClientTls, TlsChannel};

/// Length of a packet's header: three bytes of length, one of sequence.
pub(super) const HEADER_BYTES: usize = 4;
/// A packet of this length is continued by the next one.
pub(super) const FULL_PACKET: usize = 0xff_ff_ff;

/// First byte of an error.
pub(super) const ERROR: u8 = 0xff;
/// First byte of an EOF, of the OK that replaces it, and of a wish for another authentication.
pub(super) const END: u8 = 0xfe;
/// First byte of a wish for a local file; a NULL within a text row.
pub(super) const LOCAL_FILE: u8 = 0xfb;

/// The command that executes a text.
pub(super) const COM_QUERY: u8 = 0x03;
/// The command that ends the conversation.
pub(super) const COM_QUIT: u8 = 0x01;

/// Status flag: another result follows.
pub(super) const MORE_RESULTS: u16 = 0x0008;

/// Capability: results end with an OK, and definitions of columns with nothing.
pub(super) const DEPRECATE_EOF: u32 = 1 << 24;
/// Capability: several statements in one text.
pub(super) const MULTI_STATEMENTS: u32 = 1 << 16;
/// Capability: `LOAD DATA LOCAL`.
pub(super) const LOCAL_FILES: u32 = 1 << 7;

const CONNECT_WITH_DB: u32 = 1 << 3;
const PROTOCOL_41: u32 = 1 << 9;
const SSL: u32 = 1 << 11;
const SECURE_CONNECTION: u32 = 1 << 15;
const PLUGIN_AUTH: u32 = 1 << 19;
const CONNECT_ATTRIBUTES: u32 = 1 << 20;
/// CLIENT_MYSQL, LONG_FLAG, TRANSACTIONS, MULTI_RESULTS, PS_MULTI_RESULTS and the above.
const WANTED: u32 = 1
    | 1 << 2
    | 1 << 13
    | 1 << 17
    | 1 << 18
    | PROTOCOL_41
    | SECURE_CONNECTION
    | PLUGIN_AUTH
    | CONNECT_ATTRIBUTES
    | DEPRECATE_EOF;

/// The largest packet that is understood, told to the server.
const MAX_PACKET_BYTES: u32 = 1 << 30;
/// utf8mb4_general_ci, which every version knows.
const COLLATION: u8 = 45;

/// The plugin of short passwords hashed with SHA-1.
const NATIVE: &str = "mysql_native_password";
/// The plugin of passwords that sign with Ed25519.
const ED25519: &str = "client_ed25519";
/// The error of an account that lets in without asking for a password, but not us.
const NO_PASSWORD_ASKED: u16 = 1698;
const NATIVE_NONCE_BYTES: usize = 20;
const ED25519_NONCE_BYTES: usize = 32;

/// Why a login failed.
#[derive(Debug)]
pub(super) struct Denial {
    pub(super) reason: String,
    /// The next step, where the reason tells it.
    pub(super) hint: Option<String>,
    /// Whether these are the server's own words, so that there is one.
    pub(super) by_server: bool,
}

impl From<String> for Denial {
    fn from(reason: String) -> Self {
        Self { reason, hint: None, by_server: false }
    }
}

impl From<&str> for Denial {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<Denial> for String {
    fn from(denial: Denial) -> Self {
        denial.reason
    }
}

/// The start of one conversation.
pub(super) struct Login {
    endpoint: Endpoint,
    tls: ClientTls,
    wanted: u32,
    /// Capabilities of both sides.
    pub(super) capabilities: u32,
}

impl Login {
    /// A login that asks for the usual capabilities and those of `more`.
    pub(super) fn new(endpoint: &Endpoint, tls: &ClientTls, more: u32) -> Self {
        let wanted = WANTED | more;
        Self { endpoint: endpoint.clone(), tls: tls.clone(), wanted, capabilities: 0 }
    }

    /// Answers the server's first packet. What goes in the clear is appended to `out`; the answer
    /// itself goes through the channel, when there is one. Returns the next sequence number too.
    pub(super) fn greeting(
        &mut self,
        payload: &[u8],
        out: &mut BytesMut,
    ) -> Result<(Option<TlsChannel>, u8), Denial> {
        if payload.first() == Some(&ERROR) {
            return Err(self.refused(payload));
        }
        let greeting = Greeting::parse(payload)?;
        if greeting.capabilities & PROTOCOL_41 == 0
            || greeting.capabilities & SECURE_CONNECTION == 0
        {
            return Err("the server is too old: it does not speak protocol 4.1".into());
        }
        self.capabilities = self.wanted & greeting.capabilities;
        if !self.endpoint.database.is_empty() {
            self.capabilities |= CONNECT_WITH_DB & greeting.capabilities;
        }
        let mut channel = None;
        let mut sequence = 1;
        if self.tls.mode() != TlsMode::Off {
            if greeting.capabilities & SSL == 0 {
                return Err(Denial {
                    reason: format!(
                        "`engine.tls` is \"{}\", but the server does not offer TLS",
                        self.tls.mode().word()
                    ),
                    hint: Some(
                        "give the server a certificate and a key (`ssl_cert`, `ssl_key`), or set \
                         `engine.tls = \"off\"`"
                            .into(),
                    ),
                    by_server: false,
                });
            }
            self.capabilities |= SSL;
            channel = self.tls.channel(&self.endpoint.address)?;
            let mut request = Vec::with_capacity(32);
            self.append_fixed_part(&mut request);
            sequence = append_packets(&request, sequence, out);
        }
        // An unknown default is no reason to give up: the user may have another plugin, and if not,
        // the server asks for it by name.
        let (plugin, proof) = match prove(greeting.plugin, &self.endpoint.password, &greeting.nonce)
        {
            Some(proof) => (greeting.plugin, proof),
            None => (NATIVE, Vec::new()),
        };
        let mut response = Vec::with_capacity(128);
        self.append_fixed_part(&mut response);
        response.extend_from_slice(self.endpoint.user.as_bytes());
        response.extend_from_slice(&[0, u8::try_from(proof.len()).unwrap_or_default()]);
        response.extend_from_slice(&proof);
        if self.capabilities & CONNECT_WITH_DB != 0 {
            response.extend_from_slice(self.endpoint.database.as_bytes());
            response.push(0);
        }
        if self.capabilities & PLUGIN_AUTH != 0 {
            response.extend_from_slice(plugin.as_bytes());
            response.push(0);
        }
        if self.capabilities & CONNECT_ATTRIBUTES != 0 {
            response.extend_from_slice(b"\x16\x0cprogram_name\x08bedplate");
        }
        match &mut channel {
            None => sequence = append_packets(&response, sequence, out),
            Some(channel) => {
                let mut plain = BytesMut::new();
                sequence = append_packets(&response, sequence, &mut plain);
                channel.write(&plain)?;
                channel.flush(out)?;
            }
        }
        Ok((channel, sequence))
    }

    /// Deals with a packet after the greeting: none when the server lets us in. Otherwise an answer
    /// in the clear (the caller encrypts it) is appended to `out`, with the given sequence number, and
    /// the next number returned.
    pub(super) fn answer(
        &mut self,
        payload: &[u8],
        sequence: u8,
        out: &mut BytesMut,
    ) -> Result<Option<u8>, Denial> {
        match payload.split_first() {
            Some((0, _)) => Ok(None),
            Some((&ERROR, _)) => Err(self.refused(payload)),
            // Another plugin; without a name it is the one of MySQL 4.0.
            Some((&END, [])) => Err(self.unknown_plugin("mysql_old_password")),
            Some((&END, rest)) => {
                let (plugin, nonce) = text(rest).ok_or("unreadable wish for a plugin")?;
                let proof = prove(plugin, &self.endpoint.password, nonce)
                    .ok_or_else(|| self.unknown_plugin(plugin))?;
                Ok(Some(append_packets(&proof, sequence, out)))
            }
            _ => Err("authentication: the server says something not known here".into()),
        }
    }

    fn unknown_plugin(&self, plugin: &str) -> Denial {
        Denial {
            reason: format!(
                "the server asks for the authentication plugin `{plugin}`, which is not known here \
                 (known: {NATIVE}, {ED25519})"
            ),
            hint: Some(self.password_hint()),
            by_server: false,
        }
    }

    /// The server's refusal.
    fn refused(&self, payload: &[u8]) -> Denial {
        let error = ServerError::parse(payload);
        let hint = (error.number == NO_PASSWORD_ASKED).then(|| {
            format!(
                "the account goes by the user of the operating system (plugin `unix_socket`) and not \
                 by a password: run bedplate as that user, or {}",
                self.password_hint()
            )
        });
        Denial { reason: error.to_string(), hint, by_server: true }
    }

    /// How an account gets a password of a plugin that is known here. Its host is not ours, maybe.
    fn password_hint(&self) -> String {
        let user = self.endpoint.user.replace('`', "``");
        format!("ALTER USER `{user}`@`HOST` IDENTIFIED VIA {NATIVE} USING PASSWORD('...')")
    }

    /// What the request for TLS and the response have in common.
    fn append_fixed_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.capabilities.to_le_bytes());
        out.extend_from_slice(&MAX_PACKET_BYTES.to_le_bytes());
        out.push(COLLATION);
        out.extend_from_slice(&[0; 23]);
    }

    /// The statement that makes the session settings, when there are any.
    pub(super) fn settings(&self) -> Result<Option<String>, String> {
        set_statement(&self.endpoint.session_settings)
    }
}

/// `SET a = 1, b = 'c'`: numbers as they are, all else quoted (a switch may be `'ON'`, too).
fn set_statement(settings: &[(String, String)]) -> Result<Option<String>, String> {
    let mut statement = String::new();
    for (name, value) in settings {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '@');
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("`{name}` is not the name of a setting"));
        }
        statement.push_str(if statement.is_empty() { "SET " } else { ", " });
        statement.push_str(name);
        if value.parse::<f64>().is_ok_and(f64::is_finite) {
            statement.push_str(&format!(" = {value}"));
        } else {
            let quoted = value.replace('\\', "\\\\").replace('\'', "''");
            statement.push_str(&format!(" = '{quoted}'"));
        }
    }
    Ok((!statement.is_empty()).then_some(statement))
}

/// The server's first packet.
struct Greeting<'a> {
    capabilities: u32,
    nonce: Vec<u8>,
    plugin: &'a str,
}

impl<'a> Greeting<'a> {
    fn parse(payload: &'a [u8]) -> Result<Self, String> {
        match payload.first() {
            Some(10) => {}
            Some(other) => return Err(format!("the server speaks protocol {other}, not 10")),
            None => return Err("the server's greeting is empty".into()),
        }
        Self::parse_rest(&payload[1..]).ok_or_else(|| "the server's greeting is cut short".into())
    }

    fn parse_rest(rest: &'a [u8]) -> Option<Self> {
        let (_version, rest) = text(rest)?;
        // Thread id, eight bytes of nonce, a zero.
        let (_thread, rest) = rest.split_at_checked(4)?;
        let (first, rest) = rest.split_at_checked(8)?;
        let rest = rest.get(1..)?;
        let (low, rest) = rest.split_first_chunk::<2>()?;
        // Character set and status.
        let rest = rest.get(3..)?;
        let (high, rest) = rest.split_first_chunk::<2>()?;
        let capabilities =
            u32::from(u16::from_le_bytes(*low)) | u32::from(u16::from_le_bytes(*high)) << 16;
        let (&nonce_length, rest) = rest.split_first()?;
        let rest = rest.get(10..)?;
        let second_length = usize::from(nonce_length).saturating_sub(8).max(13);
        let (second, rest) = rest.split_at_checked(second_length)?;
        let mut nonce = first.to_vec();
        nonce.extend_from_slice(second);
        let plugin = if capabilities & PLUGIN_AUTH == 0 {
            NATIVE
        } else {
            text(rest).map_or("", |(t, _)| t)
        };
        Some(Self { capabilities, nonce, plugin })
    }
}

/// A text that ends with a zero (or with the packet), and what follows it.
fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let rest = bytes.get(end + 1..).unwrap_or_default();
    Some((std::str::from_utf8(&bytes[..end]).ok()?, rest))
}

/// The proof that we know the password; none when the plugin is not known.
///
/// Each plugin's nonce has its length: what the server sends may end with a zero that is no part of
/// it, and a nonce may itself end with one.
fn prove(plugin: &str, password: &str, nonce: &[u8]) -> Option<Vec<u8>> {
    let of_length = |length: usize| &nonce[..nonce.len().min(length)];
    match plugin {
        NATIVE => Some(native_proof(password.as_bytes(), of_length(NATIVE_NONCE_BYTES))),
        ED25519 => Some(ed25519_proof(password.as_bytes(), of_length(ED25519_NONCE_BYTES))),
        _ => None,
    }
}

/// `SHA1(password) xor SHA1(nonce, SHA1(SHA1(password)))`; nothing for an empty password.
fn native_proof(password: &[u8], nonce: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha1::digest(password);
    let twice = Sha1::digest(once);
    let mask = Sha1::new().chain_update(nonce).chain_update(twice).finalize();
    once.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect()
}

/// An Ed25519 signature of the nonce whose seed is the password, of any length.
fn ed25519_proof(password: &[u8], nonce: &[u8]) -> Vec<u8> {
    let wide = |hash: Sha512| {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(&hash.finalize());
        bytes
    };
    let seed = wide(Sha512::new().chain_update(password));
    let mut secret = [0; 32];
    secret.copy_from_slice(&seed[..32]);
    secret[0] &= 248;
    secret[31] = secret[31] & 63 | 64;
    let secret = Scalar::from_bytes_mod_order(secret);
    let once = Sha512::new().chain_update(&seed[32..]).chain_update(nonce);
    let once = Scalar::from_bytes_mod_order_wide(&wide(once));
    let commitment = EdwardsPoint::mul_base(&once).compress();
    let public = EdwardsPoint::mul_base(&secret).compress();
    let challenge = Sha512::new()
        .chain_update(commitment.as_bytes())
        .chain_update(public.as_bytes())
        .chain_update(nonce);
    let response = Scalar::from_bytes_mod_order_wide(&wide(challenge)) * secret + once;
    [*commitment.as_bytes(), response.to_bytes()].concat()
}

/// Appends a payload as packets of which the first has the given sequence number; returns the number
/// after the last.
pub(super) fn append_packets(payload: &[u8], first: u8, out: &mut BytesMut) -> u8 {
    let mut sequence = first;
    let mut rest = payload;
    loop {
        let (now, later) = rest.split_at(rest.len().min(FULL_PACKET));
        let length = u32::try_from(now.len()).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(&[length[0], length[1], length[2], sequence]);
        out.extend_from_slice(now);
        sequence = sequence.wrapping_add(1);
        // A full packet is followed by another one, even by an empty one.
        if now.len() < FULL_PACKET {
            return sequence;
        }
        rest = later;
    }
}

/// An integer of one to nine bytes, and what follows it.
pub(super) fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let length = match first {
        0..=0xfa => return Some((first.into(), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let (number, rest) = rest.split_at_checked(length)?;
    let mut wide = [0; 8];
    wide[..length].copy_from_slice(number);
    Some((u64::from_le_bytes(wide), rest))
}

/// Affected rows and status flags of an OK.
pub(super) fn ok(payload: &[u8]) -> Option<(u64, u16)> {
    let (affected, rest) = integer(payload.get(1..)?)?;
    let (_insert_id, rest) = integer(rest)?;
    let status = rest.first_chunk::<2>()?;
    Some((affected, u16::from_le_bytes(*status)))
}

/// Status flags of the packet that ends the rows: an OK, or an EOF without [`DEPRECATE_EOF`].
pub(super) fn end_status(payload: &[u8], capabilities: u32) -> Option<u16> {
    if capabilities & DEPRECATE_EOF != 0 {
        return ok(payload).map(|(_, status)| status);
    }
    payload.get(3..5)?.first_chunk::<2>().map(|status| u16::from_le_bytes(*status))
}

/// Whether a packet after the definitions of columns is not a row but the end. A row, too, may start
/// with `0xfe`, but only when its first value makes it a full packet.
pub(super) fn ends_rows(first: u8, length: usize, capabilities: u32) -> bool {
    let limit = if capabilities & DEPRECATE_EOF != 0 { FULL_PACKET } else { 9 };
    first == END && length < limit
}

/// What the server says of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerError {
    /// Its number, which is what the manual is sorted by.
    pub(super) number: u16,
    /// Five characters; `HY000` when the server gives none.
    pub(super) sqlstate: String,
    /// The server's words.
    pub(super) message: String,
}

impl ServerError {
    /// Reads an error packet, leniently: a reason that is cut short is better than none.
    pub(super) fn parse(payload: &[u8]) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let number = payload.get(1..3).and_then(|bytes| bytes.first_chunk());
        let rest = payload.get(3..).unwrap_or_default();
        let (sqlstate, message) = match rest {
            [b'#', rest @ ..] if rest.len() >= 5 => (lossy(&rest[..5]), lossy(&rest[5..])),
            _ => ("HY000".into(), lossy(rest)),
        };
        Self { number: number.map_or(0, |bytes| u16::from_le_bytes(*bytes)), sqlstate, message }
    }

    /// Whether the connection is gone with it: shutdown, kill, network errors, idle for too long.
    pub(super) fn ends_connection(&self) -> bool {
        matches!(self.number, 1040 | 1053 | 1080 | 1152..=1161 | 1184 | 1927 | 4031)
    }

    /// Whether the same transaction may succeed when it is started again: a deadlock, a lock that did
    /// not come in time, a row that changed since the snapshot (`innodb_snapshot_isolation`).
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self.number, 1213 | 1205 | 1020)
    }
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {}", self.number, self.sqlstate, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_or_quoted() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let settings = [setting("lock_wait_timeout", "5"), setting("sql_mode", "it's\\")];
        assert_eq!(
            set_statement(&settings),
            Ok(Some("SET lock_wait_timeout = 5, sql_mode = 'it''s\\\\'".into()))
        );
        assert_eq!(set_statement(&[]), Ok(None));
        assert!(set_statement(&[setting("a = 1, b", "2")]).is_err());
    }

    #[test]
    fn integers_have_four_lengths() {
        for (bytes, value) in [
            (&b"\xfa"[..], 250),
            (b"\xfc\xfb\x00", 251),
            (b"\xfd\x01\x00\x01", 65_537),
            (b"\xfe\0\0\0\0\x01\0\0\0", 1 << 32),
        ] {
            assert_eq!(integer(bytes), Some((value, &b""[..])));
            for cut in 0..bytes.len() {
                assert_eq!(integer(&bytes[..cut]), None);
            }
        }
        assert_eq!(integer(b"\xfb"), None);
    }

    #[test]
    fn a_full_packet_is_followed_by_an_empty_one() {
        let mut out = BytesMut::new();
        assert_eq!(append_packets(&vec![7; FULL_PACKET], 255, &mut out), 1);
        assert_eq!(out[..4], [255, 255, 255, 255]);
        assert_eq!(out[out.len() - 4..], [0, 0, 0, 0]);
        assert_eq!(out.len(), FULL_PACKET + 8);
    }

    #[test]
    fn an_error_before_the_handshake_has_no_sqlstate() {
        let error = ServerError::parse(b"\xff\x10\x04Too many connections");
        assert_eq!(error.to_string(), "1040 (HY000): Too many connections");
        let error = ServerError::parse(b"\xff\x10\x04#08004Too many connections");
        assert_eq!(error.to_string(), "1040 (08004): Too many connections");
    }

    #[test]
    fn a_native_proof_is_undone_by_the_stored_hash() {
        let nonce = b"01234567890123456789";
        let proof = native_proof(b"secret", nonce);
        let stored = Sha1::digest(Sha1::digest(b"secret"));
        let mask = Sha1::new().chain_update(nonce).chain_update(stored).finalize();
        let once: Vec<u8> = proof.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(Sha1::digest(once), stored);
        assert_eq!(native_proof(b"", nonce), b"");
    }
}
