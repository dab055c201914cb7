//! The same handler behind our layer, with its default settings and its workers.
//!
//! ```text
//! bench-layer memory:
//! bench-layer sqlite:PATH [--without-workers]
//! bench-layer postgres://… [--without-workers]
//! ```
//!
//! `GET /_figures` tells what the SQLite engine has done since it was opened.

use std::io;
use std::sync::Arc;

use axum::routing::get;
use onlyonce::Onlyonce;
use onlyonce::store::Store;
use onlyonce::store::memory::Memory;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::worker::{Background, Workers};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, flags @ ..] = arguments.as_slice() else {
        return Err(io::Error::other("name the store: memory:, sqlite:PATH or postgres://…"));
    };
    let has_workers = match flags {
        [] => true,
        [flag] if flag == "--without-workers" => false,
        other => return Err(io::Error::other(format!("cannot understand {other:?}"))),
    };
    match place.split_once(':') {
        Some(("memory", "")) => serve(Arc::new(Memory::new()), has_workers, || json!({})).await,
        Some(("sqlite", path)) => {
            let sqlite = Sqlite::open(path, Options::default()).await.map_err(io::Error::other)?;
            let sqlite = Arc::new(sqlite);
            serve(sqlite.clone(), has_workers, move || figures(&sqlite)).await
        }
        Some(("postgres", _)) => {
            let store =
                Postgres::open(place, postgres::Options::default()).await.map_err(io::Error::other)?;
            store.prepare().await.map_err(io::Error::other)?;
            serve(Arc::new(store), has_workers, || json!({})).await
        }
        _ => Err(io::Error::other(format!(
            "no such store \"{place}\"; use memory:, sqlite:PATH or postgres://…"
        ))),
    }
}

async fn serve(
    store: Arc<dyn Store>,
    has_workers: bool,
    figures: impl Fn() -> Value + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    let onlyonce = Onlyonce::new(store);
    let _workers = has_workers.then(|| Workers::start(onlyonce.engine(), &Background::default()));
    let router = bench_plain::payments().layer(onlyonce.layer());
    bench_plain::serve(router.route("/_figures", get(async move || figures().to_string()))).await
}

fn figures(sqlite: &Sqlite) -> Value {
    let figures = sqlite.figures();
    json!({
        "commits": figures.commits,
        "works": figures.works,
        "checkpoints": figures.checkpoints,
        "abandoned": figures.abandoned,
    })
}
