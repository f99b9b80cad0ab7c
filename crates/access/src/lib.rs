//! Authorisation of callers by the API server.
//!
//! ```text
//! request's token ─► Access::check_stream ─► cache (seconds) ─► SelfSubjectAccessReview, sent with that same token ─► API server
//! ```
//!
//! The process that checks needs no rights and has none: the review is sent with the caller's token, so the API server authenticates the
//! caller, and its authoriser (usually RBAC) decides. A server without rights of its own cannot be tricked into actions that its caller
//! could not do directly.
//!
//! The embedded control plane of `sahasra up` has a single token: the check is a comparison with it ([`Access::token`]).

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Client, Config, config::AuthInfo};
use lru::LruCache;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::{Instant, timeout};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time for which an allowed verdict is cached, so that a client that connects many times causes one review.
const YES_HOLDS: Duration = Duration::from_secs(5);
/// Time for which a rejection is cached: short, so that a new Role takes effect soon.
const NO_HOLDS: Duration = Duration::from_secs(1);
/// Time for which the user name of a token is cached.
const CALLER_HOLDS: Duration = Duration::from_secs(60);
/// Maximum number of entries of each cache. An entry takes about a hundred bytes.
const MAX_ANSWERS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Maximum length of a token in bytes. A service account's token has about 1 KiB.
const MAX_TOKEN: usize = 16 << 10;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The texts are safe to return to the caller.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The request has no bearer token, or a malformed one.
    #[error("no token: send the header `Authorization: Bearer TOKEN`")]
    NoToken,
    #[error("invalid token: it is unknown, or it has expired")]
    UnknownToken,
    #[error("not allowed to create gpusessions/stream of sahasra.dev ({namespace}/{session}): a Role must allow it{}", in_brackets(.reason))]
    Forbidden {
        namespace: String,
        session: String,
        /// The API server's reason; often empty.
        reason: String,
    },
    /// The review failed or its response was invalid, so there is no verdict.
    #[error("failed to check the permission with the API server: retry")]
    Unavailable(#[source] Box<kube::Error>),
    #[error("timed out after {} s while checking the permission with the API server: retry", ANSWER_WITHIN.as_secs())]
    Timeout,
    /// There is no API server: every request is rejected ([`Access::deny_all`]).
    #[error("this agent runs with --no-kubernetes and rejects session streams: start it without that flag")]
    NoApiServer,
}

fn in_brackets(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(" ({reason})"),
    }
}

impl AccessError {
    /// HTTP status: 401, 403 or 503.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::UnknownToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::Unavailable(_) | Self::Timeout | Self::NoApiServer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The token of a request's `Authorization: Bearer`.
pub fn bearer(headers: &HeaderMap) -> Result<&str, AccessError> {
    let value = headers.get(header::AUTHORIZATION).ok_or(AccessError::NoToken)?;
    let text = value.to_str().map_err(|_| AccessError::NoToken)?;
    let (scheme, token) = text.split_once(' ').ok_or(AccessError::NoToken)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AccessError::NoToken);
    }
    Ok(token)
}

/// Authorises callers. Cheap to clone; clones share their caches.
#[derive(Clone, Debug)]
pub struct Access(Authority);

#[derive(Clone)]
enum Authority {
    ApiServer(Arc<Reviews>),
    Token(Arc<str>),
    DenyAll,
}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the token.
        formatter.write_str(match self {
            Self::ApiServer(_) => "ApiServer",
            Self::Token(_) => "Token",
            Self::DenyAll => "DenyAll",
        })
    }
}

struct Reviews {
    client: Client,
    verdicts: Cache<Verdict>,
    callers: Cache<Arc<str>>,
}

/// Values that are kept for a while, by a digest: the cache holds no tokens.
struct Cache<V>(Mutex<LruCache<[u8; 32], (Instant, V)>>);

impl<V: Clone> Cache<V> {
    fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_ANSWERS)))
    }

    fn get(&self, key: &[u8; 32]) -> Option<V> {
        let mut entries = self.0.lock();
        let (_, value) = entries.get(key).filter(|(until, _)| *until > Instant::now())?;
        Some(value.clone())
    }

    fn insert(&self, key: [u8; 32], value: V, holds: Duration) {
        self.0.lock().put(key, (Instant::now() + holds, value));
    }
}

