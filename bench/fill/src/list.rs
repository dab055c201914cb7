//! Times pages of listings on a file that was filled, as an operator would ask for them.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use onlyonce_store::sqlite::{Options, Sqlite};
use onlyonce_store::{Query, Search, Store};
use serde_json::{Value, json};

use crate::unknown;

const LIMIT: usize = 50;
/// So many pages of each listing, from its beginning on.
const PAGES: usize = 100;
/// So many records with an unknown outcome are added where there are none.
const UNKNOWN: u64 = 20_000;

pub(crate) async fn list(path: &str) -> io::Result<Value> {
    let store = Arc::new(Sqlite::open(path, Options::default()).await.map_err(io::Error::other)?);
    add_unknown(&store).await?;
    let all = Query::all(LIMIT);
    let listings = [
        ("by a key that is not there", Query { search: Some(Search::new("no such key")), ..all.clone() }),
        ("by route", Query { route: Some("POST /payments".into()), ..all }),
        ("unknown oldest first", Query::unknown_since(LIMIT)),
    ];
    let mut told = Vec::new();
    for (what, query) in listings {
        told.push(json!({ "what": what, "pages_ms": pages_ms(&store, query).await? }));
    }
    Ok(json!({ "limit": LIMIT, "listings": told }))
}

async fn pages_ms(store: &Sqlite, mut query: Query) -> io::Result<Vec<f64>> {
    let mut spans = Vec::new();
    for _ in 0..PAGES {
        let began = Instant::now();
        let page = store.scan(query.clone()).await.map_err(io::Error::other)?;
        spans.push(began.elapsed().as_secs_f64() * 1e3);
        // After the last page, from the beginning again.
        query.after = page.next;
    }
    Ok(spans)
}

async fn add_unknown(store: &Arc<Sqlite>) -> io::Result<()> {
    let oldest = store.scan(Query::unknown_since(1)).await.map_err(io::Error::other)?;
    if !oldest.records.is_empty() {
        return Ok(());
    }
    unknown::add(store, UNKNOWN, None).await
}
