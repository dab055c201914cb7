//! The arguments of `onlyonce conform`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// Tests whether an API is safe to retry, from outside: keys, replays, other bodies, other callers, many at once, clients that hang up.
///
/// The API is sent real writes, each under a key of its own: point this at a system where they do no harm. How often a write ran is
/// read from --count or --count-command, else from the answers if those of different keys differ. What can be told from neither is
/// reported as "cannot tell".
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Conform {
    /// The endpoint to test: http://HOST:PORT/PATH or https://…
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// How many writes may be sent; without it nothing is sent
    #[arg(long, value_name = "N")]
    pub(crate) allow_writes: Option<u32>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Whose rules the API follows: one of the dialects
    #[arg(long, value_name = "DIALECT", default_value = "ietf")]
    pub(crate) profile: String,
    /// The method of the writes
    #[arg(long, value_name = "METHOD", default_value = "POST")]
    pub(crate) method: String,
    /// The body of the writes: text, or @FILE
    #[arg(long, value_name = "BODY", default_value = r#"{"amount":1200,"currency":"eur"}"#)]
    pub(crate) body: String,
    /// Another body that the API accepts; without it a number in --body is changed
    #[arg(long, value_name = "BODY")]
    pub(crate) other_body: Option<String>,
    /// The media type of both
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    pub(crate) content_type: String,
    /// A header of every request, such as the caller's credentials; may be repeated. Values are masked in reports
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<Field>,
    /// The headers of another caller, in place of those of the same name; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) other_caller: Vec<Field>,
    /// A URL that answers GET with how often a write ran: a number, or JSON
    #[arg(long, value_name = "URL", conflicts_with = "count_command")]
    pub(crate) count: Option<String>,
    /// Where the number is in that JSON, as a JSON Pointer
    #[arg(long, value_name = "POINTER", requires = "count")]
    pub(crate) count_pointer: Option<String>,
    /// A command that prints how often a write ran
    #[arg(long, value_name = "COMMAND")]
    pub(crate) count_command: Option<String>,
    /// How long the API keeps a key, if that is a minute at most: the end of it is tested too
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) retention: Option<Duration>,
    /// The API's OpenAPI document: whether it lists the key is tested too
    #[arg(long, value_name = "FILE")]
    pub(crate) openapi: Option<PathBuf>,
    /// Only these groups, separated by commas: key, replay, body, scope, at-once, middle, time, publication
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// How long one answer may take
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    pub(crate) timeout: Duration,
    /// Let a broken "should" count as a failed check too
    #[arg(long)]
    pub(crate) strict: bool,
    /// The form of the report
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(crate) report: Form,
    /// Print the report as JSON; errors too, on stderr
    #[arg(long, conflicts_with = "report")]
    pub(crate) json: bool,
    /// Write every request and answer to this file, as HAR
    #[arg(long, value_name = "FILE")]
    pub(crate) har: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Text,
    Json,
    Junit,
    Markdown,
}

impl Conform {
    pub(crate) fn form(&self) -> Form {
        if self.json { Form::Json } else { self.report }
    }
}

/// `Name: value`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("a header is written as \"Name: value\"")?;
        http::HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| "its name is not a header's")?;
        http::HeaderValue::from_str(value.trim()).map_err(|_| "its value cannot be sent in a header")?;
        Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse() {
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err("give whole seconds, from 1 to 3600".to_owned()),
    }
}

const EXAMPLES: &str = "\
Examples:
  onlyonce conform http://127.0.0.1:8080/payments --dry-run
  onlyonce conform http://127.0.0.1:8080/payments --allow-writes 100 --header 'Authorization: Bearer ann' \\
    --other-caller 'Authorization: Bearer bob' --count http://127.0.0.1:8082/ledger --count-pointer ''
  onlyonce conform https://staging.example/orders --allow-writes 100 --profile stripe --report junit > conform.xml

Exits 0 if every \"must\" that could be tested holds, 1 if one is broken, 2 if the test
could not be done, or ended before its last check because --allow-writes was used up.";
