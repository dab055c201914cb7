//! Makes any HTTP write safe to retry.
//!
//! A client sends `Idempotency-Key` with a write. The layer runs such a request at most once, keeps its answer, and
//! gives that answer to every retry, byte for byte. Where nobody can know whether the work ran, it says so, and does
//! not guess.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, routing::post};
//! use onlyonce::{Onlyonce, store::memory::Memory};
//!
//! let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
//! let app: Router = Router::new().route("/payments", post(|| async { "paid" })).layer(onlyonce.layer());
//! ```
//!
//! # Rules
//!
//! A request is looked at in this order.
//!
//! 1. `GET /_onlyonce/keys/{key}` is a caller's question about its own key, and the layer answers it. See
//!    [below](#questions-about-a-key).
//! 2. A method that is not in [`Policy::methods`] passes. GET, HEAD, OPTIONS and TRACE always do.
//! 3. A request without a key passes; where [`Policy::required`] lists its method it is refused, 400.
//! 4. A key that cannot be used is refused, 400, also where it is optional. [`key`] has the rules.
//! 5. A caller that cannot be told from others is refused, 401, unless [`Policy::anonymous`] lets those share. Callers
//!    are told apart by their `Authorization` header, or by what [`Onlyonce::with_caller`] finds.
//! 6. A body above [`Policy::request_bytes_max`] is refused, 413.
//! 7. A request that would run and is older than [`Policy::request_age_max`] is refused, 400, and so is one that does not
//!    say how old it is. What is on record is answered all the same.
//! 8. Above one of the [`Limits`] ([`Onlyonce::with_limits`]) it is refused, 429, before anything is reserved.
//! 9. Then the record of that caller and key decides:
//!
//! | record | the request |
//! |---|---|
//! | none, or expired | **runs**, as attempt 1 |
//! | of another request ([`fingerprint`]) | is refused, 422 |
//! | completed | is **replayed**: status, headers and body as they were, marked `Idempotent-Replayed: true` |
//! | completed, its answer not kept | is refused, 409; it never runs again |
//! | running | is refused, 409 with `Retry-After`; with `Prefer: wait=N` it waits and is replayed |
//! | retryable | **runs**, as the next attempt |
//! | running, but its lease lapsed | by [`Effects`]: local and keyed work **runs** again, other work becomes unknown |
//! | unknown | is refused, 409, until somebody knows |
//!
//! While a request runs:
//!
//! 10. The key is reserved in the store before the handler is called, and the answer is in the store before its first
//!     byte goes to the client.
//! 11. A client that hangs up changes nothing. The work goes on, and its retry gets the answer.
//! 12. The lease is renewed while the handler works. [`Policy::deadline`] ends it all the same: 504.
//! 13. A handler that panics is answered for: 502. After both, the outcome is unknown, or retryable where running again
//!     is safe.
//!
//! What an answer means:
//!
//! 14. 2xx, 3xx and 4xx are kept and replayed for [`Policy::retention`], except those of the next three rules.
//! 15. 401, 403, 425 and 429 ([`Policy::release`]) say that nothing was done: the key may be tried again.
//! 16. 408, 502 and 504 ([`Policy::unknown`]) are doubt: unknown, or retryable where running again is safe.
//! 17. Any other 5xx says that nothing was done, unless [`Policy::on_5xx`] says otherwise.
//! 18. A handler that knows better says so: [`Attempt::did_not_run`], [`Attempt::unknown`], [`Attempt::keep_for`].
//! 19. An answer above [`Policy::response_bytes_max`], with trailers, or of type `text/event-stream` is passed on and
//!     not kept; the record says that it completed.
//!
//! An answer that will not be replayed carries `Idempotency-Stored: false`. One that will be says until when, in
//! `Idempotency-Key-Expires`. A replay also says when its key was first used, in `Idempotency-Key-Created`.
//!
//! # What the work touches
//!
//! Nobody can promise more than the work allows, so [`Policy::effects`] says what it touches. The default promises
//! least.
//!
//! | effects | after a crash in the middle | promise |
//! |---|---|---|
//! | [`Effects::Local`]: all in one transaction with the completion ([`transaction`]), or in [phases](phase) | runs again, behind the last committed phase | exactly once |
//! | [`Effects::Keyed`]: downstream deduplicates [`Attempt::downstream_key`] | runs again while downstream remembers | exactly once, if downstream keeps its word |
//! | [`Effects::Queryable`]: downstream can be asked | unknown, then asked by a [probe] | at most once, then the truth |
//! | [`Effects::Opaque`]: neither | unknown, until somebody tells ([`operate`]) | at most once |
//!
//! # Questions about a key
//!
//! `GET /_onlyonce/keys/{key}`, with the credentials of the request itself, tells what became of it: 202 while it runs,
//! 200 with its state, 404 where this caller never used that key. `…/response` gives the stored answer. The layer must
//! see the path to answer: add it with `Router::layer`, which also covers what no route matches, and not with
//! `route_layer`.
//!
//! # Before you deploy it
//!
//! * Choose a store that remembers: `store::sqlite` (feature `sqlite`) keeps records in one file, durable before anybody
//!   is told. One process has that file, so all keyed writes go to one process. [The memory store](store::memory)
//!   forgets at restart, and a retry then runs again.
//! * Keep the file on a local disk, and back it up with `onlyonce store backup`: a plain copy of a file in use is half a
//!   database.
//! * Start the [workers](worker): they settle what a dead node left running, ask [probes](probe) about what is unknown, and
//!   delete what has expired. What nobody can be asked about waits for [`Engine::verdict`].
//! * Add the layer outside `Router::nest`. Inside, it does not see questions about a key.
//! * A credential that is refreshed is another caller to the default scope. Use [`Onlyonce::with_caller`] with an
//!   account's id where clients change tokens between retries.
//! * A middleware that authenticates belongs outside the layer, one that changes answers for all clients (compression,
//!   request ids) too: what is inside is kept and replayed.
//! * Before the process ends, wait for [`Engine::idle`]: it is ready once no work goes on for clients that hung up.
//! * The layer must be polled inside a tokio runtime.
//!
//! # What it is not
//!
//! It is not exactly-once delivery. It cannot undo a charge; it can only refuse to make a second one. It does not find
//! equal requests under different keys, and it never makes a key for a client. It is not a cache: a replay says what
//! was answered then, not what is true now.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use axum::{Router, body::Body, extract::State, http::{Request, StatusCode}, routing::post};
//! use http_body_util::BodyExt;
//! use onlyonce::{Onlyonce, store::memory::Memory};
//! use tower::ServiceExt;
//!
//! async fn charge(State(charges): State<Arc<AtomicU32>>, amount: String) -> (StatusCode, String) {
//!     let number = charges.fetch_add(1, Ordering::Relaxed) + 1;
//!     (StatusCode::CREATED, format!("charge {number}: {amount}"))
//! }
//!
//! fn pay(caller: &str, key: &str, amount: &'static str) -> Request<Body> {
//!     Request::post("/payments")
//!         .header("authorization", format!("Bearer {caller}"))
//!         .header("idempotency-key", key)
//!         .body(Body::from(amount))
//!         .unwrap()
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let charges = Arc::new(AtomicU32::new(0));
//! let app = Router::new()
//!     .route("/payments", post(charge))
//!     .layer(Onlyonce::new(Arc::new(Memory::new())).layer())
//!     .with_state(charges.clone());
//!
//! let first = app.clone().oneshot(pay("ann", "k-1", "12.00")).await.unwrap();
//! assert_eq!(first.status(), StatusCode::CREATED);
//! assert!(first.headers().contains_key("idempotency-key-expires"));
//!
//! // A retry gets the same answer, and nothing is charged.
//! let retry = app.clone().oneshot(pay("ann", "k-1", "12.00")).await.unwrap();
//! assert_eq!(retry.status(), StatusCode::CREATED);
//! assert_eq!(retry.headers()["idempotent-replayed"], "true");
//! assert_eq!(retry.into_body().collect().await.unwrap().to_bytes(), "charge 1: 12.00");
//!
//! // The key with another request is a mistake of the client's.
//! let reused = app.clone().oneshot(pay("ann", "k-1", "99.00")).await.unwrap();
//! assert_eq!(reused.status(), StatusCode::UNPROCESSABLE_ENTITY);
//! assert_eq!(charges.load(Ordering::Relaxed), 1);
//!
//! // Another caller's key is another key.
//! let other = app.clone().oneshot(pay("bob", "k-1", "12.00")).await.unwrap();
//! assert!(!other.headers().contains_key("idempotent-replayed"));
//! assert_eq!(charges.load(Ordering::Relaxed), 2);
//! # }
//! ```
//!
//! # Read on
//!
//! * [`transaction`] completes a request in your own transaction, [`phase`] has handlers of several steps, `InTransaction` needs one commit.
//! * [`Onlyonce`] makes layers, [`Policy`] is what they go by, [`Attempt`] is what a handler knows and may say.
//! * `examples/rides.rs` is a handler of several steps, `examples/payments.rs` a whole service on axum, `examples/hyper.rs` one on plain hyper.
//! * The repository has a guide, a page for every error code, and one for every setting.
//! * [`store`] is the seam for engines of one's own; `onlyonce_core::machine` has every rule about a record's state.

