//! The way of every request to a store over the network: only to hosts that are allowed, wherever a setting, a redirect or
//! a name server would lead it; and nothing that a store says when it refuses comes back with the error.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService},
};
use reqwest::{
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use url::Url;

use crate::endpoints::{Endpoints, Forbidden, is_local};

/// A store that does not take a connection by then is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A request with its body; what takes longer is tried again.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the clients of all stores that are opened with one policy: they share connections.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    endpoints: Endpoints,
    client: Arc<OnceLock<reqwest::Client>>,
}

impl Guard {
    pub(crate) fn new(endpoints: Endpoints) -> Self {
        Self {
            endpoints,
            client: Arc::default(),
        }
    }

    fn client(&self) -> Result<reqwest::Client, reqwest::Error> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // No store needs them, and where they lead is not checked.
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(Names::of(self.endpoints.clone())))
            .build()?;
        Ok(self.client.get_or_init(|| client).clone())
    }
}

impl HttpConnector for Guard {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let http = self.client().map_err(|source| object_store::Error::Generic {
            store: "HTTP client",
            source: source.into(),
        })?;
        let endpoints = self.endpoints.clone();
        Ok(HttpClient::new(Guarded { endpoints, http }))
    }
}

#[derive(Debug)]
struct Guarded {
    endpoints: Endpoints,
    http: reqwest::Client,
}

impl HttpService for Guarded {
    // As `async_trait` would write it.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let url = request.uri().to_string();
            let forbidden = |forbidden| HttpError::new(HttpErrorKind::Unknown, forbidden);
            let url = Url::parse(&url).map_err(|_| forbidden(Forbidden::Endpoint("of no URL".to_owned())))?;
            self.endpoints.check(&url).map_err(forbidden)?;
            let response = self.http.call(request).await?;
            if response.status().is_success() {
                return Ok(response);
            }
            // The status says what is to be said. The answer of a host that is no store is not shown to the user who named it.
            Ok(response.map(|_| HttpResponseBody::from(Bytes::new())))
        })
    }
}

/// Resolves names as this machine does; names that are not allowed as such never to what [`is_local`].
pub(crate) struct Names(Endpoints);

impl Names {
    pub(crate) fn of(endpoints: Endpoints) -> Self {
        Self(endpoints)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let named = self.0.names(name.as_str());
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.iter().copied().filter(|address| named || !is_local(address.ip())).collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(Forbidden::Local(host).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
