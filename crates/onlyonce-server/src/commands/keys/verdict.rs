//! `onlyonce keys verdict`: a person says what became of the work.

use std::io::{self, Read, Write};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce::record::Response;
use serde_json::Value;

use super::super::target::{Name, Order, Purpose, Saying, Target};
use super::super::text::member;
use super::{Failure, audited, closing, named, print_json};
use crate::Ended;
use crate::cli::{Verdict, Word};
use crate::saying::MADE_BY_THE_GATEWAY;

pub(crate) async fn run(arguments: &Verdict) -> Result<Ended, Failure> {
    let saying = saying(arguments)?;
    let target = Target::open(&arguments.place, Purpose::of(&arguments.change)).await?;
    let judged = judge(&target, arguments, &saying).await;
    let (name, answer) = closing(target, judged).await?;
    if arguments.place.json {
        return print_json(&answer);
    }
    let [before, after] = ["before", "after"].map(|when| member(&answer[when], "state"));
    let mut out = io::stdout().lock();
    if arguments.change.dry_run {
        writeln!(out, "would be done: {} from {before} to {after}; nothing was changed", named(&name))?;
    } else {
        writeln!(out, "{}: {before}, now {after}{}", member(&answer, "result"), audited(&answer))?;
    }
    Ok(Ended::Yes)
}

async fn judge(target: &Target, arguments: &Verdict, saying: &Saying) -> Result<(Name, Value), Failure> {
    let name = target.name(&arguments.scope, &arguments.key).await?;
    if !arguments.place.json {
        writeln!(io::stdout(), "{} {}: {}", named(&name), arguments.word.as_str(), follows(saying))?;
    }
    let answer = target.verdict(&name, saying, &Order::of(&arguments.change)?).await?;
    Ok((name, answer))
}

/// What follows from a verdict, in words.
fn follows(saying: &Saying) -> String {
    match (saying.word, &saying.response) {
        (Word::Happened, Some(response)) => format!(
            "retries get {} with {} bytes, and nothing runs again",
            response.status,
            response.body.len()
        ),
        (Word::Happened, None) if saying.ask => {
            "the probe is called for the answer, retries get it, and nothing runs again".to_owned()
        }
        (Word::Happened, None) => {
            "retries get 409 (the work is done, its answer is not stored), and nothing runs again".to_owned()
        }
        (Word::DidNotHappen, _) => "the next retry runs the work again".to_owned(),
        (Word::Unknown, _) => "the probe is asked at once".to_owned(),
    }
}

/// What is said, where it makes sense together.
fn saying(arguments: &Verdict) -> Result<Saying, Failure> {
    let only = |is_given: bool, flag: &str, word: Word| {
        if is_given && arguments.word != word {
            return Err(Failure::arguments(format!(
                "{flag} goes with {}, not with {}; leave it out",
                word.as_str(),
                arguments.word.as_str()
            )));
        }
        Ok(())
    };
    only(arguments.never_will, "--final", Word::DidNotHappen)?;
    only(arguments.status.is_some(), "--status", Word::Happened)?;
    only(arguments.ask, "--ask", Word::Happened)?;
    let attempt = match &arguments.attempt {
        Some(text) => {
            Some(text.parse().map_err(|error| Failure::arguments(format!("--attempt is {error}")))?)
        }
        None => None,
    };
    Ok(Saying {
        word: arguments.word,
        never_will: arguments.never_will,
        response: arguments.status.map(|status| response(status, arguments)).transpose()?,
        ask: arguments.ask,
        attempt,
    })
}

fn response(status: u16, arguments: &Verdict) -> Result<Response, Failure> {
    if !(200..=599).contains(&status) {
        return Err(Failure::arguments(format!(
            "--status \"{status}\" is not a final HTTP status; use 200 to 599"
        )));
    }
    let headers = arguments.headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?;
    let body = body(arguments)?;
    if matches!(status, 204 | 205 | 304) && !body.is_empty() {
        let detail =
            format!("--body does not go with --status {status}: such an answer has no body; leave it out");
        return Err(Failure::arguments(detail));
    }
    Ok(Response { status, headers, body })
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let parsed = text.split_once(':').and_then(|(name, value)| {
        Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
    });
    if let Some((name, _)) = parsed.as_ref().filter(|(name, _)| MADE_BY_THE_GATEWAY.contains(&name.as_str()))
    {
        let detail = format!("--header \"{name}\" is set by the gateway on every answer; leave it out");
        return Err(Failure::arguments(detail));
    }
    parsed.ok_or_else(|| {
        Failure::arguments(format!(
            "--header \"{text}\" is not a header; write it like 'content-type: text/plain'"
        ))
    })
}

fn body(arguments: &Verdict) -> Result<Bytes, Failure> {
    let unreadable = |file: &std::path::Path, error: io::Error| {
        Failure::arguments(format!("--body-file \"{}\" cannot be read: {error}", file.display()))
    };
    match (&arguments.body, &arguments.body_file) {
        (Some(text), _) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        (None, Some(file)) if file.as_os_str() == "-" => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(|error| unreadable(file, error))?;
            Ok(bytes.into())
        }
        (None, Some(file)) => Ok(std::fs::read(file).map_err(|error| unreadable(file, error))?.into()),
        (None, None) => Ok(Bytes::new()),
    }
}
