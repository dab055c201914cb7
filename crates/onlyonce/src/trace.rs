//! Traces: what a request did and how long each part took, as spans of W3C Trace Context.
//!
//! Nothing is traced until somebody wants spans ([`Engine::on_span`]).
//!
//! | span | kind | what it is |
//! |---|---|---|
//! | the route, such as `POST /payments/*` | server | a request that was decided on |
//! | `onlyonce.reserve` | internal | asking the store whether it may run; once more each time it has waited |
//! | `upstream` | client | the service or handler behind the layer |
//! | `onlyonce.finish` | internal | writing down what became of it |
//! | `onlyonce.probe` | client | a question whether work happened; a trace of its own, linked to the one that ran |
//!
//! 1. A request with a valid `traceparent` is part of that trace, and is recorded if that says so. Any other begins a trace,
//!    and the sample decides.
//! 2. The service is given `traceparent` with the span `upstream` as its parent.
//! 3. The record keeps the trace of its last attempt. A replay links to that trace, and to the span `upstream` in it, whose id
//!    follows from the attempt's token ([`Token::span_id`]).
//! 4. No span has a key, a token or a path in it: the key is there by the record's short digest, the path by its route.
//! 5. Requests in observe mode are passed on as they came, and not traced.
//!
//! [`Token::span_id`]: crate::record::Token::span_id

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use onlyonce_core::record::{Id, Record, Token, TraceId};
use tokio::time::Instant;

use crate::counts::Decision;
use crate::engine::Engine;
use crate::probe::{Answer, Failure};

/// The header that says which trace a request is part of.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// `traceparent` of version 0: `00-<32 digits>-<16 digits>-<2 digits>`.
const TRACEPARENT_CHARS: usize = 55;
const SAMPLED: u8 = 1;

/// A part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The trace that it is part of.
    pub trace: TraceId,
    /// Its own id.
    pub id: SpanId,
    /// The span that it is part of; none where it is the first of its trace.
    pub parent: Option<SpanId>,
    /// What it is.
    pub name: Arc<str>,
    /// On which side of a call it is.
    pub kind: Kind,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// More about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// The span of another trace that it goes back to: the run that a replay repeats, or that a probe is asked about.
    pub link: Option<(TraceId, SpanId)>,
    /// Whether it failed.
    pub is_error: bool,
}

/// The id of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

/// On which side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whoever is called.
    Server,
    /// Whoever calls.
    Client,
    /// Neither.
    Internal,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(Arc<str>),
    /// A number.
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// Who wants spans.
pub(crate) struct Sink {
    /// Which part of the traces that begin here is recorded, from 0 to 1.
    sample: f64,
    take: Box<dyn Fn(Span) + Send + Sync>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("sample", &self.sample).finish_non_exhaustive()
    }
}

impl Engine {
    /// Traces requests and probes from now on, and calls this for every span that ends. `sample`, from 0 to 1, is the part of
    /// the traces begun here that is recorded. `take` is called on the way of a request, so it must not wait. The first one
    /// stays.
    pub fn on_span(&self, sample: f64, take: impl Fn(Span) + Send + Sync + 'static) {
        // Only the first is kept, as documented.
        let _ = self.spans.set(Sink { sample, take: Box::new(take) });
    }

    /// The trace of a request; none where nobody wants spans.
    pub(crate) fn trace(&self, parts: &Parts) -> Option<Box<Trace>> {
        self.spans.get().map(|sink| Box::new(Trace::of(&parts.method, &parts.headers, sink.sample)))
    }

    /// The trace of a question to a probe about this record.
    pub(crate) fn trace_probe(&self, record: &Record) -> Option<Box<Trace>> {
        let sink = self.spans.get()?;
        // Whoever looks at a trace that was recorded wants to know how it ended.
        let sample = if record.trace.is_some() { 1.0 } else { sink.sample };
        let trace = Trace::of(&Method::GET, &HeaderMap::new(), sample);
        trace.saw(record);
        Some(Box::new(trace))
    }

    fn span_ended(&self, span: Span) {
        if let Some(sink) = self.spans.get() {
            (sink.take)(span);
        }
    }
}

/// The trace of one request, with its first span here.
#[derive(Debug)]
pub(crate) struct Trace {
    context: Context,
    parent: Option<SpanId>,
    method: Method,
    began: Began,
    facts: Mutex<Facts>,
}

/// What is learnt on the way, for the request's own span.
#[derive(Debug, Default)]
struct Facts {
    state: Option<&'static str>,
    link: Option<(TraceId, SpanId)>,
}

/// What `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    trace: TraceId,
    span: SpanId,
    is_sampled: bool,
}

/// When a span began, by both clocks: one to say when, one to count by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    at: SystemTime,
    since: Instant,
}

impl Began {
    fn now() -> Self {
        Self { at: SystemTime::now(), since: Instant::now() }
    }
}

