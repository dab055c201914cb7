//! `onlyonce outbox`: messages of a gateway's store, by its admin port.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::failure::Failure;
use super::keys::{audited, print_json};
use super::target::{Gateway, Listing, Order, claims, messages};
use super::text::{Colour, Table, age, member, span};
use crate::Ended;
use crate::cli::{self, Outbox};

/// How many dead letters one request redrives. There may be more: then it is asked again.
const AT_ONCE: usize = 1_000;

pub(crate) async fn run(verb: Outbox) -> Result<Ended, Failure> {
    let gateway = Gateway::new(&verb.place().place())?;
    match verb {
        Outbox::List(arguments) => list(&gateway, &arguments).await,
        Outbox::Redrive(arguments) => redrive(&gateway, &arguments).await,
        Outbox::Discard(arguments) => discard(&gateway, &arguments).await,
    }
}

async fn list(gateway: &Gateway, arguments: &cli::ListMessages) -> Result<Ended, Failure> {
    let (state, destination) = (arguments.state.as_deref(), arguments.destination.as_deref());
    let listed = messages(gateway, state, destination, arguments.limit).await?;
    if arguments.place.json {
        return print_json(&listed.into_json());
    }
    print(&listed)
}

fn print(listed: &Listing) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    if listed.items.is_empty() {
        writeln!(out, "no messages")?;
        return Ok(Ended::Yes);
    }
    let now = jiff::Timestamp::now();
    let mut table = Table::new(["ID", "STATE", "AGE", "TRY", "DESTINATION", "GROUP", "KEY", "LAST ERROR"]);
    for item in &listed.items {
        table.push(row(item, now));
    }
    let colour = Colour::of_stdout();
    let paint = |row: usize, _: usize, cell: String| match row {
        0 => colour.bold(&cell),
        _ => cell,
    };
    table.write(&mut out, paint)?;
    if !listed.next.is_null() {
        writeln!(out, "… and more; --limit 0 shows all")?;
    }
    Ok(Ended::Yes)
}

fn row(item: &Value, now: jiff::Timestamp) -> [String; 8] {
    let last = item["errors"].as_array().and_then(|errors| errors.last());
    [
        member(item, "id"),
        member(item, "state"),
        age(&item["created_at"], now).map(span).unwrap_or_default(),
        member(item, "deliveries"),
        member(item, "destination"),
        member(item, "group"),
        member(item, "key"),
        last.map(|error| member(error, "error")).unwrap_or_default(),
    ]
}

async fn redrive(gateway: &Gateway, arguments: &cli::Redrive) -> Result<Ended, Failure> {
    let order = order(&arguments.change)?;
    match &arguments.destination {
        Some(destination) => redrive_all(gateway, destination, &order, arguments.place.json).await,
        None => {
            let mut answers = Vec::new();
            for id in &arguments.ids {
                let answer = gateway.redrive(*id, &order).await?;
                tell(&mut answers, answer, ("redrive", "redriven"), arguments.place.json)?;
            }
            end(answers, arguments.place.json)
        }
    }
}

async fn redrive_all(
    gateway: &Gateway,
    destination: &str,
    order: &Order,
    as_json: bool,
) -> Result<Ended, Failure> {
    let mut count = 0;
    loop {
        let answer = gateway.redrive_many(destination, AT_ONCE, order).await?;
        count += answer["count"].as_u64().unwrap_or(0);
        let is_more = answer["is_more"] == true;
        // What was only asked about is still there: asked again, it would be counted again.
        if order.dry_run || !is_more {
            return told_all(count, is_more, order.dry_run, as_json);
        }
    }
}

fn told_all(count: u64, is_more: bool, dry_run: bool, as_json: bool) -> Result<Ended, Failure> {
    if as_json {
        let result = if dry_run { "would-apply" } else { "redriven" };
        return print_json(&json!({ "result": result, "count": count, "is_more": is_more }));
    }
    let (least, noun) =
        (if is_more { "at least " } else { "" }, if count == 1 { "message" } else { "messages" });
    let mut out = io::stdout().lock();
    match dry_run {
        true => writeln!(out, "would redrive {least}{count} {noun}; nothing was changed")?,
        false => writeln!(out, "redriven: {count} {noun}")?,
    }
    Ok(Ended::Yes)
}

async fn discard(gateway: &Gateway, arguments: &cli::Discard) -> Result<Ended, Failure> {
    let order = order(&arguments.change)?;
    let mut answers = Vec::new();
    for id in &arguments.ids {
        let answer = gateway.discard(*id, &order).await?;
        tell(&mut answers, answer, ("discard", "discarded"), arguments.place.json)?;
    }
    end(answers, arguments.place.json)
}

/// Each as it is done: what follows may be refused.
fn tell(
    answers: &mut Vec<Value>,
    answer: Value,
    (verb, done): (&str, &str),
    as_json: bool,
) -> Result<(), Failure> {
    if !as_json {
        let before = &answer["before"];
        let named = format!("message {} to {}", member(before, "id"), member(before, "destination"));
        let mut out = io::stdout().lock();
        match answer["result"] == "would-apply" {
            true => writeln!(out, "would {verb} {named}; nothing was changed")?,
            false => writeln!(out, "{done}: {named}{}", audited(&answer))?,
        }
    }
    answers.push(answer);
    Ok(())
}

fn end(answers: Vec<Value>, as_json: bool) -> Result<Ended, Failure> {
    if as_json {
        return print_json(&Value::Array(answers));
    }
    Ok(Ended::Yes)
}

fn order(change: &cli::ChangeMessages) -> Result<Order, Failure> {
    Ok(Order {
        reason: change.reason.clone(),
        force: false,
        dry_run: change.dry_run,
        claims: claims(change.claims.as_deref())?,
    })
}
