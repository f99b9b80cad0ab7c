//! WebSocket handshake with the client (RFC 6455 §4.2).

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sahasra_wire::session::{HELLO_HEADER, PROTOCOL, RESUME_HEADER};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::{refusal::Refusal, token::Token};

#[derive(Debug)]
pub(super) struct Handshake {
    /// Value of `Sec-WebSocket-Accept`.
    pub accept: HeaderValue,
    pub token: Token,
    pub opening: Opening,
}

/// Headers that are forwarded to the worker.
#[derive(Debug)]
pub(super) struct Opening {
    /// Secret to resume a broken stream, which the worker verifies.
    pub resume: Option<HeaderValue>,
    /// The client's first frame, which the worker may take from the request.
    pub hello: Option<HeaderValue>,
}

impl Handshake {
    /// Fails if the request is not a WebSocket handshake with this subprotocol, or has no token.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Refusal> {
        let has = |name: HeaderName, word: &str| list(headers, &name).any(|one| one.eq_ignore_ascii_case(word));
        if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
            return Err(Refusal::UpgradeRequired);
        }
        let field = |name: &str, problem: &str| Refusal::field(format!("header.{name}"), problem);
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(field("Sec-WebSocket-Version", "must be 13 (RFC 6455)"));
        }
        let key = headers
            .get(header::SEC_WEBSOCKET_KEY)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        if STANDARD.decode(key).map(|nonce| nonce.len()) != Ok(16) {
            return Err(field("Sec-WebSocket-Key", "must be 16 bytes in base64 (RFC 6455 §4.1)"));
        }
        if !list(headers, &header::SEC_WEBSOCKET_PROTOCOL).any(|offered| offered == PROTOCOL) {
            return Err(field("Sec-WebSocket-Protocol", "must offer sahasra-session.v1"));
        }
        let accept = HeaderValue::from_str(&derive_accept_key(key));
        // Both contain the secret of a broken stream.
        let secret = |name| {
            headers.get(name).cloned().map(|mut value: HeaderValue| {
                value.set_sensitive(true);
                value
            })
        };
        Ok(Self {
            accept: accept.map_err(|_| field("Sec-WebSocket-Key", "must be base64"))?,
            token: Token::of_websocket(headers, list(headers, &header::SEC_WEBSOCKET_PROTOCOL))?,
            opening: Opening {
                resume: secret(RESUME_HEADER),
                hello: secret(HELLO_HEADER),
            },
        })
    }
}

/// Elements of a comma-separated header, over all its lines.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> HeaderMap {
        let fields = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            (
                "sec-websocket-protocol",
                "base64url.bearer.authorization.k8s.io.YWJj, sahasra-session.v1",
            ),
        ];
        let field = |(name, value): (&'static str, &'static str)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        fields.into_iter().map(field).collect()
    }

    #[test]
    fn a_handshake_is_answered_as_the_rfc_has_it() {
        let handshake = Handshake::read(&head()).unwrap();
        assert_eq!(handshake.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(handshake.token.text(), "abc");
    }

    #[test]
    fn an_invalid_handshake_is_rejected_with_the_missing_part() {
        for (name, value, said) in [
            ("connection", "close", "connect with `Upgrade: websocket`"),
            ("upgrade", "h2c", "connect with `Upgrade: websocket`"),
            ("sec-websocket-version", "8", "header.Sec-WebSocket-Version"),
            ("sec-websocket-key", "short", "header.Sec-WebSocket-Key"),
            ("sec-websocket-protocol", "chat", "header.Sec-WebSocket-Protocol"),
            ("sec-websocket-protocol", "sahasra-session.v1", "no token"),
        ] {
            let mut headers = head();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            let refusal = Handshake::read(&headers).unwrap_err().to_string();
            assert!(refusal.contains(said), "{name}: {refusal}");
        }
    }
}
