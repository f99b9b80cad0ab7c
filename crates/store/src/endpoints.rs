//! Allowed endpoints of object stores, against server-side request forgery.
//!
//! A job's Secret chooses the store's settings, endpoint included, and data that is read there is shown to the job's
//! user. So requests go only to the clouds' own stores and to endpoints that the administrator allows. This machine, link-local
//! addresses and metadata services, which hand out an instance's credentials, have to be allowed by their exact names.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use url::{Host, Url};

/// A pattern of allowed endpoints: `https://minio.storage.svc:9000`, `https://*.example.com`, `http://*:*`. Without a port it is the
/// scheme's default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    scheme: String,
    host: HostPattern,
    /// Allowed port; `None` matches any port (`:*`).
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Exactly(String),
    /// All subdomains of this domain, at any depth, but not the domain itself.
    Below(String),
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid endpoint {0:?}: expected http:// or https://, a host, *.domain or *, and a port or * if it is not the scheme's")]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(text.to_owned());
        let (scheme, rest) = text
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
            .ok_or_else(wrong)?;
        let (rest, any_port) = rest.strip_suffix(":*").map_or((rest, false), |rest| (rest, true));
        // The URL parser validates hosts, but does not accept wildcards.
        let (plain, wild) = match rest.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => (rest[1..].to_owned(), true),
            Some(rest) if rest.is_empty() || rest.starts_with(':') => (format!("any{rest}"), true),
            Some(_) => return Err(wrong()),
            None => (rest.to_owned(), false),
        };
        let url = Url::parse(&format!("{scheme}://{plain}")).map_err(|_| wrong())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        let host = url
            .host_str()
            .filter(|_| bare && !plain.ends_with('/'))
            .ok_or_else(wrong)?
            .to_owned();
        let host = match (wild, rest.starts_with("*.")) {
            (true, true) => HostPattern::Below(host),
            (true, false) => HostPattern::Any,
            _ => HostPattern::Exactly(host),
        };
        let port = if any_port { None } else { url.port_or_known_default() };
        Ok(Self {
            scheme: scheme.to_owned(),
            host,
            port,
        })
    }
}

impl Endpoint {
    fn allows(&self, url: &Url) -> bool {
        let host = match (&self.host, url.host_str()) {
            (HostPattern::Exactly(allowed), Some(host)) => allowed == host,
            (HostPattern::Below(domain), Some(host)) => host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.')),
            (HostPattern::Any, Some(_)) => true,
            (_, None) => false,
        };
        host && url.scheme() == self.scheme && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
    }
}

/// The endpoints for a process that runs one user's jobs with that user's rights: every host and port, `localhost`, 127.0.0.1 and `::1`.
/// Link-local addresses and metadata services stay forbidden.
pub fn of_own_machine() -> Vec<Endpoint> {
    ["*", "localhost", "127.0.0.1", "[::1]"]
        .into_iter()
        .flat_map(|host| [format!("http://{host}:*"), format!("https://{host}:*")])
        .map(|endpoint| endpoint.parse().expect("the constants are endpoints"))
        .collect()
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The URL is neither that of a cloud's own store nor matches an allowed endpoint. Contains the URL's origin.
    #[error(
        "the endpoint {0} is not allowed: the administrator allows endpoints with stores.allowedEndpoints of the chart (--allowed-store-endpoints)"
    )]
    Endpoint(String),
    /// The URL's host is this machine, a link-local address or a metadata service, and is not allowed by its exact name. Contains the host.
    #[error(
        "the host {0} is local, link-local or a metadata service: stores.allowedEndpoints of the chart (--allowed-store-endpoints) must name it"
    )]
    Local(String),
}

/// The endpoints that are allowed in addition to the clouds' own stores. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(Arc<Vec<Endpoint>>);

impl FromIterator<Endpoint> for Endpoints {
    fn from_iter<T: IntoIterator<Item = Endpoint>>(endpoints: T) -> Self {
        Self(Arc::new(endpoints.into_iter().collect()))
    }
}

