//! Traces and metrics, as a collector gets them. What it gets is decoded with OpenTelemetry's own definitions, and not ours.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(clippy::wildcard_enum_match_arm, reason = "the enums are OpenTelemetry's")]

use std::collections::{BTreeSet, HashMap};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use onlyonce_testkit::http::{self, Answer, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message;

use crate::engines::{Engine, on_every_engine};
use crate::gateways::{Gateways, text};
use crate::provider::{SOON, head};

on_every_engine! {
    functions {
        a_replay_links_to_the_trace_that_ran,
    }
}

/// A collector, and a probe beside it.
#[derive(Clone)]
struct Collector {
    address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    resources: Vec<Resource>,
    /// Everything as it came.
    raw: Vec<u8>,
    /// `traceparent` of each question to the probe.
    asked: Vec<String>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let collector = Self { address: listener.local_addr().expect("bound"), shared: Arc::default() };
        let serving = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serving, stream) = (serving.clone(), stream.expect("a connection"));
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        collector
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let Some((path, headers)) = head(&mut reader) else { return };
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut answer = String::new();
        {
            let mut state = self.state();
            match path.split('?').next().unwrap() {
                "/base/v1/traces" => {
                    assert_eq!(headers["content-type"], "application/x-protobuf");
                    for group in ExportTraceServiceRequest::decode(&*body).unwrap().resource_spans {
                        state.resources.extend(group.resource);
                        state.spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
                    }
                    state.raw.extend(body);
                }
                "/base/v1/metrics" => {
                    for group in ExportMetricsServiceRequest::decode(&*body).unwrap().resource_metrics {
                        state.resources.extend(group.resource);
                        state.metrics =
                            group.scope_metrics.into_iter().flat_map(|scope| scope.metrics).collect();
                    }
                    state.raw.extend(body);
                }
                "/probe" => {
                    state.asked.push(headers.get("traceparent").cloned().unwrap_or_default());
                    answer = r#"{"verdict":"happened"}"#.to_owned();
                }
                other => panic!("nobody serves {other}"),
            }
        }
        self.shared.1.notify_all();
        let length = answer.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}");
        let _ = reader.get_mut().write_all(answer.as_bytes());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("no thread of the collector panicked")
    }

    fn wait(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let (state, out) =
            self.shared.1.wait_timeout_while(self.state(), SOON, |state| !is_so(state)).expect("no panic");
        assert!(!out.timed_out(), "what was waited for did not come: {:#?}", state.spans);
        state
    }

    /// The spans of a trace, once its request has ended, which is told last.
    fn trace(&self, trace: &str) -> Trace {
        let is_whole = |state: &State| {
            state.spans.iter().any(|span| hex(&span.trace_id) == trace && span.kind() == SpanKind::Server)
        };
        let spans = self.wait(is_whole).spans.clone();
        Trace(spans.into_iter().filter(|span| hex(&span.trace_id) == trace).collect())
    }

    fn settings(&self, more: &str) -> String {
        format!(
            "[telemetry]\notlp = \"http://{}/base/\"\nservice_name = \"payments\"\n{more}\n\
             [[route]]\nmatch = \"POST /ok/*\"\n",
            self.address
        )
    }
}

struct Trace(Vec<Span>);

impl Trace {
    fn span(&self, name: &str) -> &Span {
        let found: Vec<_> = self.0.iter().filter(|span| span.name == name).collect();
        let [span] = found[..] else { panic!("{} spans {name} in {:#?}", found.len(), self.0) };
        span
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(attributes: &[KeyValue]) -> HashMap<String, String> {
    let value = |attribute: &KeyValue| match attribute.value.clone().unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), value(attribute))).collect()
}

