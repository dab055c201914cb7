//! The handler behind the layer: calls downstream, and fails before and after in every way a handler can.
//!
//! It never lies: what it says did not run, did not and will not. Whatever else it does is doubt.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use onlyonce::{Attempt, Body, Effects};
use tower::Service;

use crate::bank::{Bank, Call, Reply};
use crate::history::{Meaning, Said, What};
use crate::node::Life;
use crate::stage::{PAUSE_MS, RESPONSE_BYTES_MAX, Stage};
use crate::tally::Count;

#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) stage: Arc<Stage>,
    pub(crate) bank: Arc<Bank>,
    pub(crate) life: Arc<Life>,
}

/// A connection that broke.
#[derive(Debug)]
pub(crate) struct Broke;

type Frames = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Broke>>>;
type Answered = Result<Response<StreamBody<Frames>>, Broke>;

impl Service<Request<Body<Full<Bytes>>>> for Handler {
    type Response = Response<StreamBody<Frames>>;
    type Error = Broke;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Full<Bytes>>>) -> Self::Future {
        let number = |name| request.headers()[name].to_str().unwrap().parse().unwrap();
        let (request_number, body): (u32, u32) = (number("x-request"), number("x-body"));
        let attempt = request.extensions().get::<Attempt>().expect("every request has a key").clone();
        let subject = self.stage.subject(attempt.handle().id);
        let credentials = format!("Bearer {}", subject.caller);
        assert_eq!(request.headers()["authorization"], credentials, "the scope is the caller's own");
        let token = self.stage.token(attempt.handle().token);
        let run = Run { handler: self.clone(), attempt, subject: subject.number, token, body };
        run.note(What::Began { request: request_number, token });
        Box::pin(run.run())
    }
}

/// One run of the handler.
struct Run {
    handler: Handler,
    attempt: Attempt,
    subject: usize,
    token: u32,
    body: u32,
}

impl Run {
    async fn run(self) -> Answered {
        let Handler { stage, bank, life } = &self.handler;
        let millis = match stage.is_faulty() {
            // Past half a lease, so that it is renewed; and past the deadline.
            true => stage.random().weighed(&[
                (72, (0, 30)),
                (18, (30, 900)),
                (7, (2_500, 7_000)),
                (3, (12_500, 13_500)),
            ]),
            // A long run is no fault: its lease is renewed.
            false => stage.random().weighed(&[(90, (0, 30)), (10, (4_500, 9_000))]),
        };
        stage.pass(millis.0..=millis.1).await;
        life.awake().await;
        if stage.fault(25) {
            self.interrupted().await;
        }
        if stage.fault(9) {
            return self.fail_before();
        }
        let call = Call {
            id: self.attempt.handle().id,
            token: self.attempt.handle().token,
            downstream_key: self.attempt.downstream_key("pay"),
            body: self.body,
        };
        let reply = bank.call(call).await;
        life.awake().await;
        match reply {
            None => self.lost().await,
            Some(Reply::Refused) => self.did_not_run(503),
            // What downstream says of an attempt before is not this work's answer, on any attempt.
            Some(Reply::Busy) => self.did_not_run(if self.attempt.number() > 1 { 409 } else { 425 }),
            Some(Reply::Done(said)) if stage.fault(22) => self.fail_after(said).await,
            Some(Reply::Done(said)) => self.completed(self.told(said)),
        }
    }

    /// Trouble in the middle of a run that lasts longer than a lease: somebody else takes over meanwhile.
    async fn interrupted(&self) {
        let Handler { stage, life, .. } = &self.handler;
        if stage.random().percent(50) && !life.is_paused() {
            self.count(Count::Pause);
            life.pause(stage.random().millis(4_000..=*PAUSE_MS.end()));
        } else {
            self.count(Count::Partition);
            life.cut_off(stage.random().millis(4_500..=9_000));
            stage.pass(4_000..=8_000).await;
        }
        life.awake().await;
    }