#[derive(Clone, Debug)]
enum Verdict {
    Allowed,
    Forbidden(String),
    UnknownToken,
}

impl Access {
    /// Authorises callers by reviews at the API server of `config`. Uses the address and the certificate authority of `config`, and drops
    /// its credentials.
    pub fn of_api_server(mut config: Config) -> Result<Self, kube::Error> {
        config.auth_info = AuthInfo::default();
        // Headers could carry credentials or impersonation: only the program's name stays.
        config.headers.retain(|(name, _)| name == header::USER_AGENT);
        config.connect_timeout = Some(ANSWER_WITHIN);
        Ok(Self(Authority::ApiServer(Arc::new(Reviews {
            client: sahasra_kubernetes::client(config)?,
            verdicts: Cache::new(),
            callers: Cache::new(),
        }))))
    }

    /// Allows every action to a caller with this token, for a control plane with a single identity.
    pub fn token(token: impl Into<Arc<str>>) -> Self {
        Self(Authority::Token(token.into()))
    }

    /// Rejects every caller, for a process without an API server.
    pub fn deny_all() -> Self {
        Self(Authority::DenyAll)
    }

    /// Checks that the caller with `token` may open the stream of a session: `create` on `gpusessions/stream`. Verdicts are cached for a few
    /// seconds.
    pub async fn check_stream(&self, token: &str, namespace: &str, session: &str) -> Result<(), AccessError> {
        if token.is_empty() {
            return Err(AccessError::NoToken);
        }
        match &self.0 {
            Authority::DenyAll => Err(AccessError::NoApiServer),
            Authority::Token(wanted) if is_same(token.as_bytes(), wanted.as_bytes()) => Ok(()),
            Authority::Token(_) => Err(AccessError::UnknownToken),
            Authority::ApiServer(reviews) => match reviews.verdict(token, namespace, session).await? {
                Verdict::Allowed => Ok(()),
                Verdict::UnknownToken => Err(AccessError::UnknownToken),
                Verdict::Forbidden(reason) => Err(AccessError::Forbidden {
                    namespace: namespace.to_owned(),
                    session: session.to_owned(),
                    reason,
                }),
            },
        }
    }

    /// Name under which the streams of the token's user are counted; not for authorisation. `None` if there is a single identity.
    pub async fn caller(&self, token: &str) -> Result<Option<Arc<str>>, AccessError> {
        match &self.0 {
            Authority::ApiServer(reviews) => reviews.caller(token).await.map(Some),
            Authority::Token(_) | Authority::DenyAll => Ok(None),
        }
    }
}

/// Compares two byte strings in constant time: the duration depends only on the lengths.
pub fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

/// Cache key of a review. A digest, so that the cache holds no tokens.
fn key(token: &str, namespace: &str, session: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    for field in [token, namespace, session] {
        digest.update((field.len() as u64).to_le_bytes());
        digest.update(field);
    }
    digest.finalize().into()
}

impl Reviews {
    async fn verdict(&self, token: &str, namespace: &str, session: &str) -> Result<Verdict, AccessError> {
        let key = key(token, namespace, session);
        if let Some(verdict) = self.verdicts.get(&key) {
            return Ok(verdict);
        }
        let verdict = timeout(ANSWER_WITHIN, self.ask(token, namespace, session))
            .await
            .map_err(|_| AccessError::Timeout)??;
        let holds = if matches!(verdict, Verdict::Allowed) { YES_HOLDS } else { NO_HOLDS };
        self.verdicts.insert(key, verdict.clone(), holds);
        Ok(verdict)
    }

    async fn ask(&self, token: &str, namespace: &str, session: &str) -> Result<Verdict, AccessError> {
        let Some(authorization) = authorization(token) else {
            return Ok(Verdict::UnknownToken);
        };
        let some = |text: &str| Some(text.to_owned());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: some("create"),
                    group: some("sahasra.dev"),
                    resource: some("gpusessions"),
                    subresource: some("stream"),
                    namespace: some(namespace),
                    name: some(session),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let request = request(REVIEWS, authorization, &review)?;
        match self.client.request::<SelfSubjectAccessReview>(request).await {
            Ok(review) => {
                let status = review.status.unwrap_or_default();
                Ok(match status.allowed && status.denied != Some(true) {
                    true => Verdict::Allowed,
                    false => Verdict::Forbidden(status.reason.unwrap_or_default()),
                })
            }
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(Verdict::UnknownToken),
            // The API server forbids self-reviews.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Verdict::Forbidden(status.message)),
            Err(error) => Err(AccessError::Unavailable(Box::new(error))),
        }
    }