impl Endpoints {
    /// Checks scheme, host and port of a URL. The addresses of a host name are checked later, when it is resolved. The error contains neither
    /// path nor query, which may hold credentials.
    pub fn check(&self, url: &Url) -> Result<(), Forbidden> {
        let origin = || url.origin().ascii_serialization();
        let host = url.host_str().unwrap_or_default();
        if !is_of_a_cloud(url) && !self.0.iter().any(|endpoint| endpoint.allows(url)) {
            return Err(Forbidden::Endpoint(origin()));
        }
        let local = match url.host() {
            Some(Host::Ipv4(address)) => is_local(address.into()),
            Some(Host::Ipv6(address)) => is_local(address.into()),
            Some(Host::Domain(name)) => is_local_name(name),
            None => true,
        };
        if local && !self.names(host) {
            return Err(Forbidden::Local(host.to_owned()));
        }
        Ok(())
    }

    /// Whether a host is allowed by its exact name: it may then resolve to any address.
    pub(crate) fn names(&self, host: &str) -> bool {
        let is_named = |endpoint: &Endpoint| matches!(&endpoint.host, HostPattern::Exactly(allowed) if allowed == host);
        self.0.iter().any(is_named)
    }
}

/// Whether a host name is of this machine or of a metadata service.
fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost") || name == "metadata" || name == "metadata.google.internal"
}

/// Whether an address is loopback, unspecified, link-local, broadcast, multicast, or of a cloud's metadata service.
pub(crate) fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
                // Alibaba Cloud's metadata service, Azure's host of instances.
                || matches!(address.octets(), [100, 100, 100, 200] | [168, 63, 129, 16])
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_local(mapped.into()),
            None => {
                address.is_loopback()
                    || address.is_unspecified()
                    || address.is_multicast()
                    || address.segments()[0] & 0xffc0 == 0xfe80
                    // AWS's metadata service.
                    || address.segments() == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
            }
        },
    }
}

