//! The layer around real clients, over a line that loses answers after the effect, in front of a service behind our own layer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(clippy::type_complexity, reason = "a service of a test has no name")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, Error as HyperError};
use hyper_util::rt::TokioExecutor;
use onlyonce::Onlyonce;
use onlyonce::store::memory::Memory;
use onlyonce_client::{Error, Retries};
use onlyonce_testkit::lossy::Lossy;
use tower::{Layer, Service, ServiceExt, service_fn};

const CALLS: usize = 20;

/// How often the work was done.
type Effects = Arc<AtomicUsize>;

/// A service behind the layer, and a line to it that loses every second answer.
async fn payments() -> (Lossy, Effects) {
    let effects = Effects::default();
    let counted = effects.clone();
    let pay = move || async move {
        (StatusCode::CREATED, format!("payment {}", counted.fetch_add(1, Ordering::SeqCst) + 1))
    };
    let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
    let router = Router::new().route("/payments", post(pay)).layer(onlyonce.layer());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lossy = Lossy::to(listener.local_addr().unwrap()).unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (lossy, effects)
}

fn quick() -> Retries {
    Retries::new().pause(Duration::from_millis(1), Duration::from_millis(20))
}

fn payment<Q: From<&'static str>>(address: SocketAddr) -> Request<Q> {
    let request = Request::post(format!("http://{address}/payments")).header("authorization", "Bearer ann");
    request.body(Q::from(r#"{"amount":1200}"#)).unwrap()
}

fn hyper() -> Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_line_that_loses_answers_n_calls_are_n_effects() {
    let (lossy, effects) = payments().await;
    let mut client = quick().layer(hyper());
    for number in 1..=CALLS {
        let answer = client.ready().await.unwrap().call(payment(lossy.address())).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!("payment {number}"));
    }
    assert_eq!(effects.load(Ordering::SeqCst), CALLS);
    assert!(lossy.lost() >= CALLS as u64 / 2, "{}", lossy.lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn reqwest_by_it() {
    let (lossy, effects) = payments().await;
    // Without its own retries, which know nothing of the key.
    let reqwest = reqwest::Client::builder().retry(reqwest::retry::never()).build().unwrap();
    let client = quick().layer(service_fn(move |request: Request<Bytes>| {
        let reqwest = reqwest.clone();
        async move { reqwest.execute(request.try_into()?).await.map(Response::<reqwest::Body>::from) }
    }));
    for _ in 0..CALLS {
        let answer = client.clone().oneshot(payment(lossy.address())).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    assert_eq!(effects.load(Ordering::SeqCst), CALLS);
    assert!(lossy.lost() >= CALLS as u64 / 2, "{}", lossy.lost());
}

/// What each try is answered with, and the keys that came.
fn scripted(
    answers: Vec<Response<Full<Bytes>>>,
) -> (
    impl Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = HyperError, Future: Send>
    + Clone
    + Send,
    Arc<Mutex<Vec<String>>>,
) {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = keys.clone();
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        let key = request.headers().get("idempotency-key").map_or("", |key| key.to_str().unwrap());
        seen.lock().unwrap().push(key.to_owned());
        let answer = answers.lock().unwrap().next().expect("no more tries than were planned");
        async move { Ok(answer) }
    });
    (service, keys)
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::builder().status(status).header("content-length", body.len());
    for (name, value) in headers {
        answer = answer.header(*name, *value);
    }
    answer.body(Full::from(body.to_owned())).unwrap()
}

const PROBLEM: (&str, &str) = ("content-type", "application/problem+json");

#[tokio::test(start_paused = true)]
async fn what_may_be_retried_is_retried_under_one_key_after_the_pause_that_was_asked_for() {
    let (service, keys) = scripted(vec![
        answer(
            409,
            &[PROBLEM, ("retry-after", "7")],
            r#"{"code":"idempotency_key_in_progress","retryable":true}"#,
        ),
        answer(503, &[PROBLEM], r#"{"code":"idempotency_store_unavailable","retryable":true}"#),
        answer(502, &[], ""),
        answer(201, &[], "done"),
    ]);
    let began = tokio::time::Instant::now();
    let done = Retries::new().layer(service).oneshot(payment(([127, 0, 0, 1], 1).into())).await.unwrap();
    assert_eq!(done.status(), 201);
    assert!(began.elapsed() >= Duration::from_secs(7), "{:?}", began.elapsed());
    let keys = keys.lock().unwrap();
    assert_eq!((keys.len(), keys[0].len()), (4, 32));
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_refused_is_not_sent_again_and_its_answer_is_whole() {
    let problem = r#"{"code":"idempotency_key_reused","retryable":false}"#;
    for refused in
        [answer(422, &[PROBLEM], problem), answer(409, &[PROBLEM], problem), answer(503, &[PROBLEM], problem)]
    {
        let status = refused.status();
        let (service, keys) = scripted(vec![refused]);
        let told = Retries::new().layer(service).oneshot(payment(([127, 0, 0, 1], 1).into())).await.unwrap();
        assert_eq!(told.status(), status);
        assert_eq!(told.into_body().collect().await.unwrap().to_bytes(), problem);
        assert_eq!(keys.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_the_request_is_kept_and_one_that_is_new_is_saved_before_anything_is_sent() {
    let saved = Arc::new(Mutex::new(Vec::new()));
    let noted = saved.clone();
    let retries = Retries::new().save_keys(move |request, key| {
        noted.lock().unwrap().push((request.uri().path().to_owned(), key.to_owned()));
        async { Ok(()) }
    });
    let (service, keys) = scripted(vec![answer(201, &[], ""), answer(201, &[], "")]);
    let mut client = retries.layer(service);
    let address = ([127, 0, 0, 1], 1).into();
    client.ready().await.unwrap().call(payment(address)).await.unwrap();
    let mut again: Request<Full<Bytes>> = payment(address);
    again.headers_mut().insert("idempotency-key", "from-before-the-restart".parse().unwrap());
    client.ready().await.unwrap().call(again).await.unwrap();
    let keys = keys.lock().unwrap();
    assert_eq!(*saved.lock().unwrap(), [("/payments".to_owned(), keys[0].clone())]);
    assert_eq!(keys[1], "from-before-the-restart");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_saved_is_not_sent() {
    let (service, keys) = scripted(vec![]);
    let retries = Retries::new().save_keys(|_, _| async { Err("the disk is full".into()) });
    let failed = retries.layer(service).oneshot(payment(([127, 0, 0, 1], 1).into())).await;
    assert!(matches!(&failed, Err(Error::NotSaved(why)) if why.to_string() == "the disk is full"));
    assert!(keys.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_and_names_the_key() {
    let nobody = service_fn(|_: Request<Full<Bytes>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, HyperError>>()
    });
    let retries = Retries::new().try_timeout(Duration::from_secs(2)).tries_max(3);
    let failed = retries.layer(nobody).oneshot(payment(([127, 0, 0, 1], 1).into())).await;
    let Err(error @ Error::TimedOut { .. }) = failed else { panic!("{failed:?}") };
    assert!(error.to_string().contains("send it again with the key "), "{error}");

    // A pause that would end too late is not waited for.
    let (service, _) = scripted(vec![answer(503, &[("retry-after", "600")], "")]);
    let began = tokio::time::Instant::now();
    let told = Retries::new().layer(service).oneshot(payment(([127, 0, 0, 1], 1).into())).await.unwrap();
    assert_eq!((told.status().as_u16(), began.elapsed().as_secs()), (503, 0));
}

#[tokio::test]
async fn a_method_without_a_key_passes_untouched() {
    let (service, keys) = scripted(vec![answer(503, &[], "")]);
    let request = Request::get("http://127.0.0.1:1/payments").body(Full::default()).unwrap();
    let told = Retries::new().layer(service).oneshot(request).await.unwrap();
    assert_eq!((told.status().as_u16(), keys.lock().unwrap().as_slice()), (503, &[String::new()][..]));
}