impl Trace {
    fn of(method: &Method, headers: &HeaderMap, sample: f64) -> Self {
        let parent = Context::received(headers);
        let span = SpanId(rand::random());
        let context = match parent {
            Some(parent) => Context { span, ..parent },
            None => {
                Context { trace: TraceId(rand::random()), span, is_sampled: rand::random::<f64>() < sample }
            }
        };
        let parent = parent.map(|parent| parent.span);
        Self { context, parent, method: method.clone(), began: Began::now(), facts: Mutex::default() }
    }

    /// What its record keeps of it.
    pub(crate) fn stored(&self) -> Option<TraceId> {
        self.context.is_sampled.then_some(self.context.trace)
    }

    /// When a part of it begins; none where it is not recorded.
    pub(crate) fn begin(&self) -> Option<Began> {
        self.context.is_sampled.then(Began::now)
    }

    /// The request is answered by this record, or ran as it says. A replay, and a question, go back to the run.
    pub(crate) fn saw(&self, record: &Record) {
        let mut facts = self.facts();
        facts.state = Some(record.state.name().as_str());
        facts.link = record.trace.map(|trace| (trace, SpanId(record.token.span_id())));
        // The request's own run is no other trace.
        facts.link = facts.link.filter(|(trace, _)| *trace != self.context.trace);
    }

    /// Its record is in this state.
    pub(crate) fn left(&self, state: &'static str) {
        self.facts().state = Some(state);
    }

    /// Passes the trace on with `span` as the parent of what follows. A trace that is not recorded and did not begin here
    /// passes as it came.
    pub(crate) fn pass_on(&self, headers: &mut HeaderMap, span: SpanId) {
        if !self.context.is_sampled && self.parent.is_some() {
            return;
        }
        if self.parent.is_none() {
            // It belongs to a `traceparent` that nobody can read.
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, Context { span, ..self.context }.header());
    }

    /// The same for what is called by this request's own span.
    pub(crate) fn pass_on_from_here(&self, headers: &mut HeaderMap) {
        self.pass_on(headers, self.context.span);
    }

    /// The header for what is called by this trace's own span.
    pub(crate) fn traceparent(&self) -> HeaderValue {
        self.context.header()
    }

    fn facts(&self) -> std::sync::MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part(&self, name: &str, kind: Kind, began: Began) -> Span {
        Span {
            trace: self.context.trace,
            id: SpanId(rand::random()),
            parent: Some(self.context.span),
            name: name.into(),
            kind,
            began: began.at,
            took: began.since.elapsed(),
            attributes: Vec::new(),
            link: None,
            is_error: false,
        }
    }

    /// The first span of the trace here, which ends now.
    fn whole(&self, name: &Arc<str>, kind: Kind) -> Span {
        let mut span = Span {
            id: self.context.span,
            parent: self.parent,
            name: name.clone(),
            ..self.part("", kind, self.began)
        };
        let facts = self.facts();
        span.link = facts.link;
        span.attributes.extend(facts.state.map(|state| ("onlyonce.state", state.into())));
        span
    }

    /// The span `onlyonce.reserve` or `onlyonce.finish` ends.
    pub(crate) fn asked_store(
        &self,
        engine: &Engine,
        name: &'static str,
        began: Option<Began>,
        failed: bool,
    ) {
        if let Some(began) = began {
            engine.span_ended(Span { is_error: failed, ..self.part(name, Kind::Internal, began) });
        }
    }

    /// The span `upstream` ends, with the status where there is an answer.
    pub(crate) fn called(
        &self,
        engine: &Engine,
        token: Token,
        began: Option<Began>,
        status: Option<StatusCode>,
    ) {
        let Some(began) = began else { return };
        let mut span = Span {
            id: SpanId(token.span_id()),
            is_error: status.is_none_or(|status| status.as_u16() >= 400),
            ..self.part("upstream", Kind::Client, began)
        };
        span.attributes.extend(status.map(status_code));
        engine.span_ended(span);
    }

    /// The request's own span ends.
    pub(crate) fn decided(&self, engine: &Engine, decided: &Decided<'_>) {
        if !self.context.is_sampled {
            return;
        }
        let Decided { route, id, decision, attempt, status } = decided;
        // Routes are mostly named with their method.
        let method = self.method.as_str();
        let mut span = match route.split(' ').next() {
            Some(first) if first == method => self.whole(route, Kind::Server),
            Some(_) | None => self.whole(&format!("{method} {route}").into(), Kind::Server),
        };
        if *decision != Decision::Replayed {
            span.link = None;
        }
        span.is_error = status.is_server_error();
        let text = |text: &str| Value::from(text);
        span.attributes.extend([
            ("onlyonce.decision", text(decision.name())),
            ("http.route", text(route)),
            ("http.request.method", text(method)),
            status_code(*status),
        ]);
        span.attributes.extend(id.map(|id| ("onlyonce.key_digest", text(&id.short().to_string()))));
        span.attributes.extend(attempt.map(|attempt| ("onlyonce.attempt", Value::Number(attempt.into()))));
        engine.span_ended(span);
    }

