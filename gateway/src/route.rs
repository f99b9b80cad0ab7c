//! The heads of requests as routes see them, and their paths. Every part of a path that is forwarded to the API server is validated here.

use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;
use sahasra_names::{is_dns_label, is_dns_subdomain};

use crate::refusal::Refusal;

pub(crate) const API_VERSION: &str = "sahasra.dev/v1alpha1";

/// Head of a request without its path.
#[derive(Debug)]
pub(crate) struct Call {
    pub method: Method,
    /// Empty if there is none.
    pub query: String,
    pub headers: HeaderMap,
    /// Connection of the client, if the request may upgrade it, which only HTTP/1.1 requests can.
    pub upgrade: Option<OnUpgrade>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Session,
    Burst,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "GpuSession",
            Self::Burst => "BurstJob",
        }
    }

    /// Path at the API server of the objects in a namespace.
    pub(crate) fn path(self, namespace: &str) -> String {
        let plural = match self {
            Self::Session => "gpusessions",
            Self::Burst => "burstjobs",
        };
        format!("/apis/{API_VERSION}/namespaces/{namespace}/{plural}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Object {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.kind.path(&self.namespace), self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Metrics,
    OpenApi,
    Workers,
    Collection(Kind, String),
    Object(Object),
    Results(Object),
    /// Connection between a client and the executor of this session.
    Stream(Object),
}

impl Route {
    pub(crate) fn parse(path: &str) -> Result<Self, Refusal> {
        let mut parts = path.strip_prefix('/').ok_or(Refusal::NoSuchPath)?.split('/');
        let first = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        let route = match (first, &rest[..]) {
            ("healthz" | "readyz", []) => Self::Health,
            ("metrics", []) => Self::Metrics,
            ("openapi.json", []) => Self::OpenApi,
            ("workers", []) => Self::Workers,
            ("v1", ["namespaces", namespace, kind, below @ ..]) => {
                let kind = match *kind {
                    "sessions" => Kind::Session,
                    "bursts" => Kind::Burst,
                    _ => return Err(Refusal::NoSuchPath),
                };
                if !is_dns_label(namespace) {
                    return Err(Refusal::field("path.namespace", NAMESPACE));
                }
                let namespace = (*namespace).to_owned();
                let [name, part @ ..] = below else {
                    return Ok(Self::Collection(kind, namespace));
                };
                let route = match (kind, part) {
                    (_, []) => Self::Object,
                    (Kind::Burst, ["results"]) => Self::Results,
                    (Kind::Session, ["stream"]) => Self::Stream,
                    _ => return Err(Refusal::NoSuchPath),
                };
                if !is_dns_subdomain(name) {
                    return Err(Refusal::field("path.name", NAME));
                }
                let name = (*name).to_owned();
                route(Object { kind, namespace, name })
            }
            _ => return Err(Refusal::NoSuchPath),
        };
        Ok(route)
    }

    pub(crate) fn admits(&self, method: &Method) -> Result<(), Refusal> {
        let allowed = match self {
            Self::Collection(..) => "GET, POST",
            Self::Object(..) => "GET, DELETE",
            _ => "GET",
        };
        if allowed.split(", ").any(|one| one == method.as_str()) {
            Ok(())
        } else {
            Err(Refusal::MethodNotAllowed { allowed })
        }
    }

    /// Every label of a route in metrics: those of [`Route::label`], and `unmatched` for unknown paths.
    pub(crate) const METRICS: [&'static str; 9] = [
        "health",
        "metrics",
        "openapi",
        "workers",
        "sessions",
        "bursts",
        "results",
        "stream",
        "unmatched",
    ];

    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::OpenApi => "openapi",
            Self::Workers => "workers",
            Self::Collection(kind, _) | Self::Object(Object { kind, .. }) => match kind {
                Kind::Session => "sessions",
                Kind::Burst => "bursts",
            },
            Self::Results(..) => "results",
            Self::Stream(..) => "stream",
        }
    }
}

