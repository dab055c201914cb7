//! The messages of OTLP 1: `opentelemetry/proto/collector/{trace,metrics}/v1`. The numbers are those of its fields.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onlyonce::trace::{Kind, Span, Value};

use super::protobuf::Message;
use crate::metric::{Distribution, Family, Labels, Samples};

/// Whose traces and metrics these are.
pub(super) struct Resource {
    pub(super) service_name: String,
    /// This node among others.
    pub(super) instance: String,
    /// Since when it counts.
    pub(super) since: SystemTime,
}

const CUMULATIVE: i64 = 2;
const STATUS_ERROR: i64 = 2;

/// `ExportTraceServiceRequest`
pub(super) fn traces(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    export(resource, |out| spans.iter().for_each(|span| out.message(2, |out| write_span(out, span))))
}

/// `ExportMetricsServiceRequest`, as counted at `now`.
pub(super) fn metrics(resource: &Resource, families: &[Family], now: SystemTime) -> Vec<u8> {
    let span = (nanos(resource.since), nanos(now));
    export(resource, |out| {
        families.iter().for_each(|family| out.message(2, |out| write_metric(out, family, span)));
    })
}

/// Both requests: `resource_spans` or `resource_metrics`, of one resource and one scope, and what `write` writes into that.
fn export(resource: &Resource, write: impl FnOnce(&mut Message)) -> Vec<u8> {
    Message::of(|out| {
        out.message(1, |out| {
            out.message(1, |out| {
                for (name, value) in [
                    ("service.name", &*resource.service_name),
                    ("service.version", env!("CARGO_PKG_VERSION")),
                    ("service.instance.id", &resource.instance),
                ] {
                    write_attribute(out, 1, name, |out| out.text(1, value));
                }
            });
            out.message(2, |out| {
                out.message(1, |out| {
                    out.text(1, "onlyonce");
                    out.text(2, env!("CARGO_PKG_VERSION"));
                });
                write(out);
            });
        });
    })
}

/// `KeyValue`
fn write_attribute(out: &mut Message, field: u32, name: &str, write_value: impl FnOnce(&mut Message)) {
    out.message(field, |out| {
        out.text(1, name);
        out.message(2, write_value);
    });
}

fn write_span(out: &mut Message, span: &Span) {
    out.bytes(1, &span.trace.0);
    out.bytes(2, &span.id.0);
    if let Some(parent) = &span.parent {
        out.bytes(4, &parent.0);
    }
    out.text(5, &span.name);
    out.integer(
        6,
        match span.kind {
            Kind::Internal => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        },
    );
    out.fixed64(7, nanos(span.began));
    out.fixed64(8, nanos(span.began + span.took));
    for (name, value) in &span.attributes {
        write_attribute(out, 9, name, |out| match value {
            Value::Text(text) => out.text(1, text),
            Value::Number(number) => out.integer(3, *number),
        });
    }
    if let Some((trace, span)) = &span.link {
        out.message(13, |out| {
            out.bytes(1, &trace.0);
            out.bytes(2, &span.0);
        });
    }
    if span.is_error {
        out.message(15, |out| out.integer(3, STATUS_ERROR));
    }
}

fn write_metric(out: &mut Message, family: &Family, span: (u64, u64)) {
    out.text(1, &family.name);
    out.text(2, &family.help);
    if family.name.ends_with("_seconds") {
        out.text(3, "s");
    }
    match &family.samples {
        Samples::Gauge(samples) => out.message(5, |out| {
            for (labels, value) in samples {
                write_number(out, labels, span, |out| out.double(4, *value));
            }
        }),
        Samples::Counter(samples) => out.message(7, |out| {
            for (labels, value) in samples {
                // As a signed number, which no counter is too large for.
                write_number(out, labels, span, |out| out.fixed64(6, *value));
            }
            out.integer(2, CUMULATIVE);
            out.integer(3, true.into());
        }),
        Samples::Histogram(samples) => out.message(9, |out| {
            for (labels, distribution) in samples {
                out.message(1, |out| write_distribution(out, labels, distribution, span));
            }
            out.integer(2, CUMULATIVE);
        }),
    }
}

/// `NumberDataPoint`
fn write_number(
    out: &mut Message,
    labels: &Labels,
    (since, now): (u64, u64),
    write_value: impl FnOnce(&mut Message),
) {
    out.message(1, |out| {
        out.fixed64(2, since);
        out.fixed64(3, now);
        write_value(out);
        write_labels(out, 7, labels);
    });
}

/// `HistogramDataPoint`
fn write_distribution(
    out: &mut Message,
    labels: &Labels,
    distribution: &Distribution,
    (since, now): (u64, u64),
) {
    let Distribution { bounds, counts, sum } = distribution;
    out.fixed64(2, since);
    out.fixed64(3, now);
    out.fixed64(4, counts.iter().sum());
    out.double(5, *sum);
    out.packed(6, counts.iter().copied());
    out.packed(7, bounds.iter().map(|bound| bound.to_bits()));
    write_labels(out, 9, labels);
}

fn write_labels(out: &mut Message, field: u32, labels: &Labels) {
    for (name, value) in labels {
        write_attribute(out, field, name, |out| out.text(1, value));
    }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
