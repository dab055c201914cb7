//! A client: takes up a key, sends, hangs up, comes back with the same key, misuses it, and asks again for what it has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use onlyonce_testkit::history::{Answer, What};
use onlyonce_testkit::random::Random;

use crate::exchange::{Manner, Request, exchange, told};
use crate::run::{Run, Subject};
use crate::service::{MISUSE, REQUEST};

/// A client gives a key up after so many tries; somebody comes back for it in the end.
const TRIES: std::ops::RangeInclusive<u64> = 1..=6;

pub(crate) struct Client {
    run: Arc<Run>,
    gateways: Vec<SocketAddr>,
    random: Random,
}

impl Client {
    pub(crate) fn new(run: &Arc<Run>, gateways: &[SocketAddr], number: u64) -> Self {
        let random = run.random("client", number);
        Self { run: run.clone(), gateways: gateways.to_vec(), random }
    }

    /// Plays until the faults stop.
    pub(crate) fn run(&self) {
        while self.run.is_faulty() {
            let subject = match self.random.within(1..=100) {
                1..=6 => None,
                7..=40 => Some(self.run.new_subject()),
                41..=48 => self.run.brief_subject(&self.random),
                49..=92 => self.run.hot_subject(&self.random),
                _ => self.run.old_subject(&self.random),
            };
            match subject {
                Some(subject) => self.insist(&subject),
                None => self.misuse(),
            }
            self.pause(50, 800);
        }
    }

    /// Comes back until it is served, or gives up.
    fn insist(&self, subject: &Subject) {
        let body = if self.random.percent(12) { 2 } else { 1 };
        let mut encores = self.random.within(0..=2);
        for _ in 0..self.random.within(TRIES) {
            let answer = self.send(subject, body);
            if answer.is_some_and(|answer| is_final(&answer)) {
                if encores == 0 {
                    return;
                }
                encores -= 1;
            }
            if !self.run.is_faulty() {
                return;
            }
            self.pause(20, 1_500);
        }
    }

    fn send(&self, subject: &Subject, body: u32) -> Option<Answer> {
        let manner = match self.random.within(1..=100) {
            1..=12 => Manner::HangsUp(self.random.millis(1..=1_500)),
            13..=15 => Manner::BreaksOff,
            _ => Manner::Patient,
        };
        let wait = self.random.percent(30).then(|| format!("wait={}", self.random.within(1..=4)));
        let gateway = self.random.pick(&self.gateways);
        ask(&self.run, gateway, subject, &Question { body, manner, wait: wait.as_deref() })
    }

    /// A request that nobody may run: its key is no key, or nobody says whose it is.
    fn misuse(&self) {
        let long = "k".repeat(300);
        let (key, caller, expected) = self.random.pick(&[
            (Some("\"unclosed"), Some("Bearer ann"), "idempotency_key_invalid"),
            (Some("a,b"), Some("Bearer ann"), "idempotency_key_invalid"),
            (Some(long.as_str()), Some("Bearer ann"), "idempotency_key_invalid"),
            (None, Some("Bearer ann"), "idempotency_key_missing"),
            (Some("order-1"), None, "idempotency_scope_missing"),
        ]);
        let mut headers = vec![(MISUSE, "1")];
        headers.extend(key.map(|key| ("Idempotency-Key", key)));
        headers.extend(caller.map(|caller| ("Authorization", caller)));
        let request = Request { path: "/opaque", headers: &headers, body: r#"{"amount":1}"# };
        self.run.next_request();
        let Some(answer) = exchange(self.random.pick(&self.gateways), &request, Manner::Patient) else {
            return;
        };
        let answer = told(&answer);
        self.run.tally().answer(answer.said.status, answer.code.as_deref(), answer.is_replay);
        if answer.code.as_deref() != Some(expected) {
            self.run.wrong(format!("key {key:?} of {caller:?} was told {answer:?}, not {expected}"));
        }
    }

    fn pause(&self, from: u64, to: u64) {
        thread::sleep(self.random.millis(from..=to));
    }
}

/// How a key is asked for.
pub(crate) struct Question<'a> {
    /// Which of the different requests under this key.
    pub(crate) body: u32,
    pub(crate) manner: Manner,
    /// `Prefer`.
    pub(crate) wait: Option<&'a str>,
}

/// Sends one request with this key, and writes both ends of it into its history.
pub(crate) fn ask(
    run: &Run,
    gateway: SocketAddr,
    subject: &Subject,
    question: &Question<'_>,
) -> Option<Answer> {
    let request = run.next_request();
    let (number, credentials) = (request.to_string(), format!("Bearer {}", subject.caller));
    let path = format!("/{}", subject.kind.name());
    let body = format!(r#"{{"order":"{}","amount":{}}}"#, subject.key, question.body);
    let mut headers = vec![
        ("Authorization", credentials.as_str()),
        ("Idempotency-Key", subject.key.as_str()),
        (REQUEST, number.as_str()),
    ];
    headers.extend(question.wait.map(|wait| ("Prefer", wait)));
    run.note(subject, What::Sent { request, body: question.body });
    let sent = Request { path: &path, headers: &headers, body: &body };
    let Some(answer) = exchange(gateway, &sent, question.manner) else {
        run.note(subject, What::HungUp { request });
        run.tally().client(match question.manner {
            Manner::Patient => "the connection broke, or nothing came",
            Manner::HangsUp(_) => "the client hung up",
            Manner::BreaksOff => "the client broke off in its request",
        });
        return None;
    };
    let answer = told(&answer);
    run.note(subject, What::Answered { request, answer: answer.clone() });
    run.tally().answer(answer.said.status, answer.code.as_deref(), answer.is_replay);
    Some(answer)
}

/// Whether there is no use in coming back.
fn is_final(answer: &Answer) -> bool {
    match answer.code.as_deref() {
        Some(
            "idempotency_key_reused" | "idempotency_response_not_stored" | "idempotency_outcome_unknown",
        ) => true,
        Some(_) => false,
        None => answer.is_replay || matches!(answer.said.status, 201 | 402),
    }
}
