//! The layer on plain hyper, without axum: a counter that is raised once for each key.
//!
//! The program serves on a free port, raises the counter twice with one key and once with another, prints what it saw
//! and stops cleanly. (xtask: run this example)
//!
//! ```text
//! cargo run --package onlyonce --example hyper
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use onlyonce::store::memory::Memory;
use onlyonce::{Attempt, Body, Onlyonce};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tower::{ServiceBuilder, service_fn};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(serve(listener, onlyonce, stopped));

    let first = raise(address, "one").await?;
    let again = raise(address, "one").await?;
    let other = raise(address, "two").await?;
    println!("first {first}, the same key again {again}, another key {other}");
    assert_eq!((first.as_str(), again.as_str(), other.as_str()), ("1", "1", "2"));

    drop(stop);
    serving.await?
}

/// Serves until it is told to stop, then finishes what is under way.
async fn serve(
    listener: TcpListener,
    onlyonce: Onlyonce,
    stopped: oneshot::Receiver<()>,
) -> Result<(), BoxError> {
    let counter = Arc::new(AtomicU64::new(0));
    let handler = service_fn(move |request| count(counter.clone(), request));
    let service = ServiceBuilder::new().layer(onlyonce.layer()).service(handler);
    let graceful = GracefulShutdown::new();
    tokio::pin!(stopped);
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            _ = &mut stopped => break,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(graceful.watch(connection));
    }
    graceful.shutdown().await;
    // Work may go on for clients that hung up.
    onlyonce.engine().idle().await;
    Ok(())
}

/// The handler: raises the counter. What it knows of its attempt is in the request's extensions.
async fn count(
    counter: Arc<AtomicU64>,
    request: Request<Body<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (number, status) = match (request.method(), request.extensions().get::<Attempt>()) {
        (&Method::POST, Some(_)) => (counter.fetch_add(1, Ordering::Relaxed) + 1, StatusCode::CREATED),
        _ => (counter.load(Ordering::Relaxed), StatusCode::OK),
    };
    let mut response = Response::new(Full::from(number.to_string()));
    *response.status_mut() = status;
    Ok(response)
}

async fn raise(address: SocketAddr, key: &str) -> Result<String, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::post(format!("http://{address}/counter"))
        .header("authorization", "Bearer ann")
        .header("idempotency-key", key)
        .body(Full::<Bytes>::default())?;
    let answer = client.request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(answer.to_vec())?)
}
