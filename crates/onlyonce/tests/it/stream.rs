//! Large and streamed answers and requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use onlyonce::{Onlyonce, Policy};
use tower::ServiceExt;

use crate::world::{Answer, FaultyStore, order};

const LIMIT: u64 = 1000;

/// An app whose handler answers with `make`, and the number of its runs.
fn app(make: fn() -> Response) -> (Router, Arc<AtomicUsize>) {
    let policy = Policy { response_bytes_max: LIMIT, request_bytes_max: LIMIT, ..Policy::default() };
    let onlyonce = Onlyonce::new(FaultyStore::new()).with_policy(policy).unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = post(move |_body: Body| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { make() }
    });
    (Router::new().route("/orders", handler).layer(onlyonce.layer()), runs)
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    Answer::of(app.clone().oneshot(request).await.unwrap()).await
}

fn chunks(chunks: Vec<Result<Frame<Bytes>, Infallible>>) -> Body {
    Body::new(StreamBody::new(futures_util::stream::iter(chunks)))
}

async fn is_sent_whole_and_never_runs_again(make: fn() -> Response, length: usize) {
    let (app, runs) = app(make);
    let first = send(&app, order("k")).await;
    assert_eq!((first.status, first.body.len()), (200, length));
    assert_eq!(first.header("idempotency-stored"), Some("false"));
    let again = send(&app, order("k")).await;
    assert_eq!(again.summary(), "409 idempotency_response_not_stored");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// P08
#[tokio::test]
async fn an_answer_of_known_length_above_the_limit_is_sent_whole_and_not_kept() {
    is_sent_whole_and_never_runs_again(|| vec![7_u8; 5000].into_response(), 5000).await;
}

/// P08
#[tokio::test]
async fn an_answer_that_turns_out_too_large_is_sent_whole_and_not_kept() {
    let make =
        || chunks((0..50).map(|_| Ok(Frame::data(Bytes::from_static(&[7; 100])))).collect()).into_response();
    is_sent_whole_and_never_runs_again(make, 5000).await;
}

/// P08
#[tokio::test]
async fn an_answer_with_too_many_headers_is_sent_whole_and_not_kept() {
    let make = || {
        let mut response = "small".into_response();
        for _ in 0..60 {
            response.headers_mut().append("x-large", HeaderValue::from_static("12345678901234567890"));
        }
        response
    };
    is_sent_whole_and_never_runs_again(make, 5).await;
}

/// P08: an event stream may never end, so the client has its head before its end.
#[tokio::test]
async fn an_event_stream_begins_at_once_and_is_not_kept() {
    let (app, _) = app(|| {
        let pending = futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>();
        ([("content-type", "text/event-stream; charset=utf-8")], Body::new(StreamBody::new(pending)))
            .into_response()
    });
    let response = app.clone().oneshot(order("k")).await.unwrap();
    assert_eq!(response.headers()["idempotency-stored"], "false");
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_response_not_stored");
}

/// P08: bytes without their trailers would not be the same answer.
#[tokio::test]
async fn an_answer_with_trailers_passes_whole_and_is_not_kept() {
    let (app, _) = app(|| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("9"));
        chunks(vec![Ok(Frame::data(Bytes::from_static(b"data"))), Ok(Frame::trailers(trailers))])
            .into_response()
    });
    let response = app.clone().oneshot(order("k")).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "9");
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_response_not_stored");
}

