//! The router called without sockets, in one thread: for a profiler, and for counting instructions.
//!
//! ```text
//! bench-probe plain  REQUESTS
//! bench-probe fresh  REQUESTS
//! bench-probe replay REQUESTS
//! ```
//!
//! `plain` is the handler alone, `fresh` has it behind the layer on the memory engine with a new key for each request,
//! `replay` has one key. Prints nanoseconds a request; the difference of two runs of different length, divided by the
//! difference of their requests, is what one request costs without the start of the process.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use onlyonce::Onlyonce;
use onlyonce::store::memory::Memory;
use tower_service::Service;

const BODY: &str = include_str!("../../workload/body.json");

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, requests] = arguments.as_slice() else {
        return Err(io::Error::other("too few arguments; see the head of bench/probe/src/main.rs"));
    };
    let requests: u64 = requests.parse().map_err(io::Error::other)?;
    let plain = bench_plain::payments();
    // It is never taken down: freeing what was stored is no part of a request.
    let onlyonce = Box::leak(Box::new(Onlyonce::new(Arc::new(Memory::new()))));
    let layered = || plain.clone().layer(onlyonce.layer());
    let nanoseconds = match verb.as_str() {
        "plain" => run(plain, requests, |number| number).await,
        "fresh" => run(layered(), requests, |number| number).await,
        "replay" => run(layered(), requests, |_| 0).await,
        other => {
            return Err(io::Error::other(format!("no such verb \"{other}\"; use plain, fresh or replay")));
        }
    };
    println!("{verb}: {} ns a request", nanoseconds / u128::from(requests.max(1)));
    Ok(())
}

async fn run(mut router: Router, requests: u64, key: impl Fn(u64) -> u64) -> u128 {
    let started = Instant::now();
    for number in 0..requests {
        let request = Request::post("/payments")
            .header("host", "127.0.0.1:8080")
            .header("content-type", "application/json")
            .header("content-length", BODY.len())
            .header("idempotency-key", format!("probe-0-{}", key(number)))
            .header("authorization", "Bearer bench")
            .body(Body::from(BODY))
            .expect("the request is well formed");
        let mut response = router.call(request).await.expect("a router does not fail");
        assert_eq!(response.status(), 201);
        let body = response.body_mut();
        while !body.is_end_stream() {
            let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await;
            assert!(frame.is_some_and(|frame| frame.is_ok()));
        }
    }
    started.elapsed().as_nanos()
}
