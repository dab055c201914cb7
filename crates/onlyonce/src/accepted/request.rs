//! The request of accepted work as bytes.
//!
//! A version byte, the version of HTTP, and then, each as a length of four bytes and so many bytes: method, target, route
//! (empty where it has no name), the name and the value of each header after their number, and the body.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

use crate::keyed::whole_uri;
use crate::service::Route;

const VERSION: u8 = 1;

/// The request of accepted work: what a handler, or a service behind the gateway, would have been given.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) route: Option<Arc<str>>,
    pub(crate) body: Bytes,
    version: Version,
    headers: HeaderMap,
}

impl Stored {
    /// A request as it came to the layer, in bytes.
    pub(crate) fn encoded(parts: &Parts, body: &Bytes) -> Bytes {
        let (uri, route) = (whole_uri(parts).to_string(), parts.extensions.get::<Route>());
        let mut out = BytesMut::with_capacity(body.len() + 1024);
        out.put_u8(VERSION);
        out.put_u8(u8::from(parts.version == Version::HTTP_2));
        put(&mut out, parts.method.as_str().as_bytes());
        put(&mut out, uri.as_bytes());
        put(&mut out, route.map_or(&[][..], |route| route.0.as_bytes()));
        out.put_u32(u32::try_from(parts.headers.len()).expect("a head is bounded"));
        for (name, value) in &parts.headers {
            put(&mut out, name.as_str().as_bytes());
            put(&mut out, value.as_bytes());
        }
        put(&mut out, body);
        out.freeze()
    }

    /// The request of these bytes; none where they are not of one.
    pub(crate) fn decoded(mut from: Bytes) -> Option<Self> {
        if from.try_get_u8().ok()? != VERSION {
            return None;
        }
        let version = if from.try_get_u8().ok()? == 0 { Version::HTTP_11 } else { Version::HTTP_2 };
        let method = Method::from_bytes(&take(&mut from)?).ok()?;
        let uri = Uri::from_maybe_shared(take(&mut from)?).ok()?;
        let route = take(&mut from)?;
        let route = std::str::from_utf8(&route).ok()?;
        let route = (!route.is_empty()).then(|| route.into());
        let mut headers = HeaderMap::new();
        for _ in 0..from.try_get_u32().ok()? {
            let name = HeaderName::from_bytes(&take(&mut from)?).ok()?;
            headers.append(name, HeaderValue::from_maybe_shared(take(&mut from)?).ok()?);
        }
        let body = take(&mut from)?;
        from.is_empty().then_some(Self { method, uri, route, body, version, headers })
    }

    pub(crate) fn parts(&self) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method.clone();
        parts.uri = self.uri.clone();
        parts.version = self.version;
        parts.headers = self.headers.clone();
        if let Some(route) = &self.route {
            parts.extensions.insert(Route(route.clone()));
        }
        parts
    }
}

fn put(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).expect("a keyed request has at most 1 GiB"));
    out.put_slice(bytes);
}

fn take(from: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(from.try_get_u32().ok()?).ok()?;
    (length <= from.len()).then(|| from.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request<()> {
        let request = Request::builder().method("PUT").uri("/a%2Fb?c=%20").version(Version::HTTP_2);
        let request = request.header("x-odd", HeaderValue::from_bytes(b"\xff\t ").unwrap());
        request.header("cookie", "a=1").header("cookie", "b=2").body(()).unwrap()
    }

    /// W07
    #[test]
    fn a_stored_request_is_the_request() {
        let (mut parts, ()) = request().into_parts();
        let body = Bytes::from_static(b"\x00\xff body");
        for route in [None, Some("PUT /a/*")] {
            parts.extensions.clear();
            parts.extensions.extend(route.map_or_else(http::Extensions::new, |route| {
                let mut extensions = http::Extensions::new();
                extensions.insert(Route(route.into()));
                extensions
            }));
            let stored = Stored::decoded(Stored::encoded(&parts, &body)).unwrap();
            assert_eq!((stored.route.as_deref(), &stored.body), (route, &body));
            let again = stored.parts();
            assert_eq!(
                (&again.method, &again.uri, again.version),
                (&parts.method, &parts.uri, parts.version)
            );
            assert_eq!(again.headers, parts.headers);
            assert_eq!(again.extensions.get::<Route>().map(|route| &*route.0), route);
        }
    }

    #[test]
    fn what_is_cut_off_changed_or_longer_is_no_request() {
        let whole = Stored::encoded(&request().into_parts().0, &Bytes::from_static(b"body"));
        for length in 0..whole.len() {
            assert!(Stored::decoded(whole.slice(..length)).is_none(), "{length} bytes");
        }
        let longer = [&whole[..], b"x"].concat();
        assert!(Stored::decoded(longer.into()).is_none());
        let newer = [&[VERSION + 1], &whole[1..]].concat();
        assert!(Stored::decoded(newer.into()).is_none());
        assert!(Stored::decoded(whole).is_some());
    }
}
