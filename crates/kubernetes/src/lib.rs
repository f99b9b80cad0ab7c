//! Client of the API server, for all processes of Sahasra.

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, DynBody, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, ServiceExt, retry::RetryLayer, util::BoxService};
use tower_http::{ServiceExt as _, trace::TraceLayer};

/// HTTP client for the API server, with the type that [`ClientBuilder::try_from`] uses.
pub type HttpService = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// Creates a builder with the layers of [`ClientBuilder::try_from`], over sockets with `TCP_NODELAY`.
///
/// Without `TCP_NODELAY` the first request on a new TLS connection waits about 40 ms: the server does not reply to the client's last
/// handshake message, so the kernel holds the request back until the server's delayed acknowledgement arrives. `kube` has no setting for
/// `TCP_NODELAY`.
pub fn client_builder(config: Config) -> kube::Result<ClientBuilder<HttpService>> {
    if config.proxy_url.is_some() {
        // `kube` connects to proxies by itself, and returns an error if it is built without that feature.
        return ClientBuilder::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);

    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(TraceLayer::new_for_http())
        .map_err(BoxError::from)
        .service(http)
        .map_response_body(|body| Box::new(BodyExt::map_err(body, BoxError::from)) as Box<DynBody>)
        .boxed();
    Ok(ClientBuilder::new(service, config.default_namespace))
}

pub fn client(config: Config) -> kube::Result<Client> {
    Ok(client_builder(config)?.build())
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The TLS layer above passes `https` URLs to this connector too.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn connections_send_without_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let stream = tcp().oneshot(url.parse().expect("a URL")).await.expect("connect");
        assert!(stream.inner().nodelay().expect("a socket option"));
    }

    #[tokio::test]
    async fn a_proxy_is_rejected_without_support_for_proxies() {
        let mut config = Config::new("https://127.0.0.1:1".parse().expect("a URL"));
        config.proxy_url = Some("socks5://127.0.0.1:2".parse().expect("a URL"));
        let error = client(config).err().expect("refused");
        assert!(error.to_string().contains("socks5"), "{error}");
    }
}
