//! A client: sends, hangs up, comes back with the same key until it is served.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::{sleep, timeout};

use crate::history::{Answer, What};
use crate::stage::{Stage, Subject};
use crate::tally::Count;
use crate::world::Nodes;

pub(crate) struct Client {
    pub(crate) stage: Arc<Stage>,
    pub(crate) nodes: Nodes,
    pub(crate) subject: Subject,
    /// Which of the different requests under this key it sends.
    pub(crate) body: u32,
    pub(crate) starts_after: Duration,
    /// How often it sends again though it was served, to see that it is told the same.
    pub(crate) encores: u64,
    /// Whether it goes away for good when it was not served: then only a sweeper looks after what it began.
    pub(crate) gives_up: bool,
}

impl Client {
    /// Comes back until it is served.
    pub(crate) async fn run(mut self) {
        sleep(self.starts_after).await;
        loop {
            let answer = self.send().await;
            if answer.is_some_and(|answer| is_final(&answer)) {
                if self.encores == 0 {
                    return;
                }
                self.encores -= 1;
                self.stage.pass(0..=9_000).await;
            } else if self.gives_up {
                return;
            } else {
                self.stage.pass(20..=2_500).await;
            }
        }
    }

    async fn send(&self) -> Option<Answer> {
        let node = self.nodes.pick(&self.stage)?;
        let (stage, subject) = (&self.stage, &self.subject);
        let request = stage.next_request();
        if self.body > 1 {
            stage.count(Count::OtherBody);
        }
        stage.note(subject.number, What::Sent { request, body: self.body });
        let asked = node.ask(subject.effects, self.request(request));
        let answer = if stage.random().percent(12) {
            let patience = stage.random().millis(0..=1_500);
            let answered = timeout(patience, asked).await;
            if answered.is_err() {
                stage.count(Count::HangUp);
            }
            answered.ok().flatten()
        } else {
            asked.await
        };
        match &answer {
            Some(answer) => stage.note(subject.number, What::Answered { request, answer: answer.clone() }),
            None => stage.note(subject.number, What::HungUp { request }),
        }
        answer
    }

    fn request(&self, number: u32) -> Request<Full<Bytes>> {
        let mut builder = Request::post("/payments")
            .header("authorization", format!("Bearer {}", self.subject.caller))
            .header("content-type", "application/json")
            .header("idempotency-key", &self.subject.key)
            .header("x-request", number)
            .header("x-body", self.body);
        if self.stage.random().percent(30) {
            builder = builder.header("prefer", format!("wait={}", self.stage.random().within(1..=8)));
        }
        builder.body(Full::from(format!(r#"{{"amount":{}}}"#, self.body))).unwrap()
    }
}

/// Whether there is no use in coming back.
fn is_final(answer: &Answer) -> bool {
    match answer.code.as_deref() {
        Some("idempotency_key_reused" | "idempotency_response_not_stored") => true,
        Some(_) => false,
        None => answer.is_replay || matches!(answer.said.status, 201 | 402),
    }
}
