//! What the gateway answers itself: its own paths, and requests it cannot pass on.
//!
//! Nothing under `/_onlyonce/` ever goes to a service.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::path::octet;

const PREFIX: &str = "/_onlyonce";
const KEYS: &str = "keys/";

/// The answer to a request on one of the gateway's own paths. None where it is for a service, or a question about a key,
/// which the layer answers. The path is normalised.
pub(crate) fn answer<B>(request: &Request<B>) -> Option<Response<Bytes>> {
    let own = own_path(request.uri().path())?;
    if is_question(request.method(), own) {
        return None;
    }
    Some(problem(StatusCode::NOT_FOUND, "Not Found", "There is nothing at this path of the gateway itself."))
}

/// What stands behind `/_onlyonce/`, where the path is one of ours.
fn own_path(path: &str) -> Option<&str> {
    match path.strip_prefix(PREFIX)? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    }
}

/// `GET keys/{key}` or `keys/{key}/response`.
fn is_question(method: &Method, own: &str) -> bool {
    let Some(rest) = own.strip_prefix(KEYS) else { return false };
    let key = rest.strip_suffix("/response").unwrap_or(rest);
    matches!(*method, Method::GET | Method::HEAD) && !key.is_empty() && !key.contains('/')
}

/// The route that a question about a key names, where it is one: `?route=POST%20/orders`.
pub(crate) fn asked_route<B>(request: &Request<B>) -> Option<String> {
    let own = own_path(request.uri().path())?;
    if !is_question(request.method(), own) {
        return None;
    }
    let query = request.uri().query().unwrap_or_default();
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("route="));
    Some(asked.map(decoded).unwrap_or_default())
}

/// Text of a query. What is no escape stands for itself.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped =
            tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(octet) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A request that is not HTTP as we can pass it on.
pub(crate) fn bad_request(detail: &str) -> Response<Bytes> {
    problem(StatusCode::BAD_REQUEST, "Bad Request", detail)
}

/// The same, and nothing more is read from this client's connection: what follows may not be a request.
pub(crate) fn bad_request_and_close(detail: &str) -> Response<Bytes> {
    let mut response = bad_request(detail);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A tunnel to somewhere else is not what a gateway is for.
pub(crate) fn no_tunnels() -> Response<Bytes> {
    let detail = "The gateway opens no tunnels: CONNECT is not supported.";
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", detail);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A problem of HTTP itself, which no code of ours is about.
fn problem(status: StatusCode, title: &str, detail: &str) -> Response<Bytes> {
    let body = serde_json::json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
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
        let asked = |uri| asked_route(&request(Method::GET, uri));
        assert_eq!(asked("/_onlyonce/keys/k?route=POST%20/orders").unwrap(), "POST /orders");
        assert_eq!(asked("/_onlyonce/keys/k?a=1&route=POST+/orders/%2A").unwrap(), "POST /orders/*");
        assert_eq!(asked("/_onlyonce/keys/k").unwrap(), "");
        assert_eq!(asked("/orders?route=POST%20/orders"), None);
    }
}
