//! `onlyonce epoch raise`: has every node drop its copies of completed records, after a backup was restored.

use std::io::{self, Write};

use onlyonce::Engine;
use serde_json::json;

use super::failure::Failure;
use super::target::held;
use crate::cli::{Epoch, RaiseEpoch};
use crate::{Ended, config, store};

pub(crate) async fn run(verb: &Epoch) -> Result<Ended, Failure> {
    match verb {
        Epoch::Raise(arguments) => raise(arguments).await,
    }
}

async fn raise(arguments: &RaiseEpoch) -> Result<Ended, Failure> {
    let settings = config::work(&arguments.sources())?;
    let url = &settings.store;
    if let Some(holder) = url.holder()?.filter(|_| !arguments.dry_run) {
        return Err(held(url, &holder, "stop that process, and start it again afterwards"));
    }
    let opened = if arguments.dry_run {
        url.open_for_reading(settings.encryption.as_ref()).await?
    } else {
        url.open_for_changes(settings.expired, settings.encryption.as_ref()).await?
    };
    let before = opened.epoch().await?.epoch;
    if !arguments.dry_run {
        let engine = Engine::new(opened.clone());
        engine.raise_epoch().await?;
    }
    let after = opened.epoch().await?.epoch;
    store::close(opened).await?;
    let mut out = io::stdout().lock();
    if arguments.json {
        let told = json!({ "store": url.to_string(), "done": !arguments.dry_run, "before": before.0, "after": after.0 });
        writeln!(out, "{told:#}")?;
    } else if arguments.dry_run {
        writeln!(out, "would raise the epoch of {url}, which is {}; nothing was changed", before.0)?;
    } else {
        writeln!(
            out,
            "raised the epoch of {url} from {} to {}; no node uses a copy from before",
            before.0, after.0
        )?;
    }
    Ok(Ended::Yes)
}
