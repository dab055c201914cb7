//! Traces and metrics for a collector, by OTLP over HTTP with protobuf.
//!
//! 1. What requests leave for the collector waits in a queue of bounded length. When that is full, spans are dropped and
//!    counted; no request ever waits.
//! 2. One task sends, one request at a time. What the collector does not take is dropped, and that is logged once a minute.
//! 3. Metrics are those of `/metrics`, under the same names.
//! 4. Nothing here knows a key or a token: spans come without (`onlyonce::trace`), and so do metrics.
//!
//! The messages are written by hand (`otlp.rs`): there are a dozen, and the libraries for them would add a twelfth to a cold build
//! (decision 0049).

mod otlp;
mod protobuf;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use metrics::counter;
use onlyonce::trace::Span;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use self::otlp::Resource;
use crate::admin::Admin;
use crate::config::{self, Protocol};
use crate::outgoing::{AGENT, Lost, Outgoing};
use crate::tls::Connector;

/// How many spans wait at most; about 2 MB.
const SPANS_MAX: usize = 4096;
/// So many are sent at once, without waiting for more.
const SPANS_AT_ONCE: usize = 1024;
/// How often spans are sent.
const SPANS_EVERY: Duration = Duration::from_secs(1);
/// How often metrics are sent.
const METRICS_EVERY: Duration = Duration::from_secs(10);
/// How long the collector may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The same while the node stops.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often at most a collector that does not answer is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// What is read of a collector's answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sends what this node has for the collector, until it is stopped.
pub(crate) struct Telemetry {
    stop: oneshot::Sender<()>,
    sending: JoinHandle<()>,
}

impl Telemetry {
    /// From now on requests are traced. Call it before the first one.
    pub(crate) fn start(
        telemetry: &config::Telemetry,
        upstream_ca: Option<&std::path::Path>,
        admin: Arc<Admin>,
    ) -> Result<Option<Self>> {
        let Some(uri) = &telemetry.otlp else { return Ok(None) };
        let connector = Connector::for_uri(uri, upstream_ca).context("telemetry.otlp")?;
        let collector = Outgoing::new(connector, uri, Protocol::Auto).context("telemetry.otlp")?;
        let spans = Arc::new(Spans::default());
        let taken = spans.clone();
        admin.engine().on_span(telemetry.sample, move |span| taken.push(span));
        let resource = Resource {
            service_name: telemetry.service_name.clone(),
            instance: admin.node().to_owned(),
            since: SystemTime::now(),
        };
        let (stop, stopped) = oneshot::channel();
        let exporter =
            Exporter { collector, resource, spans, admin, logged_at: None, answers_within: ANSWERS_WITHIN };
        Ok(Some(Self { stop, sending: tokio::spawn(exporter.run(stopped)) }))
    }

    /// Sends what is left, and ends.
    pub(crate) async fn stop(self) {
        // The task has ended already where nobody receives this.
        let _ = self.stop.send(());
        if self.sending.await.is_err() {
            tracing::warn!("not all traces and metrics could be sent");
        }
    }
}

/// Spans that wait to be sent.
#[derive(Default)]
struct Spans {
    waiting: Mutex<Vec<Span>>,
    many: Notify,
}

impl Spans {
    fn push(&self, span: Span) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= SPANS_MAX {
            drop(waiting);
            dropped(1);
            return;
        }
        waiting.push(span);
        if waiting.len() == SPANS_AT_ONCE {
            self.many.notify_one();
        }
    }

    fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn dropped(count: usize) {
    counter!("onlyonce_spans_dropped_total").increment(count as u64);
}

struct Exporter {
    collector: Outgoing,
    resource: Resource,
    spans: Arc<Spans>,
    admin: Arc<Admin>,
    /// When it was last logged that the collector does not answer; none since it has.
    logged_at: Option<Instant>,
    answers_within: Duration,
}

impl Exporter {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut metrics_at = Instant::now();
        let mut is_stopping = false;
        while !is_stopping {
            let spans_at = Instant::now() + SPANS_EVERY;
            tokio::select! {
                () = sleep_until(spans_at) => {}
                () = self.spans.many.notified() => {}
                _ = &mut stopped => {
                    (is_stopping, self.answers_within) = (true, LAST_ANSWER_WITHIN);
                }
            }
            self.send_spans().await;
            if is_stopping || Instant::now() >= metrics_at {
                metrics_at = Instant::now() + METRICS_EVERY;
                self.send_metrics().await;
            }
        }
    }

    async fn send_spans(&mut self) {
        let spans = self.spans.take();
        if spans.is_empty() {
            return;
        }
        let sent = self.send("/v1/traces", otlp::traces(&self.resource, &spans)).await;
        if sent.is_err() {
            dropped(spans.len());
        }
        self.log(sent);
    }

    async fn send_metrics(&mut self) {
        let message = otlp::metrics(&self.resource, &self.admin.metrics().await, SystemTime::now());
        let sent = self.send("/v1/metrics", message).await;
        self.log(sent);
    }

    async fn send(&self, path: &str, message: Vec<u8>) -> Result<(), Lost> {
        let base = self.collector.target.path().trim_end_matches('/');
        let target = PathAndQuery::try_from(format!("{base}{path}"))
            .map_err(|_| Lost("its URL is too long to be asked for".to_owned()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let sent = async {
            let answer = self.collector.send(Method::POST, target, headers, Bytes::from(message)).await?;
            let status = answer.status();
            answer.body(ANSWER_BYTES_MAX).await?;
            match status {
                StatusCode::OK => Ok(()),
                other => Err(Lost(format!("it answered {}", other.as_u16()))),
            }
        };
        let late = |_| Err(Lost(format!("no answer within {:?}", self.answers_within)));
        timeout(self.answers_within, sent).await.unwrap_or_else(late)
    }

    fn log(&mut self, sent: Result<(), Lost>) {
        match sent {
            Ok(()) => {
                if self.logged_at.take().is_some() {
                    tracing::info!("the collector accepts traces and metrics again");
                }
            }
            Err(_) if self.logged_at.is_some_and(|at| at.elapsed() < LOGGED_EVERY) => {}
            Err(Lost(why)) => {
                self.logged_at = Some(Instant::now());
                let collector = self.collector.authority.as_str();
                tracing::warn!(
                    collector,
                    why,
                    "the collector does not accept traces and metrics; they are dropped"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
