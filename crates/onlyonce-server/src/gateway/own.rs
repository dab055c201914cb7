//! Answers of the gateway itself: its own paths, and requests it cannot forward.
//!
//! Nothing under `/_onlyonce/` is ever forwarded to a service.

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION};
use http::{HeaderValue, Request, Response, StatusCode};
use onlyonce::asked_route;

use crate::problem;

const PREFIX: &str = "/_onlyonce";

/// The answer to a request on one of the gateway's own paths. `None` if it is for a service, or a query about a key, which
/// the layer answers. Webhooks have been taken before. The path is normalised.
pub(crate) fn answer<B>(request: &Request<B>) -> Option<Response<Bytes>> {
    if !is_own(request.uri().path()) || asked_route(request.method(), request.uri()).is_some() {
        return None;
    }
    Some(problem::plain(StatusCode::NOT_FOUND, "The gateway has nothing at this path."))
}

fn is_own(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// 400: the request cannot be forwarded.
pub(crate) fn bad_request(detail: &str) -> Response<Bytes> {
    problem::plain(StatusCode::BAD_REQUEST, detail)
}

/// The same, and the connection is closed: the bytes that follow may not be a request.
pub(crate) fn bad_request_and_close(detail: &str) -> Response<Bytes> {
    closing(bad_request(detail))
}

/// 408: the body did not arrive in time.
pub(crate) fn late() -> Response<Bytes> {
    let detail = "The request's body did not arrive in time. Nothing was run.";
    closing(problem::plain(StatusCode::REQUEST_TIMEOUT, detail))
}

/// 501: the body is in a coding that the gateway does not know.
pub(crate) fn unknown_coding() -> Response<Bytes> {
    let detail = "The request has a transfer coding other than chunked.";
    closing(problem::plain(StatusCode::NOT_IMPLEMENTED, detail))
}

fn closing(mut response: Response<Bytes>) -> Response<Bytes> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The gateway does not offer `CONNECT`.
pub(crate) fn no_tunnels() -> Response<Bytes> {
    let detail = "CONNECT is not supported.";
    let mut response = problem::plain(StatusCode::METHOD_NOT_ALLOWED, detail);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    closing(response)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn request(method: Method, uri: &str) -> Request<()> {
        Request::builder().method(method).uri(uri).body(()).unwrap()
    }

    #[test]
    fn nothing_under_our_own_path_is_for_a_service() {
        for path in [
            "/_onlyonce",
            "/_onlyonce/",
            "/_onlyonce/x",
            "/_onlyonce/keys",
            "/_onlyonce/keys/",
            "/_onlyonce/keys//response",
            "/_onlyonce/keys/k/other",
            "/_onlyonce/keys/a/b/response",
        ] {
            let answer = answer(&request(Method::GET, path)).unwrap();
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        }
        assert!(answer(&request(Method::POST, "/_onlyonce/keys/k")).is_some());
        for path in [
            "/",
            "/orders",
            "/_onlyoncex",
            "/a/_onlyonce/keys/k",
            "/_onlyonce/keys/k",
            "/_onlyonce/keys/k/response",
        ] {
            assert!(answer(&request(Method::GET, path)).is_none(), "{path}");
        }
    }

    #[test]
    fn a_question_may_name_its_route() {
        let asked = |uri| asked_route(&Method::GET, request(Method::GET, uri).uri());
        assert_eq!(asked("/_onlyonce/keys/k?route=POST%20/orders").unwrap(), "POST /orders");
        assert_eq!(asked("/_onlyonce/keys/k?a=1&route=POST+/orders/%2A").unwrap(), "POST /orders/*");
        assert_eq!(asked("/_onlyonce/keys/k").unwrap(), "");
        assert_eq!(asked("/orders?route=POST%20/orders"), None);
    }
}
