use metrics::with_local_recorder;
use onlyonce::record::TraceId;
use onlyonce::trace::{Kind, SpanId};

use super::*;
use crate::metric::{Registry, Samples};

fn span() -> Span {
    Span {
        trace: TraceId([1; 16]),
        id: SpanId([2; 8]),
        parent: None,
        name: "POST /payments".into(),
        kind: Kind::Server,
        began: SystemTime::UNIX_EPOCH,
        took: Duration::from_micros(5),
        attributes: Vec::new(),
        link: None,
        is_error: false,
    }
}

/// O03
#[test]
fn the_queue_is_bounded_and_what_finds_it_full_is_counted() {
    let (spans, registry) = (Spans::default(), Registry::default());
    with_local_recorder(&registry, || (0..SPANS_MAX + 7).for_each(|_| spans.push(span())));
    assert_eq!(spans.take().len(), SPANS_MAX);
    assert_eq!(spans.take().len(), 0);
    let families = registry.families();
    assert_eq!(families[0].name, "onlyonce_spans_dropped_total");
    assert_eq!(families[0].samples, Samples::Counter(vec![(Vec::new(), 7)]));
}