/// Whether a URL is of a cloud's own object store, or of the service that exchanges a job's keys for tokens.
fn is_of_a_cloud(url: &Url) -> bool {
    let Some(Host::Domain(host)) = url.host() else { return false };
    if url.scheme() != "https" || url.port_or_known_default() != Some(443) {
        return false;
    }
    let below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    // The last label before the domain's is a region. The service precedes it, and buckets precede the service.
    let s3 = |domain: &str| {
        below(domain)
            && host
                .split('.')
                .any(|label| label == "s3" || label.starts_with("s3-") || label.starts_with("s3express-"))
    };
    s3("amazonaws.com")
        || s3("amazonaws.com.cn")
        || matches!(host, "storage.googleapis.com" | "oauth2.googleapis.com")
        || below("storage.googleapis.com")
        || below("blob.core.windows.net")
        || below("dfs.core.windows.net")
        || below("blob.fabric.microsoft.com")
        || below("dfs.fabric.microsoft.com")
        || host == "login.microsoftonline.com"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(allowed: &[&str]) -> Endpoints {
        allowed.iter().map(|endpoint| endpoint.parse::<Endpoint>().unwrap()).collect()
    }

    fn check(allowed: &[&str], url: &str) -> Result<(), Forbidden> {
        endpoints(allowed).check(&Url::parse(url).unwrap())
    }

    #[test]
    fn by_default_only_the_clouds_own_stores_are_allowed() {
        for url in [
            "https://s3.eu-central-1.amazonaws.com/bucket/a",
            "https://bucket.s3.eu-central-1.amazonaws.com/a",
            "https://s3.cn-north-1.amazonaws.com.cn/bucket",
            "https://storage.googleapis.com/bucket/a",
            "https://oauth2.googleapis.com/token",
            "https://account.blob.core.windows.net/container",
            "https://login.microsoftonline.com/tenant/oauth2/v2.0/token",
        ] {
            assert_eq!(check(&[], url), Ok(()), "{url}");
        }
        for url in [
            "http://s3.eu-central-1.amazonaws.com/bucket",
            "https://s3.eu-central-1.amazonaws.com:8443/bucket",
            "https://sts.amazonaws.com/",
            "https://s3.evil.com/#.amazonaws.com",
            "https://notamazonaws.com/s3",
            "https://minio.storage.svc:9000/",
            "http://169.254.169.254/latest/meta-data/",
            "http://127.0.0.1:8080/",
            "http://kubernetes.default.svc/",
            "ftp://storage.googleapis.com/",
        ] {
            assert!(check(&[], url).is_err(), "{url}");
        }
    }

    #[test]
    fn an_endpoint_is_allowed_with_its_scheme_and_port_only() {
        let allowed = ["https://minio.storage.svc:9000", "http://10.0.0.7:*", "https://*.example.com"];
        for url in [
            "https://minio.storage.svc:9000/bucket",
            "https://MINIO.storage.svc:9000",
            "http://10.0.0.7:1234/",
            "http://10.0.0.7/",
            "https://a.b.example.com/",
        ] {
            assert_eq!(check(&allowed, url), Ok(()), "{url}");
        }
        for url in [
            "http://minio.storage.svc:9000/",
            "https://minio.storage.svc/",
            "https://10.0.0.7/",
            "https://example.com/",
            "https://badexample.com/",
            "https://a.example.com:8443/",
        ] {
            assert!(matches!(check(&allowed, url), Err(Forbidden::Endpoint(_))), "{url}");
        }
    }

    #[test]
    fn this_machine_and_metadata_services_must_be_named() {
        let everything = ["http://*:*", "https://*:*"];
        for url in [
            "http://127.0.0.1:9000/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://localhost/",
            "http://a.localhost/",
            "http://169.254.169.254/",
            "http://[::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0/",
            "http://100.100.100.200/",
            "http://metadata.google.internal/",
        ] {
            assert!(matches!(check(&everything, url), Err(Forbidden::Local(_))), "{url}");
        }
        assert_eq!(check(&everything, "http://10.1.2.3/"), Ok(()));
        assert_eq!(check(&["http://127.0.0.1:9000"], "http://127.0.0.1:9000/"), Ok(()));
        let own = of_own_machine().into_iter().collect::<Endpoints>();
        for url in [
            "http://localhost:9000/",
            "http://[::1]:9000/",
            "https://127.0.0.1/",
            "http://minio.lan/",
        ] {
            assert_eq!(own.check(&Url::parse(url).unwrap()), Ok(()), "{url}");
        }
        assert!(own.check(&Url::parse("http://169.254.169.254/").unwrap()).is_err());
    }

    #[test]
    fn a_rejection_contains_neither_path_nor_query() {
        let refusal = check(&[], "https://user:secret@evil.com/secret?sig=secret")
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("https://evil.com") && !refusal.contains("secret"), "{refusal}");
    }

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        let exactly = |host: &str| HostPattern::Exactly(host.to_owned());
        for (text, scheme, host, port) in [
            ("https://a.b", "https", exactly("a.b"), Some(443)),
            ("http://a:9000", "http", exactly("a"), Some(9000)),
            ("https://*.b", "https", HostPattern::Below("b".to_owned()), Some(443)),
            ("http://*", "http", HostPattern::Any, Some(80)),
            ("https://*:*", "https", HostPattern::Any, None),
            ("http://a:*", "http", exactly("a"), None),
            ("http://[::1]:9000", "http", exactly("[::1]"), Some(9000)),
            ("http://10.0.0.1", "http", exactly("10.0.0.1"), Some(80)),
        ] {
            let scheme = scheme.to_owned();
            assert_eq!(text.parse(), Ok(Endpoint { scheme, host, port }), "{text}");
        }
        for text in [
            "a.b",
            "s3://bucket",
            "https://",
            "https://a/b",
            "https://a/",
            "https://*a",
            "https://u@a",
            "https://a?b",
            "https://a:b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
