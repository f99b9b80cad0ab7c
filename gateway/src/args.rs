//! Command-line arguments and environment variables; no other module reads either.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use http::Uri;
use sahasra_service::{args::server_name, logging::LogFormat, tls::ServerName};

/// Default limit of the streams of sessions.
pub(crate) const MAX_STREAMS: usize = 256;

/// REST API and streams of sessions for clients outside the cluster. Has no rights of its own: it acts with its callers' tokens.
#[derive(Clone, Debug, Parser)]
#[command(name = "sahasra-gateway", version)]
pub struct Args {
    /// Address to listen on. Without a certificate it must be a loopback address.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Certificate chain in PEM; enables TLS. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_TLS_CERT_FILE", requires = "tls_private_key_file", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate in PEM. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_TLS_PRIVATE_KEY_FILE", requires = "tls_cert_file", value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// URL of the API server [default: that of the current context of KUBECONFIG, without the context's user].
    #[arg(long, env = "SAHASRA_API_SERVER_URL", value_parser = absolute_url, value_name = "URL")]
    pub api_server_url: Option<Uri>,
    /// CA of the API server's certificate in PEM. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_API_SERVER_CA_FILE", requires = "api_server_url", value_name = "FILE")]
    pub api_server_ca_file: Option<PathBuf>,
    /// URL of the operator, for /workers.
    #[arg(long, env = "SAHASRA_OPERATOR_URL", value_name = "URL")]
    pub operator_url: Option<Uri>,
    /// CA of the workers' certificates in PEM, required if workers use TLS. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_WORKER_CA_FILE", value_name = "FILE")]
    pub worker_ca_file: Option<PathBuf>,
    /// Name in the workers' certificate, if one certificate serves all of them [default: the host of the worker's URL].
    #[arg(long, env = "SAHASRA_WORKER_SERVER_NAME", requires = "worker_ca_file", value_name = "NAME", value_parser = server_name)]
    pub worker_server_name: Option<ServerName<'static>>,
    /// Maximum number of connections, not counting streams of sessions. Further connections wait.
    #[arg(long, env = "SAHASRA_MAX_CONNECTIONS", default_value_t = 1024, value_name = "N", value_parser = number)]
    pub max_connections: usize,
    /// Maximum number of streams of sessions. Further streams are rejected.
    #[arg(long, env = "SAHASRA_MAX_STREAMS", default_value_t = MAX_STREAMS, value_name = "N", value_parser = number)]
    pub max_streams: usize,
    /// Level or filter of the log, such as `info` or `info,sahasra_gateway=debug`.
    #[arg(long, env = "SAHASRA_LOG_LEVEL", default_value = "info", value_parser = sahasra_service::logging::filter, value_name = "FILTER")]
    pub log_level: String,
    /// Format of the log.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// Parses a number of connections or streams: at least 1, and at most 2^20, which is within the range of a semaphore.
fn number(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 20;
    match text.parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => Err(format!("expected a whole number from 1 to {MOST}")),
    }
}

fn absolute_url(text: &str) -> Result<Uri, String> {
    let url = text.parse::<Uri>().ok();
    let url = url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
    url.ok_or_else(|| "expected a URL such as https://kubernetes.default.svc".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        assert_eq!(sahasra_contract::options::deviating_variables(&Args::command()), [""; 0]);
    }

    #[test]
    fn a_certificate_needs_its_key_and_numbers_are_not_zero() {
        for wrong in [
            &["--tls-cert-file", "a.pem"][..],
            &["--tls-private-key-file", "a.pem"],
            &["--max-streams", "0"],
            &["--api-server-ca-file", "a.pem"],
            &["--api-server-url", "127.0.0.1:6443"],
        ] {
            assert!(Args::try_parse_from([&["sahasra-gateway"], wrong].concat()).is_err(), "{wrong:?}");
        }
        assert!(Args::try_parse_from(["sahasra-gateway", "--tls-cert-file", "a.pem", "--tls-private-key-file", "b.pem"]).is_ok());
    }
}