    /// Before anything was sent.
    fn fail_before(&self) -> Answered {
        match self.handler.stage.random().within(0..=3) {
            0 => {
                self.count(Count::HandlerPanicked);
                self.panic()
            }
            1 => self.broke(),
            _ => {
                self.count(Count::HandlerRefused);
                let status = self.handler.stage.random().pick(&[500, 503, 429, 401, 202]);
                if status == 202 {
                    self.attempt.did_not_run();
                }
                self.did_not_run(status)
            }
        }
    }

    /// Nobody knows what became of the call.
    async fn lost(&self) -> Answered {
        match self.handler.stage.random().within(0..=3) {
            0 => self.hang().await,
            1 => self.broke(),
            _ => {
                let status = self.handler.stage.random().pick(&[502, 504]);
                let said = Said { status, body: format!("lost by t{}", self.token) };
                self.ended(Meaning::Doubt, Some(said.clone()));
                whole(said)
            }
        }
    }

    /// After the work was done.
    async fn fail_after(&self, said: Said) -> Answered {
        match self.handler.stage.random().within(0..=8) {
            0 => {
                self.count(Count::HandlerPanicked);
                self.panic()
            }
            1 => self.broke(),
            2 => self.hang().await,
            3 => {
                self.count(Count::AnswerBroken);
                self.ended(Meaning::Doubt, None);
                let frames = vec![Ok(Frame::data(Bytes::from(said.body))), Err(Broke)];
                Ok(response(said.status, frames))
            }
            4 | 5 if self.attempt_effects() != Effects::Local => {
                self.count(Count::AnswerTooLarge);
                let padding = ".".repeat(usize::try_from(RESPONSE_BYTES_MAX).unwrap());
                self.completed(Said { status: said.status, body: format!("{}{padding}", said.body) })
            }
            // The store is gone when the work is done.
            6 => {
                self.count(Count::Partition);
                self.handler.life.cut_off(self.handler.stage.random().millis(6_500..=9_500));
                self.completed(self.told(said))
            }
            _ => {
                self.handler.stage.pass(2_500..=7_000).await;
                self.handler.life.awake().await;
                self.completed(self.told(said))
            }
        }
    }

    fn attempt_effects(&self) -> Effects {
        self.handler.stage.subjects[self.subject].effects
    }

    /// Which attempt told it shows, so that another attempt's answer cannot pass for this one's. What is committed
    /// with the completion is told as it was committed.
    fn told(&self, said: Said) -> Said {
        match self.attempt_effects() {
            Effects::Local => said,
            Effects::Keyed | Effects::Queryable | Effects::Opaque => {
                Said { status: said.status, body: format!("{}, told by t{}", said.body, self.token) }
            }
        }
    }

    fn completed(&self, said: Said) -> Answered {
        self.ended(Meaning::Completed, Some(said.clone()));
        whole(said)
    }

    fn did_not_run(&self, status: u16) -> Answered {
        let said = Said { status, body: format!("not done by t{}", self.token) };
        self.ended(Meaning::DidNotRun, Some(said.clone()));
        whole(said)
    }

    fn broke(&self) -> Answered {
        self.count(Count::HandlerFailed);
        self.ended(Meaning::Doubt, None);
        Err(Broke)
    }

    fn panic(&self) -> Answered {
        self.ended(Meaning::Doubt, None);
        // As a panic, without the hook: thousands of back-traces would hide the one that matters.
        std::panic::resume_unwind(Box::new("on order"))
    }

    async fn hang(&self) -> Answered {
        self.count(Count::HandlerHung);
        self.ended(Meaning::Doubt, None);
        std::future::pending().await
    }

    fn ended(&self, meaning: Meaning, said: Option<Said>) {
        self.note(What::Ended { token: self.token, meaning, said });
    }

    fn note(&self, what: What) {
        self.handler.stage.note(self.subject, what);
    }

    fn count(&self, count: Count) {
        self.handler.stage.count(count);
    }
}

fn whole(said: Said) -> Answered {
    Ok(response(said.status, vec![Ok(Frame::data(Bytes::from(said.body)))]))
}

fn response(status: u16, frames: Vec<Result<Frame<Bytes>, Broke>>) -> Response<StreamBody<Frames>> {
    Response::builder().status(status).body(StreamBody::new(stream::iter(frames))).unwrap()
}

impl fmt::Display for Broke {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection broke")
    }
}

impl std::error::Error for Broke {}
