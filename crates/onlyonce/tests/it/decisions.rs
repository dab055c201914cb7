//! The decision log: one line for each keyed request, which names its record by a digest that finds it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use onlyonce::Policy;
use onlyonce::store::{Query, Search, Store};
use tracing_subscriber::fmt::MakeWriter;

use crate::world::{World, order, order_with};

#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn of_decisions(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["target"] == "onlyonce::decisions").collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// O09, K09
#[tokio::test(start_paused = true)]
async fn a_keyed_request_leaves_one_line_and_its_digest_finds_the_record() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(lines.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let world = World::new(Policy::default());
    world.send(order("order-of-ann")).await;
    world.send(order("order-of-ann")).await;
    world.send(order_with("order-of-bob", &[("x-status", "502")])).await;
    world.send(order_with("order-of-bob", &[("x-status", "502")])).await;
    let told = lines.of_decisions();
    let summary: Vec<_> =
        told.iter().map(|line| (line["decision"].as_str().unwrap(), &line["status"])).collect();
    let expected = [("executed", 201), ("replayed", 201), ("executed", 502), ("unknown", 409)];
    assert_eq!(summary.len(), expected.len(), "{told:?}");
    for ((decision, status), (wanted, code)) in summary.iter().zip(expected) {
        assert_eq!((*decision, status.as_u64()), (wanted, Some(code)), "{told:?}");
    }
    assert_eq!(told[0]["attempt"], 1);
    assert!(told[0]["added_us"].is_u64() && told[0]["route"].is_string(), "{told:?}");
    let digest = told[0]["record"].as_str().unwrap();
    let found = Query { search: Some(Search::new(digest)), ..Query::all(10) };
    let found = world.store.scan(found).await.unwrap().records;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1.record.key.as_str(), "order-of-ann");
    assert!(!format!("{told:?}").contains("order-of-ann"), "the key itself is in no line");
}
