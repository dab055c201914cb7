//! Calls of DynamoDB: JSON over HTTP, signed.
//!
//! 1. A call is sent at most twice: again where DynamoDB throttles it or is in trouble, where the connection is lost, and, with
//!    another signature, where the first was refused. A write may be sent twice, since it carries its own revision.
//! 2. A call has one time limit, for both sendings and the connection.
//! 3. A call that may have been executed once leaves a doubt, whatever its second sending is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use super::clock::Clock;
use super::credentials::Provider;
use super::failure::{Failure, Fault, Then};
use super::http::{Answer, Pool};
use super::sign;
use super::url::Database;
use crate::ErrorKind;
use crate::clock::steady;

/// How often a call is sent.
const SENT_MAX: u32 = 2;
/// The pause before a call is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// So many calls are under way at once; others wait.
const CALLS_MAX: usize = 256;

/// Calls of one table's service; see the module's documentation.
pub(super) struct Client {
    pub(super) database: Database,
    pub(super) clock: Clock,
    pool: Pool,
    provider: Provider,
    permits: Semaphore,
}

impl Client {
    pub(super) fn new(database: Database, provider: Provider, ahead: Arc<AtomicI64>) -> Self {
        Self {
            pool: Pool::new(database.endpoint.clone(), database.connect_within),
            database,
            clock: Clock::new(ahead),
            provider,
            permits: Semaphore::new(CALLS_MAX),
        }
    }

    /// Calls `operation`, and gives what it answers.
    pub(super) async fn call(&self, within: Duration, operation: &str, body: &Value) -> Result<Value, Fault> {
        let shown = self.database.shown();
        let body = Bytes::from(body.to_string());
        let over = Instant::now() + within;
        let mut is_in_doubt = false;
        let mut last = Failure::doubt(String::new());
        for _ in 0..SENT_MAX {
            let was_sent = AtomicBool::new(false);
            let answer = timeout_at(over, self.send(operation, &body, &was_sent)).await;
            let was_sent = was_sent.into_inner();
            last = match answer {
                Ok(Ok(answer)) if answer.status == 200 => {
                    let parsed = serde_json::from_slice(&answer.body);
                    return parsed.map_err(|_| Failure::misunderstood(&shown, "JSON").into());
                }
                Ok(Ok(answer)) => {
                    let (fault, then) = Fault::answered(&shown, answer.status, &answer.body);
                    match (then, fault) {
                        (Then::Nothing, fault) => return Err(fault.after_doubt(is_in_doubt)),
                        (Then::SignAnew, fault) => {
                            self.provider.forget().await;
                            fault.failure(&shown)
                        }
                        (Then::Again, fault) => fault.failure(&shown),
                    }
                }
                // Without credentials nothing is sent.
                Ok(Err(failure)) if failure.kind != ErrorKind::Unavailable => {
                    return Err(failure.after_doubt(is_in_doubt).into());
                }
                Ok(Err(failure)) => failure.having_sent(was_sent),
                Err(_) => {
                    let after = within.as_millis();
                    let what = format!(
                        "{shown}: no answer within {after} ms; check the network and the table's load"
                    );
                    return Err(Failure::doubt(what).having_sent(was_sent).after_doubt(is_in_doubt).into());
                }
            };
            is_in_doubt |= !last.wrote_nothing;
            if last.kind == ErrorKind::Unavailable {
                sleep(PAUSE).await;
            }
        }
        Err(last.after_doubt(is_in_doubt).into())
    }

    async fn send(&self, operation: &str, body: &Bytes, was_sent: &AtomicBool) -> Result<Answer, Failure> {
        let Database { region, .. } = &self.database;
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|_| Failure::refused(ErrorKind::Unavailable, "the store was closed"))?;
        let now = self.clock.signing_time();
        let keys = self.provider.keys(now).await?;
        let (date, target) = (sign::date(now), format!("DynamoDB_20120810.{operation}"));
        let host = self.pool.authority();
        let mut headers = vec![
            ("content-type", "application/x-amz-json-1.0"),
            ("host", &*host),
            ("x-amz-date", &*date),
            ("x-amz-target", &*target),
        ];
        if let Some(token) = &keys.session_token {
            headers.insert(3, ("x-amz-security-token", token));
        }
        let signed = sign::Request { service: "dynamodb", region, headers: &headers, body };
        let authorization = signed.authorization(&keys, &date);
        let mut request = Request::post("/").header("authorization", authorization);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.clone())).map_err(|_| {
            let what = "the AWS credentials have characters that no header can have; check them";
            Failure::refused(ErrorKind::Misconfigured, what)
        })?;
        let sent = steady();
        let answer = self.pool.send(request, was_sent).await.map_err(|lost| {
            let shown = self.database.shown();
            Failure::doubt(format!("{shown}: {}; check that {host} can be reached from here", lost.why))
        })?;
        self.clock.told(sent, steady(), answer.date.as_deref());
        Ok(answer)
    }
}
