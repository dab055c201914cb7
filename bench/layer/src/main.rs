//! The same handler behind our layer, with its default settings and its workers.
//!
//! ```text
//! bench-layer memory:
//! bench-layer sqlite:PATH [--without-workers]
//! bench-layer postgres://… [--without-workers | --write-first | --cache redis://…]
//! bench-layer mysql://… [--without-workers]
//! bench-layer redis://… [--without-workers]
//! ```
//!
//! With `--write-first` the handler keeps each payment as a row, in one transaction with the record (`write_first.rs`).
//! `GET /_figures` tells what the SQLite engine has done since it was opened.

mod write_first;

use std::io;
use std::sync::Arc;

use axum::routing::get;
use onlyonce::Onlyonce;
use onlyonce::store::Store;
use onlyonce::store::memory::Memory;
use onlyonce::store::mysql::{self, Mysql};
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::redis::{self, Copies, Redis};
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::worker::{Background, Workers};
use serde_json::{Value, json};

const STORES: &str = "memory:, sqlite:PATH, postgres://…, mysql://… or redis://…";

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, flags @ ..] = arguments.as_slice() else {
        return Err(io::Error::other(format!("name the store: {STORES}")));
    };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut cache = None;
    let has_workers = match flags[..] {
        [] => true,
        ["--without-workers"] => false,
        ["--cache", url] => {
            cache = Some(url);
            true
        }
        ["--write-first"] => return write_first::serve(place).await,
        _ => return Err(io::Error::other(format!("cannot understand {flags:?}"))),
    };
    match place.split_once(':') {
        Some(("memory", "")) => serve(Arc::new(Memory::new()), has_workers, cache, || json!({})).await,
        Some(("sqlite", path)) => {
            let sqlite = Sqlite::open(path, Options::default()).await.map_err(io::Error::other)?;
            let sqlite = Arc::new(sqlite);
            serve(sqlite.clone(), has_workers, cache, move || figures(&sqlite)).await
        }
        Some(("postgres", _)) => {
            let store =
                Postgres::open(place, postgres::Options::default()).await.map_err(io::Error::other)?;
            store.prepare().await.map_err(io::Error::other)?;
            serve(Arc::new(store), has_workers, cache, || json!({})).await
        }
        Some(("mysql", _)) => {
            let store = Mysql::open(place, mysql::Options::default()).await.map_err(io::Error::other)?;
            store.prepare().await.map_err(io::Error::other)?;
            serve(Arc::new(store), has_workers, cache, || json!({})).await
        }
        Some(("redis", _)) => {
            let store = Redis::open(place, redis::Options::default()).await.map_err(io::Error::other)?;
            store.prepare().await.map_err(io::Error::other)?;
            serve(Arc::new(store), has_workers, cache, || json!({})).await
        }
        _ => Err(io::Error::other(format!("no such store \"{place}\"; use {STORES}"))),
    }
}

async fn serve(
    store: Arc<dyn Store>,
    has_workers: bool,
    cache: Option<&str>,
    figures: impl Fn() -> Value + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    let onlyonce = Onlyonce::new(store);
    if let Some(url) = cache {
        onlyonce.engine().use_cache(Arc::new(Copies::open(url, None).await.map_err(io::Error::other)?));
    }
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