fn pay(gateways: &Gateways, path: &str, key: &str, traceparent: Option<&str>) -> Answer {
    let mut headers = vec![("Authorization", "Bearer ann"), ("Idempotency-Key", key)];
    headers.extend(traceparent.map(|parent| ("traceparent", parent)));
    headers.push(("tracestate", "vendor=1"));
    let request = Request { method: "POST", path, headers: &headers, body: "{}" };
    http::send(&gateways.node().address().to_string(), request).expect("an answer")
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// O03: W3C trace context in and out, the spans of a run with their parents, and the link of a replay. On three nodes the replay
/// is another node's, which knows the trace from the record.
fn a_replay_links_to_the_trace_that_ran(engine: Engine) {
    let collector = Collector::start();
    let gateways = Gateways::new(engine, &collector.settings(""), &[]);
    let came = format!("00-{TRACE}-{PARENT}-01");
    assert_eq!(pay(&gateways, "/ok/17", "order-17-secret", Some(&came)).status, 201);
    let told = gateways.provider.told("order-17-secret", 1);
    let run = collector.trace(TRACE);

    let request = run.span("POST /ok/*");
    assert_eq!((request.kind(), &*hex(&request.parent_span_id)), (SpanKind::Server, PARENT));
    assert!(request.links.is_empty() && request.status.is_none());
    let said = attributes(&request.attributes);
    for (name, value) in [
        ("onlyonce.decision", "executed"),
        ("onlyonce.attempt", "1"),
        ("onlyonce.state", "completed"),
        ("http.request.method", "POST"),
        ("http.route", "POST /ok/*"),
        ("http.response.status_code", "201"),
    ] {
        assert_eq!(said[name], value, "{said:?}");
    }
    let digest = &said["onlyonce.key_digest"];
    for (name, kind) in [
        ("onlyonce.reserve", SpanKind::Internal),
        ("upstream", SpanKind::Client),
        ("onlyonce.finish", SpanKind::Internal),
    ] {
        let part = run.span(name);
        assert_eq!((part.kind(), &part.parent_span_id), (kind, &request.span_id), "{name}");
        assert!(part.start_time_unix_nano >= request.start_time_unix_nano, "{name}");
        assert!(part.end_time_unix_nano <= request.end_time_unix_nano, "{name}");
        assert!(part.start_time_unix_nano <= part.end_time_unix_nano, "{name}");
    }
    let upstream = run.span("upstream");
    assert_eq!(attributes(&upstream.attributes)["http.response.status_code"], "201");
    assert_eq!(told.headers["traceparent"], format!("00-{TRACE}-{}-01", hex(&upstream.span_id)));
    assert_eq!(told.headers["tracestate"], "vendor=1");

    // Without a traceparent a trace begins here.
    let replay = pay(&gateways, "/ok/17", "order-17-secret", None);
    assert_eq!((replay.status, replay.header("idempotent-replayed")), (201, Some("true")));
    let is_replay = |span: &Span| !span.links.is_empty();
    let replayed = collector.wait(|state| state.spans.iter().any(is_replay)).spans.clone();
    let replayed: Vec<_> = replayed.into_iter().filter(is_replay).collect();
    let [request] = &replayed[..] else { panic!("{replayed:#?}") };
    assert_ne!(hex(&request.trace_id), TRACE);
    assert!(request.parent_span_id.is_empty());
    let [link] = &request.links[..] else { panic!("{:?}", request.links) };
    assert_eq!((&*hex(&link.trace_id), &link.span_id), (TRACE, &upstream.span_id));
    let said = attributes(&request.attributes);
    assert_eq!((&*said["onlyonce.decision"], &*said["onlyonce.state"]), ("replayed", "completed"));
    assert_eq!(said["onlyonce.key_digest"], *digest);

    let state = collector.wait(|state| !state.metrics.is_empty());
    let resource = attributes(&state.resources[0].attributes);
    assert_eq!(
        (&*resource["service.name"], &*resource["service.version"]),
        ("payments", env!("CARGO_PKG_VERSION"))
    );
    for secret in ["order-17-secret", "Bearer ann", &*told.token] {
        let is_there = state.raw.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
        assert!(!is_there, "{secret:?} was sent to the collector");
    }
}

/// O03: what the sample leaves out is not recorded, and those behind us are told; what its client does not record, neither.
#[test]
fn who_begins_a_trace_decides_whether_it_is_recorded() {
    let collector = Collector::start();
    let gateways = Gateways::new(Engine::Memory, &collector.settings("sample = 0.0"), &[]);
    let not_recorded = format!("00-{TRACE}-{PARENT}-00");
    pay(&gateways, "/ok/1", "not-recorded", Some(&not_recorded));
    assert_eq!(gateways.provider.told("not-recorded", 1).headers["traceparent"], not_recorded);
    pay(&gateways, "/ok/1", "left-out", None);
    let passed = &gateways.provider.told("left-out", 1).headers;
    assert!(passed["traceparent"].ends_with("-00") && !passed.contains_key("tracestate"), "{passed:?}");
    pay(&gateways, "/ok/1", "twice", Some("what is this"));
    assert_ne!(gateways.provider.told("twice", 1).headers["traceparent"], "what is this");
    // Recorded in spite of the sample, and after the others.
    pay(&gateways, "/ok/1", "recorded", Some(&format!("00-{TRACE}-{PARENT}-01")));
    collector.trace(TRACE);
    let traces: BTreeSet<_> = collector.state().spans.iter().map(|span| hex(&span.trace_id)).collect();
    assert_eq!(traces, BTreeSet::from([TRACE.to_owned()]));
}

/// O03: without `[telemetry]` a request passes as it came.
#[test]
fn without_a_collector_nothing_is_traced() {
    let gateways = Gateways::new(Engine::Memory, "", &[]);
    pay(&gateways, "/ok/1", "plain", Some("what is this"));
    let headers = &gateways.provider.told("plain", 1).headers;
    assert_eq!((&*headers["traceparent"], &*headers["tracestate"]), ("what is this", "vendor=1"));
    pay(&gateways, "/ok/1", "bare", None);
    assert!(!gateways.provider.told("bare", 1).headers.contains_key("traceparent"));
}

/// O03: a probe is asked in a trace of its own, which links to the one that ran and goes on behind the probe. Refusals and failures are traced too.
#[test]
fn a_question_to_a_probe_links_to_the_trace_that_ran() {
    let collector = Collector::start();
    let more = format!(
        "[[route]]\nmatch = \"POST /lost\"\neffects = \"queryable\"\nprobe = \"http://{}/probe\"\n\
         [[route]]\nmatch = \"POST /held\"\nrequired = true\n",
        collector.address
    );
    let settings = format!("{}{more}", collector.settings(""));
    let gateways = Gateways::new(Engine::Memory, &settings, &[]);
    assert_eq!(pay(&gateways, "/lost", "lost", Some(&format!("00-{TRACE}-{PARENT}-01"))).status, 502);
    let run = collector.trace(TRACE);
    let request = run.span("POST /lost");
    assert_eq!(request.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!(attributes(&request.attributes)["onlyonce.state"], "unknown");
    assert_eq!(run.span("upstream").status.as_ref().unwrap().code(), StatusCode::Error);

    let is_probe = |span: &Span| span.name == "onlyonce.probe";
    let state = collector.wait(|state| state.spans.iter().any(is_probe));
    let probe = state.spans.iter().find(|span| is_probe(span)).unwrap();
    assert_eq!(state.asked[0], format!("00-{}-{}-01", hex(&probe.trace_id), hex(&probe.span_id)));
    assert_eq!(hex(&probe.links[0].trace_id), TRACE);
    assert_eq!(probe.links[0].span_id, run.span("upstream").span_id);
    let said = attributes(&probe.attributes);
    assert_eq!((&*said["onlyonce.verdict"], &*said["http.route"]), ("happened", "POST /lost"));
    drop(state);

    let headers = [("Authorization", "Bearer ann")];
    let request = Request { method: "POST", path: "/held", headers: &headers, body: "{}" };
    assert_eq!(http::send(&gateways.node().address().to_string(), request).unwrap().status, 400);
    let is_refusal = |span: &Span| span.name == "POST /held";
    let state = collector.wait(|state| state.spans.iter().any(is_refusal));
    let said = attributes(&state.spans.iter().find(|span| is_refusal(span)).unwrap().attributes);
    assert_eq!((&*said["onlyonce.decision"], said.get("onlyonce.key_digest")), ("missing", None));
}

/// O03: a collector gets the metrics that `/metrics` has, with the same labels and numbers.
#[test]
fn a_collector_gets_the_metrics_of_the_admin_port() {
    let collector = Collector::start();
    let mut gateways = Gateways::new(Engine::Sqlite, &collector.settings(""), &[]);
    for number in 0..3 {
        assert_eq!(pay(&gateways, "/ok/1", &format!("key-{number}"), None).status, 201);
    }
    let shown = text(&http::get(&gateways.node().admin().to_string(), "/metrics").unwrap());
    // The last metrics are sent while it stops.
    assert_eq!(gateways.nodes[0].stop(), Some(0));
    let state = collector.state();
    let sent: BTreeSet<_> = state.metrics.iter().map(|metric| metric.name.clone()).collect();
    let names: BTreeSet<_> = shown
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
        .collect();
    assert_eq!(sent.difference(&names).next(), None, "{names:?}");
    assert_eq!(names.difference(&sent).next(), None, "{sent:?}");
    let data =
        |name: &str| state.metrics.iter().find(|metric| metric.name == name).unwrap().data.clone().unwrap();
    let metric::Data::Sum(requests) = data("onlyonce_requests_total") else { panic!("no counter") };
    assert!(requests.is_monotonic && requests.aggregation_temporality == 2);
    let executed = requests.data_points.iter().find(|point| {
        let labels = attributes(&point.attributes);
        (&*labels["decision"], &*labels["route"]) == ("executed", "POST /ok/*")
    });
    assert_eq!(executed.unwrap().value, Some(number_data_point::Value::AsInt(3)));
    let metric::Data::Histogram(added) = data("onlyonce_added_latency_seconds") else {
        panic!("no histogram")
    };
    let point = &added.data_points[0];
    assert_eq!((point.count, point.bucket_counts.iter().sum::<u64>()), (3, 3));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert!(point.sum.unwrap() > 0.0 && point.time_unix_nano > point.start_time_unix_nano);
    let metric::Data::Gauge(build) = data("onlyonce_build_info") else { panic!("no gauge") };
    assert_eq!(build.data_points[0].value, Some(number_data_point::Value::AsDouble(1.0)));
}

/// O03: a collector that is gone costs nothing: requests are answered, what it would have got is dropped and counted, and it is
/// logged once a minute.
#[test]
fn a_collector_that_is_gone_costs_nothing() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = format!("[telemetry]\notlp = \"http://{nobody}\"\n");
    let mut gateways = Gateways::new(Engine::Memory, &settings, &[]);
    let mut dropped = 0;
    // Two rounds that fail, one after the other.
    for round in 0..2 {
        assert_eq!(pay(&gateways, "/ok/1", &format!("round-{round}"), None).status, 201);
        let began = std::time::Instant::now();
        while gateways.sum("onlyonce_spans_dropped_total") < dropped + 4 {
            assert!(began.elapsed() < SOON, "nothing is dropped");
        }
        dropped = gateways.sum("onlyonce_spans_dropped_total");
    }
    assert_eq!(pay(&gateways, "/ok/1", "round-0", None).status, 201);
    gateways.nodes[0].signal("TERM");
    let mut said = gateways.nodes[0].says("does not accept traces");
    assert_eq!(gateways.nodes[0].ended().code(), Some(0));
    said.push_str(&gateways.nodes[0].rest());
    assert_eq!(said.matches("does not accept traces").count(), 1, "{said}");
    assert!(said.contains(&nobody.to_string()), "{said}");
}
