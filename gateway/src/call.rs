//! Requests as routes see them.

use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;

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
