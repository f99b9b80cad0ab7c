//! Bearer token of a caller: taken from its request, forwarded, and never stored.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};

use crate::refusal::Refusal;

/// Prefix of a WebSocket subprotocol that carries a token, followed by the token in unpadded base64url, as kube-apiserver defines it.
/// Browsers can set subprotocols of a WebSocket but no headers.
pub const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The caller's token, as a value for `Authorization`. The value is marked as sensitive, so `Debug` does not show it.
#[derive(Clone, Debug)]
pub(crate) struct Token(HeaderValue);

impl Token {
    fn new(token: &[u8]) -> Result<Self, Refusal> {
        // Syntax of `b64token`, RFC 6750 §2.1.
        let known = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=:".contains(byte);
        if token.is_empty() || !token.iter().all(known) {
            return Err(Refusal::NoSuchToken);
        }
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).map_err(|_| Refusal::NoSuchToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the token in the `Authorization` header of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let given = headers.get(header::AUTHORIZATION).ok_or(Refusal::NoToken)?.as_bytes();
        match given.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Self::new(token.trim_ascii()),
            _ => Err(Refusal::NoToken),
        }
    }

    /// Returns the token of a WebSocket handshake: from its `Authorization` header, or else from a subprotocol.
    pub(crate) fn of_websocket<'a>(headers: &HeaderMap, mut subprotocols: impl Iterator<Item = &'a str>) -> Result<Self, Refusal> {
        if headers.contains_key(header::AUTHORIZATION) {
            return Self::of(headers);
        }
        let encoded = subprotocols
            .find_map(|protocol| protocol.strip_prefix(SUBPROTOCOL))
            .ok_or(Refusal::NoToken)?;
        let token = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| Refusal::NoSuchToken)?;
        Self::new(&token)
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// Text of the token, without `Bearer`.
    pub(crate) fn text(&self) -> &str {
        let value = self.0.to_str().unwrap_or_default();
        value.strip_prefix("Bearer ").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_token_is_read_from_the_header_or_a_subprotocol() {
        for given in ["Bearer abc.def", "bearer abc.def", "BEARER  abc.def "] {
            assert_eq!(Token::of(&headers(given)).unwrap().text(), "abc.def");
        }
        for wrong in ["", "Basic abc", "Bearer", "Bearer ", "Bearer a b", "Bearer a\"b"] {
            assert!(Token::of(&headers(wrong)).is_err(), "{wrong}");
        }
        // The second value ends with "abc.def" in base64url.
        let offered = ["sahasra-session.v1", "base64url.bearer.authorization.k8s.io.YWJjLmRlZg"];
        assert_eq!(
            Token::of_websocket(&HeaderMap::new(), offered.into_iter()).unwrap().text(),
            "abc.def"
        );
        assert_eq!(
            Token::of_websocket(&headers("Bearer other"), offered.into_iter()).unwrap().text(),
            "other"
        );
        assert!(Token::of_websocket(&HeaderMap::new(), ["sahasra-session.v1"].into_iter()).is_err());
        assert!(Token::of_websocket(&HeaderMap::new(), ["base64url.bearer.authorization.k8s.io.!"].into_iter()).is_err());
        assert_eq!(format!("{:?}", Token::of(&headers("Bearer secret")).unwrap()), "Token(Sensitive)");
    }
}