pub mod accepted;
mod answer;
mod attempt;
mod body;
mod breaker;
mod buffered;
mod cache;
mod counts;
mod engine;
mod epoch;
pub mod events;
mod front;
mod future;
mod gate;
mod headers;
pub mod health;
#[cfg(any(feature = "_driver", feature = "sqlite"))]
mod in_transaction;
mod inflight;
mod keyed;
mod layer;
mod lease;
mod limiter;
mod message;
mod observe;
pub mod operate;
pub mod phase;
pub mod probe;
pub mod problem;
pub mod relay;
mod service;
mod status;
mod task;
pub mod trace;
pub mod traffic;
pub mod transaction;
mod verified;
mod wait;
pub mod worker;

pub use attempt::Attempt;
pub use body::Body;
pub use engine::Engine;
pub use future::ResponseFuture;
pub use headers::connection_named;
#[cfg(any(feature = "_driver", feature = "sqlite"))]
pub use in_transaction::{Begun, InTransaction, OpenAttempt};
#[doc(hidden)]
pub use layer::kind;
pub use layer::{Caller, IntoStore, Layer, Onlyonce};
pub use message::{Key as MessageKey, Message};
pub use onlyonce_core::dialect::{self, Dialect};
pub use onlyonce_core::fingerprint;
pub use onlyonce_core::history;
pub use onlyonce_core::key;
pub use onlyonce_core::limits::{Limit, Limits};
pub use onlyonce_core::machine::{self, Force};
#[doc(hidden)]
pub use onlyonce_core::percent;
pub use onlyonce_core::policy::{self, Faults, Policy};
pub use onlyonce_core::record::{self, Effects, Handle, Reason, StateName};
pub use onlyonce_core::refusal;
pub use onlyonce_core::scope;
pub use onlyonce_core::time;
pub use onlyonce_store as store;
pub use problem::Problem;
pub use service::{Route, Service};
pub use status::asked_route;
pub use verified::Verified;