    /// The span `onlyonce.probe` ends.
    pub(crate) fn asked(&self, engine: &Engine, record: &Record, answered: &Result<Answer, Failure>) {
        if !self.context.is_sampled {
            return;
        }
        let mut span = self.whole(&"onlyonce.probe".into(), Kind::Client);
        span.is_error = answered.is_err();
        let id = Id::of(&record.scope, &record.key);
        span.attributes.extend([
            ("onlyonce.key_digest", Value::from(&*id.short().to_string())),
            ("onlyonce.attempt", Value::Number(record.attempt.into())),
            ("onlyonce.verdict", Value::from(crate::counts::verdict(answered))),
        ]);
        span.attributes.extend(record.route.as_deref().map(|route| ("http.route", Value::from(route))));
        engine.span_ended(span);
    }
}

/// What a request's own span says.
pub(crate) struct Decided<'a> {
    /// What it is counted as.
    pub(crate) route: &'a Arc<str>,
    /// The record's, where the request has a key and a caller.
    pub(crate) id: Option<&'a Id>,
    pub(crate) decision: Decision,
    pub(crate) attempt: Option<u32>,
    pub(crate) status: StatusCode,
}

fn status_code(status: StatusCode) -> (&'static str, Value) {
    ("http.response.status_code", Value::Number(status.as_u16().into()))
}

impl Context {
    /// Of `traceparent`, where there is exactly one that is valid.
    fn received(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        Self::parse(value.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let known = text.get(..TRACEPARENT_CHARS)?;
        // Later versions may go on after another dash.
        let goes_on = text.len() > TRACEPARENT_CHARS;
        if goes_on && (text.starts_with("00") || !text[TRACEPARENT_CHARS..].starts_with('-')) {
            return None;
        }
        let mut fields = known.split('-');
        let mut field = || fields.next();
        let (version, trace, span, flags) = (field()?, field()?, field()?, field()?);
        let version: [u8; 1] = unhex(version)?;
        let (trace, span, [flags]) = (unhex(trace)?, unhex(span)?, unhex(flags)?);
        let is_valid = version != [0xff] && trace != [0; 16] && span != [0; 8] && field().is_none();
        is_valid.then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & SAMPLED == SAMPLED,
        })
    }

    fn header(self) -> HeaderValue {
        let Self { trace: TraceId(trace), span: SpanId(span), is_sampled } = self;
        let text = format!("00-{}-{}-0{}", hex(&trace), hex(&span), u8::from(is_sampled));
        HeaderValue::try_from(text).expect("digits and dashes are visible ASCII")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digits in lower case, as many as are needed.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || digits.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(values: &[&str]) -> Option<Context> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        Context::received(&headers)
    }

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_traceparent_is_written_as_it_was_read() {
        for valid in [VALID, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"] {
            assert_eq!(received(&[valid]).unwrap().header(), valid);
        }
        // A later version may say more; what is known of it is used.
        assert!(received(&["cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what"]).is_some());
        assert!(received(&["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff"]).unwrap().is_sampled);
    }

    #[test]
    fn what_is_no_traceparent_begins_a_trace() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01what",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-001",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
        ] {
            assert_eq!(received(&[wrong]), None, "{wrong}");
        }
        assert_eq!(received(&[VALID, VALID]), None);
        assert_eq!(received(&[]), None);
    }

    #[test]
    fn who_does_not_record_a_trace_passes_it_on_as_it_came() {
        let mut headers = HeaderMap::new();
        let came = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        headers.insert(TRACEPARENT, came.clone());
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        let trace = Trace::of(&Method::POST, &headers, 1.0);
        assert_eq!((trace.stored(), trace.begin().is_some()), (None, false));
        trace.pass_on(&mut headers, SpanId([1; 8]));
        assert_eq!(
            (&headers[TRACEPARENT], &headers[TRACESTATE]),
            (&came, &HeaderValue::from_static("vendor=1"))
        );
    }

    #[test]
    fn the_sample_decides_about_traces_that_begin_here_and_others_are_told() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        for (sample, flags) in [(0.0, "-00"), (1.0, "-01")] {
            let trace = Trace::of(&Method::POST, &headers, sample);
            let mut passed = headers.clone();
            trace.pass_on(&mut passed, SpanId([1; 8]));
            assert!(passed[TRACEPARENT].to_str().unwrap().ends_with(flags));
            assert!(!passed.contains_key(TRACESTATE), "it belongs to a traceparent that is not there");
            assert_eq!(trace.stored().is_some(), sample > 0.5);
        }
    }
}
