//! Command-line arguments and environment variables; no other module reads either.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use http::Uri;
use sahasra_service::{logging::LogFormat, tls::ServerName};

/// REST, and the byte streams of sessions, for clients outside the cluster. It has no rights: it acts with its callers' tokens.
#[derive(Clone, Debug, Parser)]
#[command(name = "sahasra-gateway", version)]
pub struct Args {
    /// Address to listen on. Without a certificate only loopback is possible.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8443")]
    pub listen: SocketAddr,
    /// Certificate chain, PEM; read again when it changes.
    #[arg(long, env = "SAHASRA_TLS_CERTIFICATE", requires = "tls_key", value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, PEM; read again when it changes.
    #[arg(long, env = "SAHASRA_TLS_KEY", requires = "tls_certificate", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// URL of the API server. When absent: that of KUBECONFIG's current context, without that context's user.
    #[arg(long, env = "SAHASRA_API_SERVER", value_name = "URL")]
    pub api_server: Option<Uri>,
    /// Certificates of the API server's authority, PEM; read again when they change.
    #[arg(long, env = "SAHASRA_API_SERVER_CA", requires = "api_server", value_name = "FILE")]
    pub api_server_ca: Option<PathBuf>,
    /// URL of the operator, for /workers.
    #[arg(long, env = "SAHASRA_OPERATOR", value_name = "URL")]
    pub operator: Option<Uri>,
    /// Certificates of the authority that workers' certificates are of, PEM; read again when they change. Needed where workers speak TLS.
    #[arg(long, env = "SAHASRA_WORKER_AUTHORITY", value_name = "FILE")]
    pub worker_authority: Option<PathBuf>,
    /// Name that a worker's certificate has to be for, where one certificate serves all of them; the host of its URL when absent.
    #[arg(long, env = "SAHASRA_WORKER_SERVER_NAME", requires = "worker_authority", value_name = "NAME", value_parser = server_name)]
    pub worker_server_name: Option<ServerName<'static>>,
    /// Connections at the same time, streams of sessions not counted; further ones wait.
    #[arg(long, env = "SAHASRA_MAX_CONNECTIONS", default_value_t = 1024, value_name = "N", value_parser = number)]
    pub max_connections: usize,
    /// Streams of sessions at the same time; further ones are told to try again.
    #[arg(long, env = "SAHASRA_MAX_STREAMS", default_value_t = 256, value_name = "N", value_parser = number)]
    pub max_streams: usize,
    /// Which events are logged, such as `info,sahasra_gateway=debug`.
    #[arg(long, env = "SAHASRA_LOG", default_value = "info", value_parser = sahasra_service::logging::filter)]
    pub log: String,
    /// Form of a log line.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// Parses a number of connections or streams: at least 1, and at most 2^20, which is within the range of a semaphore.
fn number(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 20;
    match text.parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => Err(format!("write a whole number from 1 to {MOST}")),
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned()).map_err(|_| "write a DNS name or an IP address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn a_certificate_needs_its_key_and_numbers_are_not_zero() {
        for wrong in [
            &["--tls-certificate", "a.pem"][..],
            &["--tls-key", "a.pem"],
            &["--max-streams", "0"],
            &["--api-server-ca", "a.pem"],
        ] {
            assert!(Args::try_parse_from([&["sahasra-gateway"], wrong].concat()).is_err(), "{wrong:?}");
        }
        assert!(Args::try_parse_from(["sahasra-gateway", "--tls-certificate", "a.pem", "--tls-key", "b.pem"]).is_ok());
    }
}