const NAMESPACE: &str = "a namespace has 1 to 63 lower-case letters, digits and dashes, no dash at its ends";
const NAME: &str = "a name has 1 to 253 lower-case letters, digits, dashes and dots, letters or digits at its ends and beside dots";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn object(kind: Kind, name: String) -> Object {
        let namespace = "a".to_owned();
        Object { kind, namespace, name }
    }

    #[test]
    fn paths_are_parsed_to_their_routes() {
        let object = |kind, name: &str| object(kind, name.to_owned());
        for (path, route) in [
            ("/healthz", Route::Health),
            ("/readyz", Route::Health),
            ("/workers", Route::Workers),
            ("/openapi.json", Route::OpenApi),
            ("/v1/namespaces/a/sessions", Route::Collection(Kind::Session, "a".to_owned())),
            ("/v1/namespaces/a/bursts/b.c", Route::Object(object(Kind::Burst, "b.c"))),
            ("/v1/namespaces/a/bursts/b/results", Route::Results(object(Kind::Burst, "b"))),
            ("/v1/namespaces/a/sessions/b/stream", Route::Stream(object(Kind::Session, "b"))),
        ] {
            assert_eq!(Route::parse(path).unwrap(), route, "{path}");
        }
        assert!(Route::Workers.admits(&Method::POST).is_err());
        assert!(Route::Collection(Kind::Burst, "a".to_owned()).admits(&Method::POST).is_ok());
    }

    #[test]
    fn the_labels_of_metrics_are_those_of_all_routes() {
        let name = || "a".to_owned();
        let routes = [
            Route::Health,
            Route::Metrics,
            Route::OpenApi,
            Route::Workers,
            Route::Collection(Kind::Session, name()),
            Route::Collection(Kind::Burst, name()),
            Route::Object(object(Kind::Session, name())),
            Route::Object(object(Kind::Burst, name())),
            Route::Results(object(Kind::Burst, name())),
            Route::Stream(object(Kind::Session, name())),
        ];
        // No wildcard, so that a new route does not compile until it is added to the list above.
        let listed = |route: &Route| match route {
            Route::Health
            | Route::Metrics
            | Route::OpenApi
            | Route::Workers
            | Route::Collection(Kind::Session | Kind::Burst, _)
            | Route::Object(_)
            | Route::Results(_)
            | Route::Stream(_) => route.label(),
        };
        let labels: BTreeSet<&str> = routes.iter().map(listed).chain(["unmatched"]).collect();
        assert_eq!(labels, BTreeSet::from(Route::METRICS));
    }

    #[test]
    fn every_name_that_can_be_created_can_be_reached() {
        for name in ["y".repeat(64), "y".repeat(253), format!("{}.{}", "y".repeat(126), "z".repeat(126))] {
            let route = Route::parse(&format!("/v1/namespaces/a/sessions/{name}")).unwrap();
            assert_eq!(route, Route::Object(object(Kind::Session, name)));
        }
        assert!(Route::parse(&format!("/v1/namespaces/a/sessions/{}", "y".repeat(254))).is_err());
        assert!(Route::parse(&format!("/v1/namespaces/{}/sessions", "y".repeat(64))).is_err());
    }

    #[test]
    fn no_name_leads_to_another_path() {
        for path in [
            "",
            "/",
            "/v1",
            "/v1/namespaces",
            "/v1/namespaces/a/secrets",
            "/v1/namespaces/a/sessions/",
            "/v1/namespaces/a/sessions/b/results",
            "/v1/namespaces/a/bursts/b/stream",
            "/v1/namespaces/../sessions",
            "/v1/namespaces/a/sessions/..",
            "/v1/namespaces/a/sessions/%2e%2e",
            "/v1/namespaces/a/sessions/b%2fstatus",
            "/v1/namespaces/a/sessions/b?watch",
            "/v1/namespaces/A/sessions/b",
            "//healthz",
        ] {
            assert!(Route::parse(path).is_err(), "{path}");
        }
    }
}
