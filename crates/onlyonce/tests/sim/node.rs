//! A node: an engine, a layer for each kind of effects around the handler, and its workers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use onlyonce::accepted::Terms;
use onlyonce::worker::{Background, Workers};
use onlyonce::{Effects, Engine, Onlyonce, Service};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tower::{Layer, ServiceExt};

use crate::bank::Bank;
use crate::handler::Handler;
use crate::history::{Answer, Said, Stored};
use crate::link::Link;
use crate::stage::Stage;
use crate::truth::Truth;

const BACKGROUND: Background = Background {
    sweep_every: Duration::from_secs(2),
    reap_every: Duration::from_secs(5),
    // Less than there are keys, so that a batch is not all there is.
    reap_batch: 1,
    audit_retention: Duration::from_secs(3_600),
    delivered_retention: Duration::from_secs(3_600),
    accepted: Terms { at_once: 64, pending_max: 10_000, pause_max: Duration::from_secs(60) },
};

pub(crate) struct Node {
    pub(crate) engine: Arc<Engine>,
    pub(crate) life: Arc<Life>,
    services: Vec<(Effects, Service<Handler>)>,
    workers: Mutex<Option<Workers>>,
}

/// Whether a node lives, stands still, or is cut off from the store.
#[derive(Default)]
pub(crate) struct Life {
    is_dead: AtomicBool,
    died: Notify,
    paused_until: Mutex<Option<Instant>>,
    cut_off_until: Mutex<Option<Instant>>,
    /// When its sweeper and its reaper last asked the store.
    swept_at: Mutex<Option<Instant>>,
    reaped_at: Mutex<Option<Instant>>,
}

impl Node {
    pub(crate) fn start(stage: &Arc<Stage>, truth: &Truth, bank: &Arc<Bank>) -> Arc<Self> {
        let life = Arc::new(Life::default());
        let link = Link { stage: stage.clone(), truth: truth.clone(), life: life.clone() };
        let engine = Engine::new(Arc::new(link));
        let services = [Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque].map(|effects| {
            let handler = Handler { stage: stage.clone(), bank: bank.clone(), life: life.clone() };
            let onlyonce = Onlyonce::on(engine.clone()).with_policy(stage.policy(effects)).unwrap();
            (effects, onlyonce.layer().layer(handler))
        });
        let workers = Mutex::new(Some(Workers::start(&engine, &BACKGROUND)));
        Arc::new(Self { engine, life, services: services.to_vec(), workers })
    }

    /// Gone from one instant to the next. What it had on its way to others still arrives; it does nothing more. Tasks
    /// of its engine linger in this process, but the store and downstream never hear of them again.
    pub(crate) fn crash(&self) {
        self.life.is_dead.store(true, Ordering::SeqCst);
        self.life.died.notify_waiters();
        drop(self.workers.lock().unwrap().take());
    }

    /// Asks this node; none where the connection breaks or the node dies.
    pub(crate) async fn ask(&self, effects: Effects, request: Request<Full<Bytes>>) -> Option<Answer> {
        let (_, service) =
            self.services.iter().find(|(kind, _)| *kind == effects).expect("all kinds are served");
        let died = self.life.died.notified();
        if self.life.is_dead() {
            return None;
        }
        let answered = self.life.live(service.clone().oneshot(request));
        let response = tokio::select! {
            biased;
            () = died => return None,
            answered = answered => answered.ok()?,
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
        let stored = match (header("idempotency-key-expires"), header("idempotency-stored")) {
            (Some(_), None) => Stored::Yes,
            (None, Some("false")) => Stored::No,
            _ => Stored::Silent,
        };
        let code = (header("content-type") == Some("application/problem+json")).then(|| code(&body));
        let is_replay = header("idempotent-replayed") == Some("true");
        let body = match code {
            Some(_) => String::new(),
            None => String::from_utf8(body.to_vec()).unwrap(),
        };
        Some(Answer { said: Said { status: head.status.as_u16(), body }, code, is_replay, stored })
    }
}

fn code(problem: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(problem).unwrap();
    problem["code"].as_str().expect("a refusal has a code").to_owned()
}

impl Life {
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    pub(crate) fn pause(&self, span: Duration) {
        *self.paused_until.lock().unwrap() = Some(Instant::now() + span);
    }

    pub(crate) fn cut_off(&self, span: Duration) {
        *self.cut_off_until.lock().unwrap() = Some(Instant::now() + span);
    }

    /// Goes on at once, and is reached again.
    pub(crate) fn heal(&self) {
        *self.cut_off_until.lock().unwrap() = None;
        *self.paused_until.lock().unwrap() = None;
    }

    pub(crate) fn sweeps(&self) {
        *self.swept_at.lock().unwrap() = Some(Instant::now());
    }

    pub(crate) fn reaps(&self) {
        *self.reaped_at.lock().unwrap() = Some(Instant::now());
    }

    /// Whether both its workers came round within this span.
    pub(crate) fn works(&self, within: Duration) -> bool {
        [&self.swept_at, &self.reaped_at]
            .into_iter()
            .all(|came| came.lock().unwrap().is_some_and(|at| at.elapsed() <= within))
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off_until.lock().unwrap().is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.resumes_at().is_some()
    }

    fn resumes_at(&self) -> Option<Instant> {
        self.paused_until.lock().unwrap().filter(|until| Instant::now() < *until)
    }

    /// Ready when the node is awake; never once it is dead.
    pub(crate) async fn awake(&self) {
        while let Some(resumes_at) = self.resumes_at() {
            sleep_until(resumes_at).await;
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Runs as the node does: not while it stands still, and never again once it is dead.
    async fn live<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut awake = Box::pin(self.awake());
        poll_fn(|cx| {
            if awake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            awake = Box::pin(self.awake());
            future.as_mut().poll(cx)
        })
        .await
    }
}
