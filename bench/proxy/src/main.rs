//! The gateway's baseline: the least one can write that forwards every request, `bench-proxy UPSTREAM`. It streams both
//! ways and looks at nothing, so what a gateway takes beyond it is what its promises cost.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::{Authority, Scheme, Uri};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// More than the connections of any load, so that none is opened twice.
const IDLE_MAX: usize = 256;

#[derive(Clone)]
struct Upstream {
    client: Client<HttpConnector, Body>,
    authority: Authority,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).and_then(|address| address.parse::<SocketAddr>().ok());
    let address = address.ok_or_else(|| io::Error::other("no upstream; use bench-proxy 127.0.0.1:PORT"))?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let upstream = Upstream {
        client: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_MAX).build(connector),
        authority: address.to_string().parse().map_err(io::Error::other)?,
    };
    bench_plain::listen(Router::new().fallback(forward).with_state(upstream)).await
}

async fn forward(State(upstream): State<Upstream>, mut request: Request) -> Response {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(upstream.authority);
    let Ok(uri) = Uri::from_parts(parts) else { return StatusCode::BAD_REQUEST.into_response() };
    *request.uri_mut() = uri;
    // The client names its own peer.
    request.headers_mut().remove(header::HOST);
    match upstream.client.request(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
