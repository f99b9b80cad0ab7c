//! Methods of routes.

use warp::{Filter, Rejection};

/// Matches GET and HEAD. The HTTP server omits the body of the response to a HEAD request.
pub fn get_or_head() -> impl Filter<Extract = (), Error = Rejection> + Copy {
    warp::get().or(warp::head()).unify()
}
