//! Records whose outcome is unknown.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::key::Key;
use onlyonce_core::record::{Asking, Id, Reason, State};
use onlyonce_core::time::When;
use onlyonce_store::sqlite::{Options, Sqlite};
use onlyonce_store::{Change, Store};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{completed, revision};

/// Adds so many that are due to be asked about, of the routes `POST /asked/0` to `POST /asked/3` in turn.
pub(crate) async fn fill(path: &str, records: u64) -> io::Result<Value> {
    let store = Arc::new(Sqlite::open(path, Options::default()).await.map_err(io::Error::other)?);
    add(&store, records, Some(When::WRITE)).await?;
    Ok(json!({ "records": records }))
}

pub(crate) async fn add(store: &Arc<Sqlite>, records: u64, ask_at: Option<When>) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..records {
        let store = store.clone();
        tasks.spawn(async move {
            let (_, mut next) = completed(number, Duration::ZERO);
            next.key = Key::stored(&format!("unknown-{number:012}"));
            if ask_at.is_some() {
                next.route = Some(format!("POST /asked/{}", number % 4).into());
            }
            next.state = State::Unknown {
                reason: Reason::Lapsed,
                since: When::WRITE,
                asking: Asking::default(),
                ask_at,
                dead_letter: false,
            };
            let id = Id::of(&next.scope, &next.key);
            store.swap(id, Change::new(None, revision(number), next)).await.map(drop)
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    Ok(())
}
