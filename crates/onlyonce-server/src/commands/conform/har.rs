//! Requests and answers as an HTTP archive. Headers of callers are masked, and so are cookies.

use serde_json::{Value, json};

use super::subject::{Exchange, Subject};
use super::wire::Answer;

const MASKED: [&str; 2] = ["set-cookie", "www-authenticate"];

pub(super) fn of(subject: &Subject) -> Value {
    let said = subject.said();
    let entries = said.exchanges.iter().map(|exchange| entry(subject, exchange));
    json!({
        "log": {
            "version": "1.2",
            "creator": { "name": "onlyonce conform", "version": env!("CARGO_PKG_VERSION") },
            "entries": entries.collect::<Vec<_>>(),
        }
    })
}

fn entry(subject: &Subject, exchange: &Exchange) -> Value {
    let mut lines = exchange.head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers: Vec<Value> = headers.map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let origin = format!(
        "{}://{}",
        subject.url.scheme_str().unwrap_or("http"),
        subject.url.authority().map_or("", |authority| authority.as_str())
    );
    let millis = exchange.took.as_secs_f64() * 1000.0;
    let at = jiff::Timestamp::try_from(exchange.at).map_or_else(|_| String::new(), |at| at.to_string());
    json!({
        "startedDateTime": at,
        "time": millis,
        "request": {
            "method": subject.method,
            "url": format!("{origin}{path}"),
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": headers,
            "queryString": [],
            "headersSize": exchange.head.len(),
            "bodySize": exchange.body.len(),
            "postData": { "mimeType": subject.content_type, "text": String::from_utf8_lossy(&exchange.body) },
        },
        "response": match &exchange.answer {
            Ok(Some(answer)) => response(answer),
            Ok(None) => none("the client hung up"),
            Err(why) => none(why),
        },
        "cache": {},
        "timings": { "send": 0, "wait": millis, "receive": 0 },
    })
}

fn response(answer: &Answer) -> Value {
    let headers = answer.headers.iter().map(|(name, value)| {
        let value = if MASKED.contains(&name.as_str()) { "(masked)" } else { value };
        json!({ "name": name, "value": value })
    });
    json!({
        "status": answer.status,
        "statusText": "",
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": headers.collect::<Vec<_>>(),
        "content": {
            "size": answer.body.len(),
            "mimeType": answer.header("content-type").unwrap_or_default(),
            "text": String::from_utf8_lossy(&answer.body),
        },
        "redirectURL": "",
        "headersSize": -1,
        "bodySize": answer.body.len(),
    })
}

/// As browsers write down an answer that never came.
fn none(why: &str) -> Value {
    json!({
        "status": 0, "statusText": why, "httpVersion": "", "cookies": [], "headers": [],
        "content": { "size": 0, "mimeType": "" }, "redirectURL": "", "headersSize": -1, "bodySize": -1,
    })
}
