//! The same handler behind `axum-idempotent`, in the mode its own documentation recommends, on its memory store.
//!
//! It keeps answers in a session, so the load sends a session cookie. Sessions are many and small there, as they are
//! in life: one session with every key in it would measure the growth of one map.

use std::io;
use std::sync::Arc;

use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, SessionLayer};
use tower_cookies::CookieManagerLayer;

const RETENTION_SECONDS: i64 = 24 * 60 * 60;

#[tokio::main]
async fn main() -> io::Result<()> {
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(RETENTION_SECONDS);
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session"));
    let router = bench_plain::payments()
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(sessions)
        .layer(CookieManagerLayer::new());
    bench_plain::serve(router).await
}
