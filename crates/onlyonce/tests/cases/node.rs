//! A real axum server with the layer around U.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get};
use http::{HeaderName, Request};
use onlyonce::{Caller, Onlyonce, Policy};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use toml::{Table, Value};

use crate::runner::Node;
use crate::runner::data::{Case, Suite};
use crate::runner::store::Faulty;
use crate::runner::upstream::Shared;
use crate::settings::{limits, policy, verified_source};

/// One node: a server of its own, an engine of its own, and its own way to the common store.
pub(crate) struct Layer {
    address: SocketAddr,
    onlyonce: Onlyonce,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Node for Layer {
    const NAME: &'static str = "layer";
    const SUITE: Suite = Suite::Layer;

    async fn start(case: &Case, store: Arc<Faulty>, upstream: &Shared, _: Option<SocketAddr>) -> Self {
        let onlyonce = Onlyonce::new(store).with_limits(limits(&case.limits));
        let onlyonce = onlyonce.unwrap_or_else(|faults| panic!("the case's limits do not stand: {faults}"));
        let app = app(&onlyonce, case, upstream);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            axum::serve(listener, app)
                .with_graceful_shutdown(stopped)
                .await
                .expect("axum never fails to serve");
        });
        Self { address, onlyonce, stop: Some(stop), serving: Some(serving) }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn stop(&mut self) {
        self.stop = None;
    }

    async fn stopped(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.await.expect("the server does not panic");
        }
        self.onlyonce.engine().idle().await;
    }
}

/// U everywhere, behind the case's policy; behind others where the case has routes of their own.
fn app(onlyonce: &Onlyonce, case: &Case, upstream: &Shared) -> Router {
    let upstream = upstream.clone();
    let handler = any(move |request: Request<Body>| {
        let upstream = upstream.clone();
        async move { upstream.answer(request).await }
    });
    let optional = Table::from_iter([("required".to_owned(), Value::Boolean(false))]);
    let mut routes = vec![("/opt", policy(&[&case.setup, &optional]))];
    for (path, overlay) in &case.routes {
        routes.push((path, policy(&[&case.setup, overlay])));
    }
    let main = ["/orders", "/payments"].into_iter().filter(|path| !case.routes.contains_key(*path));
    let mut app = main.fold(Router::new(), |app, path| app.route(path, handler.clone()));
    app = app.fallback_service(handler.clone());
    app = app.layer(with_policy(onlyonce, policy(&[&case.setup])).layer());
    for (path, policy) in routes {
        let route = Router::new().route(path, handler.clone());
        app = app.merge(route.layer(with_policy(onlyonce, policy).layer()));
    }
    app.route("/health", get(|| async { "well" }))
}

fn with_policy(onlyonce: &Onlyonce, policy: Policy) -> Onlyonce {
    let onlyonce = match verified_source(&policy) {
        None => onlyonce.clone(),
        Some(name) => onlyonce.clone().with_caller(move |parts| caller(parts, &name)),
    };
    onlyonce.with_policy(policy).unwrap_or_else(|faults| panic!("the case's settings do not stand: {faults}"))
}

fn caller(parts: &http::request::Parts, name: &HeaderName) -> Option<Caller> {
    Some(Caller::named(parts.headers.get(name)?.to_str().ok()?))
}
