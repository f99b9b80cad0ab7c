//! The certificate of a server, verified by the fingerprint in the server's token before the token is sent.

use std::{io, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use sahasra_client::SERVER_NAME;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{self, CryptoProvider},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

use crate::token;

/// Characters of a line in PEM (RFC 7468 §2).
const LINE: usize = 64;

/// Accepts the certificate with this fingerprint alone.
#[derive(Debug)]
struct Fingerprint {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Fingerprint {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if token::fingerprint(certificate).eq_ignore_ascii_case(&self.fingerprint) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the certificate of the server at `HOST:PORT` in PEM, if it has this fingerprint.
///
/// # Errors
/// The reason, with a remedy.
pub(super) async fn of_server(authority: &str, fingerprint: &str) -> Result<String, String> {
    let provider = Arc::new(crypto::ring::default_provider());
    let verifier = Fingerprint {
        fingerprint: fingerprint.to_owned(),
        provider: provider.clone(),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = ServerName::try_from(SERVER_NAME).map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(authority)
        .await
        .map_err(|error| format!("failed to connect: {error}: {}", super::REACH))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| explained(&error))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    certificates
        .first()
        .map(|certificate| pem(certificate))
        .ok_or_else(|| "the server has no certificate".to_owned())
}

fn explained(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            "this is not the server of the token, or it has new credentials: use the token that the server at this address has now"
                .to_owned()
        }
        Some(Error::InvalidMessage(_)) => "the server does not use TLS: check that it is sahasra serve".to_owned(),
        _ => format!("TLS handshake failed: {error}: check that the server is sahasra serve"),
    }
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines: Vec<&str> = (0..text.len())
        .step_by(LINE)
        .map(|at| &text[at..text.len().min(at + LINE)])
        .collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use sahasra_local::Certificate;

    use super::*;

    #[test]
    fn a_certificate_is_written_as_it_was_generated() {
        let certificate = Certificate::for_name(SERVER_NAME).unwrap();
        let written = pem(&certificate.der().unwrap());
        assert_eq!(written, certificate.certificate.replace("\r\n", "\n"));
    }
}
