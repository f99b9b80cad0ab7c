//! Parses request paths. Every part of a path that is forwarded to the API server is validated here.

use http::Method;

use crate::refusal::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Session => "gpusessions",
            Self::Burst => "burstjobs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/healthz`, `/readyz`.
    Health,
    Metrics,
    OpenApi,
    Workers,
    Collection(Kind, String),
    /// Namespace and name.
    Object(Kind, String, String),
    /// Namespace and name of the burst.
    Results(String, String),
    /// Namespace and name of the session.
    Stream(String, String),
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
                let namespace = label(namespace)?;
                match (kind, below) {
                    (_, []) => Self::Collection(kind, namespace),
                    (_, [name]) => Self::Object(kind, namespace, subdomain(name)?),
                    (Kind::Burst, [name, "results"]) => Self::Results(namespace, subdomain(name)?),
                    (Kind::Session, [name, "stream"]) => Self::Stream(namespace, subdomain(name)?),
                    _ => return Err(Refusal::NoSuchPath),
                }
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
            Self::Collection(Kind::Session, _) | Self::Object(Kind::Session, ..) => "sessions",
            Self::Collection(Kind::Burst, _) | Self::Object(Kind::Burst, ..) => "bursts",
            Self::Results(..) => "results",
            Self::Stream(..) => "stream",
        }
    }
}

/// Parses a namespace: a DNS label (RFC 1123).
fn label(text: &str) -> Result<String, Refusal> {
    let problem = "a namespace has 1 to 63 lower-case letters, digits and dashes, no dash at its ends";
    if text.len() <= 63 && is_part(text) {
        Ok(text.to_owned())
    } else {
        Err(Refusal::field("path.namespace", problem))
    }
}

fn subdomain(text: &str) -> Result<String, Refusal> {
    let problem = "a name has 1 to 253 lower-case letters, digits, dashes and dots, letters or digits at its ends and beside dots";
    if is_subdomain(text) {
        Ok(text.to_owned())
    } else {
        Err(Refusal::field("path.name", problem))
    }
}

/// Whether the API server accepts the name of an object: a DNS subdomain (RFC 1123) whose total length is limited, but not the length of its
/// labels. So a name contains neither `..` nor percent escapes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(known) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn paths_are_parsed_to_their_routes() {
        let owned = str::to_owned;
        for (path, route) in [
            ("/healthz", Route::Health),
            ("/readyz", Route::Health),
            ("/workers", Route::Workers),
            ("/openapi.json", Route::OpenApi),
            ("/v1/namespaces/a/sessions", Route::Collection(Kind::Session, owned("a"))),
            ("/v1/namespaces/a/bursts/b.c", Route::Object(Kind::Burst, owned("a"), owned("b.c"))),
            ("/v1/namespaces/a/bursts/b/results", Route::Results(owned("a"), owned("b"))),
            ("/v1/namespaces/a/sessions/b/stream", Route::Stream(owned("a"), owned("b"))),
        ] {
            assert_eq!(Route::parse(path).unwrap(), route, "{path}");
        }
        assert!(Route::Workers.admits(&Method::POST).is_err());
        assert!(Route::Collection(Kind::Burst, owned("a")).admits(&Method::POST).is_ok());
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
            Route::Object(Kind::Session, name(), name()),
            Route::Object(Kind::Burst, name(), name()),
            Route::Results(name(), name()),
            Route::Stream(name(), name()),
        ];
        // No wildcard, so that a new route does not compile until it is added to the list above.
        let listed = |route: &Route| match route {
            Route::Health
            | Route::Metrics
            | Route::OpenApi
            | Route::Workers
            | Route::Collection(Kind::Session | Kind::Burst, _)
            | Route::Object(Kind::Session | Kind::Burst, ..)
            | Route::Results(..)
            | Route::Stream(..) => route.label(),
        };
        let labels: BTreeSet<&str> = routes.iter().map(listed).chain(["unmatched"]).collect();
        assert_eq!(labels, BTreeSet::from(Route::METRICS));
    }

    #[test]
    fn every_name_that_can_be_created_can_be_reached() {
        for name in ["y".repeat(64), "y".repeat(253), format!("{}.{}", "y".repeat(126), "z".repeat(126))] {
            let route = Route::parse(&format!("/v1/namespaces/a/sessions/{name}")).unwrap();
            assert_eq!(route, Route::Object(Kind::Session, "a".to_owned(), name));
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