    async fn caller(&self, token: &str) -> Result<Arc<str>, AccessError> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(name) = self.callers.get(&key) {
            return Ok(name);
        }
        let Some(authorization) = authorization(token) else {
            return Err(AccessError::UnknownToken);
        };
        let request = request(WHO, authorization, &SelfSubjectReview::default())?;
        let asked = timeout(ANSWER_WITHIN, self.client.request::<SelfSubjectReview>(request)).await;
        let name = match asked.map_err(|_| AccessError::Timeout)? {
            Ok(review) => review.status.and_then(|status| status.user_info?.username),
            Err(kube::Error::Api(status)) if status.code == 401 => return Err(AccessError::UnknownToken),
            // Self-reviews of users require Kubernetes 1.28 and may be forbidden. In both cases each token counts as a user of its own.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => None,
            Err(error) => return Err(AccessError::Unavailable(Box::new(error))),
        };
        let name: Arc<str> = name.map_or_else(|| format!("token {key:x?}"), |name| format!("user {name}")).into();
        self.callers.insert(key, name.clone(), CALLER_HOLDS);
        Ok(name)
    }
}

/// The header `Authorization` with the token, or `None` if the token is too long or invalid in a header.
fn authorization(token: &str) -> Option<HeaderValue> {
    let mut authorization = HeaderValue::from_str(&format!("Bearer {token}"))
        .ok()
        .filter(|_| token.len() <= MAX_TOKEN)?;
    authorization.set_sensitive(true);
    Some(authorization)
}

fn request(path: &str, authorization: HeaderValue, review: &impl serde::Serialize) -> Result<Request<Vec<u8>>, AccessError> {
    let unavailable = |error| AccessError::Unavailable(Box::new(error));
    let body = serde_json::to_vec(review).map_err(|error| unavailable(kube::Error::SerdeError(error)))?;
    Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, authorization)
        .body(body)
        .map_err(|error| unavailable(kube::Error::HttpError(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn with_a_single_token_only_that_token_is_allowed() {
        let access = Access::token("secret");
        access.check_stream("secret", "team", "mine").await.unwrap();
        for wrong in ["secreT", "secret2", "s"] {
            let error = access.check_stream(wrong, "team", "mine").await.unwrap_err();
            assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{wrong}");
        }
        let error = access.check_stream("", "team", "mine").await.unwrap_err();
        assert_eq!(error.status(), StatusCode::UNAUTHORIZED);
        let error = Access::deny_all().check_stream("secret", "team", "mine").await.unwrap_err();
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(error.to_string().contains("--no-kubernetes"), "the remedy: {error}");
        assert!(!format!("{access:?}").contains("secret"));
    }

    #[test]
    fn a_token_follows_the_word_bearer() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
        assert_eq!(bearer(&headers("Bearer abc")).unwrap(), "abc");
        assert_eq!(bearer(&headers("bearer  abc ")).unwrap(), "abc");
        for wrong in ["abc", "Basic abc", "Bearer", "Bearer ", ""] {
            assert!(matches!(bearer(&headers(wrong)), Err(AccessError::NoToken)), "{wrong}");
        }
        assert!(matches!(bearer(&HeaderMap::new()), Err(AccessError::NoToken)));
    }

    #[test]
    fn different_questions_have_different_keys() {
        assert_ne!(key("a", "team", "mine"), key("a", "tea", "mmine"));
        assert_ne!(key("a", "team", "mine"), key("b", "team", "mine"));
    }

    #[test]
    fn a_rejection_names_the_rejected_action() {
        let error = AccessError::Forbidden {
            namespace: "team".to_owned(),
            session: "mine".to_owned(),
            reason: String::new(),
        };
        let text = "not allowed to create gpusessions/stream of sahasra.dev (team/mine): a Role must allow it";
        assert_eq!(error.to_string(), text);
    }
}
