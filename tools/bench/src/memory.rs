//! What a gateway holds in memory: after many keys, and while a large body without a key passes through it.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::figures::Figures;
use crate::load::{self, Callers, Work};
use crate::server::Server;
use crate::subjects::{GATEWAY, GATEWAY_SQLITE, PROXY, Subject};
use crate::tools::Tools;

/// Keys that are not counted: by then caches and pools are as large as they get.
const FIRST_SHARE: u64 = 4;
/// How long keys are sent between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A slower gateway than this is not measured.
const KEYS_PER_LOOK_MIN: u64 = 1_000;

/// Both, of the gateway on its file; an upload also of the plain proxy, for comparison. The memory engine holds its
/// records in memory by design, so keys are not counted there.
pub(crate) fn measure(tools: &Tools, keys: u64, upload_bytes: u64, figures: &mut Figures) -> Result<()> {
    let gateway = GATEWAY.named(GATEWAY_SQLITE);
    if figures.missing.iter().any(|(subject, _)| *subject == gateway) {
        return Ok(());
    }
    let held = over_keys(tools, gateway, keys)?;
    eprintln!("keys {}: {held}", gateway.name);
    figures.keys.push((gateway, held));
    for subject in [GATEWAY.named(PROXY), gateway] {
        let server = Server::start(tools, subject)?;
        let held = load::upload(tools, &server, subject, upload_bytes)?;
        eprintln!("upload {}: {held}", subject.name);
        figures.uploads.push((subject, held));
    }
    Ok(())
}

fn over_keys(tools: &Tools, subject: &Subject, keys: u64) -> Result<Value> {
    let server = Server::start(tools, subject)?;
    let first = send(&server, subject, "first", (keys / FIRST_SHARE).max(1))?;
    let counted = send(&server, subject, "counted", keys.max(1))?;
    Ok(json!({
        "keys_before": first.keys,
        "keys": counted.keys,
        "memory_before_bytes": first.after_bytes,
        "memory_after_bytes": counted.after_bytes,
        "memory_max_bytes": counted.most_bytes,
    }))
}

/// What was held while keys were sent.
struct Held {
    keys: u64,
    after_bytes: u64,
    most_bytes: u64,
}

/// At least so many keys, none of them used before.
fn send(server: &Server, subject: &Subject, run: &str, keys: u64) -> Result<Held> {
    let mut held = Held { keys: 0, after_bytes: 0, most_bytes: 0 };
    for look in 0..=keys / KEYS_PER_LOOK_MIN {
        let run = format!("{run}-{look}");
        let work = Work { workload: "unique", run: &run, callers: Callers::Many, time: LOOK_EVERY };
        held.keys += load::wrk_once(server, subject, work)?.requests;
        held.after_bytes = server.memory_bytes()?;
        held.most_bytes = held.most_bytes.max(held.after_bytes);
        if held.keys >= keys {
            break;
        }
    }
    Ok(held)
}