/// P01: up to the limit, in however many pieces.
#[tokio::test]
async fn an_answer_in_pieces_is_kept_whole() {
    let (app, runs) =
        app(|| chunks((0..9).map(|n| Ok(Frame::data(Bytes::from(vec![n; 100])))).collect()).into_response());
    let first = send(&app, order("k")).await;
    let again = send(&app, order("k")).await;
    assert!(again.is_replay());
    assert_eq!((first.body.len(), &again.body), (900, &first.body));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// U03
#[tokio::test]
async fn an_answer_that_breaks_off_leaves_the_outcome_unknown() {
    let (app, runs) = app(|| {
        let frames: Vec<Result<Frame<Bytes>, std::io::Error>> =
            vec![Ok(Frame::data(Bytes::from_static(b"half"))), Err(std::io::Error::other("broke off"))];
        Body::new(StreamBody::new(futures_util::stream::iter(frames))).into_response()
    });
    assert_eq!(send(&app, order("k")).await.summary(), "502 upstream_outcome_unknown");
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// L01
#[tokio::test]
async fn a_request_above_the_limit_is_refused_before_any_store_work() {
    let store = FaultyStore::new();
    let policy = Policy { request_bytes_max: LIMIT, ..Policy::default() };
    let onlyonce = Onlyonce::new(store.clone()).with_policy(policy).unwrap();
    let handler = post(|body: Bytes| async move { body.len().to_string() });
    let app = Router::new().route("/orders", handler).layer(onlyonce.layer());
    let large = || vec![b'x'; 2000];
    let streamed = || chunks(vec![Ok(Frame::data(large().into()))]);
    let keyed = |body| crate::world::post("k").body(body).unwrap();
    for body in [Body::from(large()), streamed()] {
        assert_eq!(send(&app, keyed(body)).await.summary(), "413 idempotency_body_too_large");
    }
    let declared = crate::world::post("k").header("content-length", "2000").body(streamed()).unwrap();
    assert_eq!(send(&app, declared).await.summary(), "413 idempotency_body_too_large");
    assert_eq!(store.writes(), 0);
    let unkeyed = Request::post("/orders").body(streamed()).unwrap();
    assert_eq!(send(&app, unkeyed).await.text(), "2000", "without a key there is no limit of ours");
}

/// R01
#[tokio::test]
async fn a_request_that_breaks_off_reserves_nothing() {
    let store = FaultyStore::new();
    let onlyonce = Onlyonce::new(store.clone());
    let app = Router::new().route("/orders", post(|| async { "ran" })).layer(onlyonce.layer());
    let frames: Vec<Result<Frame<Bytes>, std::io::Error>> =
        vec![Ok(Frame::data(Bytes::from_static(b"half"))), Err(std::io::Error::other("broke off"))];
    let broken = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let request = crate::world::post("k").body(broken).unwrap();
    assert_eq!(send(&app, request).await.status, 400);
    assert_eq!(store.writes(), 0);
}

/// L06: while a large body is read, others on the same thread go on.
#[tokio::test]
async fn a_large_body_is_read_on_another_thread() {
    let onlyonce = Onlyonce::new(FaultyStore::new());
    let app = Router::new().route("/orders", post(|| async { "ran" })).layer(onlyonce.layer());
    let json = |members: usize| {
        let members: Vec<String> =
            (0..members).rev().map(|number| format!("\"\\u0061{number}\":1e-{number}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let keyed = |key: &str, members| {
        let request = crate::world::post(key).header("content-type", "application/json");
        app.clone().oneshot(request.body(Body::from(json(members))).unwrap())
    };
    let mut small = Box::pin(keyed("small", 3));
    let std::task::Poll::Ready(answered) = futures_util::poll!(small.as_mut()) else {
        panic!("a store in memory answers at once, and so does the handler");
    };
    assert_eq!(answered.unwrap().status(), 200);
    let mut large = Box::pin(keyed("large", 30_000));
    assert!(futures_util::poll!(large.as_mut()).is_pending(), "this thread is free");
    assert_eq!(large.await.unwrap().status(), 200);
    assert!(Answer::of(keyed("large", 30_000).await.unwrap()).await.is_replay());
}

/// L06
#[tokio::test]
async fn a_request_that_there_is_no_room_for_is_refused_before_any_store_work() {
    let store = FaultyStore::new();
    let onlyonce = Onlyonce::new(store.clone());
    onlyonce.engine().bound_buffered_bytes(1000);
    let app = Router::new().route("/orders", post(|| async { "ran" })).layer(onlyonce.layer());
    let keyed = |bytes| crate::world::post("k").body(Body::from(vec![b'x'; bytes])).unwrap();
    let refused = send(&app, keyed(1001)).await;
    assert_eq!(refused.summary(), "429 idempotency_limit_reached");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(store.writes(), 0);
    for _ in 0..3 {
        assert_eq!(send(&app, keyed(1000)).await.status, 200, "what was held is given back");
    }
}
