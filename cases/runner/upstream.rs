//! U: the upstream service, which counts executions and follows orders.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::watch;

use super::data::Order;
use super::payload::{padding, unescaped};

/// The header with a request's step, which selects the order to follow.
pub(crate) const STEP: &str = "x-step";

const PANIC: &str = "panics on order";

#[derive(Default)]
pub(crate) struct Upstream {
    exec: AtomicUsize,
    orders: Mutex<HashMap<String, Order>>,
    gates: Mutex<HashMap<String, watch::Sender<bool>>>,
    seen: Mutex<Received>,
}

/// The last request U was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Upstream {
    pub(crate) fn exec(&self) -> usize {
        self.exec.load(Ordering::Acquire)
    }

    pub(crate) fn order(&self, step: &str, order: Order) {
        lock(&self.orders).insert(step.to_owned(), order);
    }

    pub(crate) fn order_of(&self, step: &str) -> Order {
        lock(&self.orders).get(step).cloned().unwrap_or_default()
    }

    pub(crate) fn received(&self) -> Received {
        lock(&self.seen).clone()
    }

    pub(crate) fn open(&self, gate: &str) {
        self.gate(gate).send_replace(true);
    }

    fn gate(&self, gate: &str) -> watch::Sender<bool> {
        lock(&self.gates).entry(gate.to_owned()).or_insert_with(|| watch::channel(false).0).clone()
    }

    /// Executes, counts, and answers as ordered.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let step = parts.headers.get(STEP).and_then(|step| step.to_str().ok()).unwrap_or_default();
        let order = self.order_of(step);
        let Ok(body) = body.collect().await else {
            // The client disconnected in the middle of its body: a service would not have begun.
            return Response::builder().status(400).body(Body::empty()).expect("a fixed answer");
        };
        *lock(&self.seen) = Received { headers: parts.headers, body: body.to_bytes() };
        let number = self.exec.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(gate) = &order.hold {
            let mut gate = self.gate(gate).subscribe();
            gate.wait_for(|open| *open).await.expect("the gates outlive the requests");
        }
        assert!(!order.panic, "{PANIC}");
        answer(&order, number)
    }
}

/// The default answer names the execution: a second one is never taken for a replay.
fn answer(order: &Order, number: usize) -> Response<Body> {
    let bytes = match &order.body {
        Some(body) => body.bytes(|text| text.replace("{n}", &number.to_string())),
        None if matches!(order.status, Some(204 | 205 | 304)) => Vec::new(),
        None => format!(r#"{{"order":{number},"state":"placed"}}"#).into_bytes(),
    };
    let mut response = Response::new(body(order, bytes.into()));
    *response.status_mut() = order.status.unwrap_or(201).try_into().expect("an ordered status is a status");
    let headers = response.headers_mut();
    for (name, value) in order.headers.iter().cloned().chain(padding(order.pad_headers)) {
        let name: HeaderName = name.parse().expect("an ordered header has a name");
        headers.append(
            name,
            HeaderValue::from_bytes(&unescaped(&value)).expect("an ordered header has a value"),
        );
    }
    if order.status.is_none() {
        headers.append(LOCATION, HeaderValue::from_str(&format!("/orders/{number}")).expect("a number"));
    }
    if !headers.contains_key(CONTENT_TYPE) && !matches!(order.status, Some(204 | 205 | 304)) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}

fn body(order: &Order, bytes: Bytes) -> Body {
    if let Some(length) = order.break_after {
        let part = bytes.slice(..length.min(bytes.len()));
        let pieces = [Ok(part), Err(std::io::Error::other("breaks off on order"))];
        return Body::from_stream(stream::iter(pieces));
    }
    if order.trailers.is_empty() {
        return Body::from(bytes);
    }
    let mut trailers = HeaderMap::new();
    for (name, value) in &order.trailers {
        let name: HeaderName = name.parse().expect("an ordered trailer has a name");
        trailers.append(name, value.parse().expect("an ordered trailer has a value"));
    }
    let frames = [Ok::<_, Infallible>(Frame::data(bytes)), Ok(Frame::trailers(trailers))];
    Body::new(StreamBody::new(stream::iter(frames)))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // An ordered panic poisons the lock; the case continues.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Silences ordered panics, whose backtraces would hide real failures.
pub(crate) fn keep_ordered_panics_quiet() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PANIC) {
            tell(panic);
        }
    }));
}

/// U where it is shared by handlers.
pub(crate) type Shared = Arc<Upstream>;
