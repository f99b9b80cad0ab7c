//! Responses of routes.

use std::error::Error;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyDataStream, BodyExt};
use hyper::body::Body;
use sync_wrapper::SyncStream;
use warp::Reply;

pub type Answer = warp::reply::Response;

pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    whole(status, "text/plain; charset=utf-8", text.into())
}

pub fn json(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    whole(status, "application/json", text.into())
}

pub(crate) fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Answer::new(body.into());
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    answer
}

/// Converts a response whose body is sent as it arrives. Its length is announced if it is known.
pub fn stream(response: Response<impl Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static>) -> Answer {
    let (mut head, body) = response.into_parts();
    let body = match body.size_hint().exact() {
        Some(0) => Bytes::new().into(),
        length => {
            if let Some(length) = length {
                head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
            let pieces = BodyDataStream::new(body.map_err(Into::into).boxed_unsync());
            warp::reply::stream(SyncStream::new(pieces)).into_response().into_body()
        }
    };
    Answer::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    #[tokio::test]
    async fn a_streamed_body_has_a_length_if_it_is_known() {
        let body = Full::new(Bytes::from_static(b"known"));
        let known = stream(Response::builder().status(201).body(body).unwrap());
        assert_eq!(known.status(), 201);
        assert_eq!(known.headers()[header::CONTENT_LENGTH], "5");
        assert_eq!(known.into_body().collect().await.unwrap().to_bytes(), "known");
        let pieces = ["un", "known"].map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes()))));
        let unknown = stream(Response::new(StreamBody::new(futures::stream::iter(pieces))));
        assert!(!unknown.headers().contains_key(header::CONTENT_LENGTH));
        assert_eq!(unknown.into_body().collect().await.unwrap().to_bytes(), "unknown");
        let empty = stream(Response::new(Full::<Bytes>::default()));
        assert!(empty.body().is_end_stream());
    }
}
