//! Reads the body of a request into memory, within limits of size and time.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyDataStream, BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::time::timeout;

use crate::{drain::drain, refusal::Refusal};

/// Reads a body of at most `limit` bytes, or fails with [`Refusal::TooLarge`], [`Refusal::TooSlow`] or [`Refusal::BrokenBody`].
pub(crate) async fn whole(
    headers: &HeaderMap,
    body: impl Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    limit: usize,
    within: Duration,
) -> Result<Bytes, Refusal> {
    let too_large = Refusal::TooLarge { limit };
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mut body = pin!(body);
    if length.is_some_and(|length| length > limit as u64) {
        // A client that sent `Expect: 100-continue` waits for the answer and has not sent the body.
        if !headers.contains_key(header::EXPECT) {
            drain(BodyDataStream::new(body)).await;
        }
        return Err(too_large);
    }
    match timeout(within, Limited::new(body.as_mut(), limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            drain(BodyDataStream::new(body)).await;
            Err(too_large)
        }
        Ok(Err(_)) => Err(Refusal::BrokenBody),
        Err(_) => Err(Refusal::TooSlow { seconds: within.as_secs() }),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures::stream;
    use http::HeaderValue;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    const LIMIT: usize = 8;

    /// Reads a body of these pieces with these headers. Returns the outcome and the number of pieces taken.
    async fn read(headers: &[(header::HeaderName, &'static str)], pieces: &[Option<&'static str>]) -> (Result<Bytes, Refusal>, usize) {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let taken = AtomicUsize::new(0);
        let pieces = pieces.iter().map(|piece| {
            taken.fetch_add(1, Ordering::Relaxed);
            let piece = piece.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok::<_, io::Error>(Frame::data(Bytes::from_static(piece.as_bytes())))
        });
        let outcome = whole(
            &headers.collect(),
            StreamBody::new(stream::iter(pieces)),
            LIMIT,
            Duration::from_secs(1),
        )
        .await;
        (outcome, taken.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_content_length_beyond_the_limit_is_rejected() {
        let large = [(header::CONTENT_LENGTH, "9")];
        let broken = read(&large, &[Some("1234"), None]).await;
        assert!(matches!(broken, (Err(Refusal::TooLarge { limit: LIMIT }), 2)), "{broken:?}");
        let drained = read(&large, &[Some("123456789"), Some("more"), Some("and more")]).await;
        assert!(matches!(drained, (Err(Refusal::TooLarge { .. }), 3)), "{drained:?}");
        let [length] = large;
        let waits = read(&[length, (header::EXPECT, "100-continue")], &[Some("123456789")]).await;
        assert!(matches!(waits, (Err(Refusal::TooLarge { .. }), 0)), "{waits:?}");
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_read_up_to_the_limit_and_the_rest_is_drained() {
        let (body, _) = read(&[], &[Some("1234"), Some("5678")]).await;
        assert_eq!(body.expect("it is within the limit"), "12345678");
        let drained = read(&[], &[Some("12345678"), Some("9"), Some("more")]).await;
        assert!(matches!(drained, (Err(Refusal::TooLarge { .. }), 3)), "{drained:?}");
        let broken = read(&[], &[Some("1234"), None]).await;
        assert!(matches!(broken, (Err(Refusal::BrokenBody), 2)), "{broken:?}");
    }
}
