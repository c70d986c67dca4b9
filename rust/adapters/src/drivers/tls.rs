//! TLS without input or output: bytes in, bytes out, for wires and sessions alike.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use bedplate_core::error::{Error, Result};
use bedplate_core::plan::TlsMode;
use bedplate_core::seam::Address;
use bytes::BytesMut;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// What a peer of a Unix socket must be called in its certificate.
const NAME_BEHIND_A_SOCKET: &str = "localhost";

/// How the connections to a server are encrypted; made once, shared by all of them.
#[derive(Debug, Clone)]
pub struct ClientTls {
    mode: TlsMode,
    /// Absent in mode `off`.
    config: Option<Arc<ClientConfig>>,
}

impl ClientTls {
    /// No encryption.
    pub fn off() -> Self {
        Self { mode: TlsMode::Off, config: None }
    }

    /// Encryption in the given mode. `ca_file` holds the certificates, in PEM, of the authorities
    /// that mode `verify` trusts; the other modes do not look at it.
    ///
    /// # Errors
    /// [`bedplate_core::ErrorKind::Driver`] when `verify` is not given a usable file.
    pub fn new(mode: TlsMode, ca_file: Option<&Path>) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::driver(format!("TLS: {error}")))?;
        let config = match mode {
            TlsMode::Off => return Ok(Self::off()),
            TlsMode::Require => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
                .with_no_client_auth(),
            TlsMode::Verify => {
                let path = ca_file.ok_or_else(|| {
                    Error::driver("TLS mode `verify` needs the certificate of an authority")
                        .hint("name a PEM file, or use `require` to encrypt without verifying")
                })?;
                builder.with_root_certificates(authorities(path)?).with_no_client_auth()
            }
        };
        Ok(Self { mode, config: Some(Arc::new(config)) })
    }

    /// The mode.
    pub fn mode(&self) -> TlsMode {
        self.mode
    }

    /// The encrypted side of one connection; none in mode `off`.
    ///
    /// # Errors
    /// A reason, when the address has no name that a certificate could bear.
    pub fn channel(&self, address: &Address) -> std::result::Result<Option<TlsChannel>, String> {
        let Some(config) = &self.config else { return Ok(None) };
        let host = match address {
            Address::Unix(_) => NAME_BEHIND_A_SOCKET,
            Address::Tcp(host, _) => host,
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("TLS: `{host}` is not the name of a host"))?;
        let mut connection = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| format!("TLS: {error}"))?;
        // What is written is handed on at once; a statement may be of any length.
        connection.set_buffer_limit(None);
        Ok(Some(TlsChannel { connection }))
    }
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let unusable = |problem: String| Error::driver(format!("TLS: `{}`: {problem}", path.display()));
    let mut roots = RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("no certificate in it".into()));
    }
    Ok(roots)
}

/// The encrypted side of one connection.
pub struct TlsChannel {
    connection: ClientConnection,
}

impl TlsChannel {
    /// Takes all of the received bytes and appends what they say in the clear. There may be bytes to
    /// send afterwards even when this fails: see [`TlsChannel::flush`].
    ///
    /// # Errors
    /// A reason, when the peer is not to be trusted or does not speak TLS.
    pub fn read(
        &mut self,
        mut input: &[u8],
        plain: &mut BytesMut,
    ) -> std::result::Result<(), String> {
        while !input.is_empty() {
            let taken =
                self.connection.read_tls(&mut input).map_err(|error| format!("TLS: {error}"))?;
            let state =
                self.connection.process_new_packets().map_err(|error| format!("TLS: {error}"))?;
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.connection
                .reader()
                .read_exact(&mut plain[start..])
                .map_err(|error| format!("TLS: {error}"))?;
            if taken == 0 {
                // The peer has taken leave; what comes after that means nothing.
                break;
            }
        }
        Ok(())
    }

    /// Takes bytes in the clear; [`TlsChannel::flush`] yields them encrypted, once the handshake
    /// allows.
    ///
    /// # Errors
    /// A reason, when the connection cannot carry them.
    pub fn write(&mut self, plain: &[u8]) -> std::result::Result<(), String> {
        self.connection.writer().write_all(plain).map_err(|error| format!("TLS: {error}"))
    }

    /// Appends the encrypted bytes that are to be sent.
    ///
    /// # Errors
    /// A reason, when the connection cannot yield them.
    pub fn flush(&mut self, out: &mut BytesMut) -> std::result::Result<(), String> {
        while self.connection.wants_write() {
            self.connection
                .write_tls(&mut Appender(out))
                .map_err(|error| format!("TLS: {error}"))?;
        }
        Ok(())
    }
}

/// Bytes at the end of a buffer.
struct Appender<'a>(&'a mut BytesMut);

impl Write for Appender<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Takes any certificate for good. Its signatures are not checked either: they would prove that the
/// peer holds the key of a certificate that nobody vouches for, and old servers make certificates
/// that cannot be parsed.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_needs_a_usable_file() {
        let missing = ClientTls::new(TlsMode::Verify, None).expect_err("no file");
        assert_eq!(missing.message, "TLS mode `verify` needs the certificate of an authority");
        let file = tempfile::NamedTempFile::new().unwrap();
        let empty = ClientTls::new(TlsMode::Verify, Some(file.path())).expect_err("an empty file");
        assert!(empty.message.contains("certificate"), "{}", empty.message);
    }

    #[test]
    fn off_has_no_channel_and_the_others_start_with_a_hello() {
        let address = Address::Unix("/run/socket".into());
        assert!(ClientTls::off().channel(&address).unwrap().is_none());
        let require = ClientTls::new(TlsMode::Require, None).unwrap();
        let mut channel = require.channel(&address).unwrap().unwrap();
        let mut out = BytesMut::new();
        channel.write(b"kept until the handshake is over").unwrap();
        channel.flush(&mut out).unwrap();
        // A handshake record.
        assert_eq!(out[0], 22);
        assert!(channel.read(b"J\0\0\0\x0anot TLS", &mut out).is_err());
    }
}
