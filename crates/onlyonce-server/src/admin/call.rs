//! A request that was let in: what it asks for, and everything that is wrong with it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH};
use http::request::Parts;
use onlyonce::Force;
use onlyonce::key::Key;
use onlyonce::operate::Order;
use onlyonce::record::{Id, Revision};
use onlyonce::scope::Scope;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::Admin;
use super::endpoint::Endpoint;
use super::parameter::{Fault, Parameters, Plus, decoded, no_scope, scope};
use super::refusal::{Code, Refusal};
use super::who::{self, Caller};
use crate::whole::{self, Unread};

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";

/// A request that was let in.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) admin: Arc<Admin>,
    pub(super) endpoint: &'static Endpoint,
    pub(super) caller: Caller,
    pub(super) query: Parameters,
    pub(super) head: Parts,
    target: Target,
    faults: Vec<Fault>,
}

/// What the path of a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) scope: Option<[u8; 32]>,
    pub(super) key: Option<Key>,
    /// A message's number.
    pub(super) number: Option<u64>,
}

impl Target {
    /// What a path names by the parameters of its endpoint, and what is wrong with it.
    pub(super) fn of(template: &str, path: &str, faults: &mut Vec<Fault>) -> Self {
        let mut target = Self::default();
        for (name, text) in template.split('/').zip(path.split('/')) {
            match name {
                "{scope}" => {
                    target.scope = decoded(text, Plus::Itself).and_then(|text| scope(&text));
                    if target.scope.is_none() {
                        faults.push(Fault::new("path.scope", no_scope(text)));
                    }
                }
                "{key}" => {
                    target.key = decoded(text, Plus::Itself).map(|text| Key::stored(&text));
                    if target.key.is_none() {
                        let detail = format!("\"{text}\" is not percent-encoded UTF-8");
                        faults.push(Fault::new("path.key", detail));
                    }
                }
                "{id}" => {
                    target.number = text.parse().ok().filter(|_| !text.starts_with('+'));
                    if target.number.is_none() {
                        let detail =
                            format!("\"{text}\" is not the number of a message; GET /v1/outbox lists them");
                        faults.push(Fault::new("path.id", detail));
                    }
                }
                _ => {}
            }
        }
        target
    }

    /// The record it names.
    pub(super) fn id(&self) -> Option<Id> {
        Some(Id::of(&Scope::stored(self.scope?, None), self.key.as_ref()?))
    }
}

impl Call {
    pub(super) fn new(admin: Arc<Admin>, endpoint: &'static Endpoint, caller: Caller, head: Parts) -> Self {
        let mut faults = Vec::new();
        let target = Target::of(endpoint.path, head.uri.path(), &mut faults);
        let query = Parameters::read(endpoint.query, head.uri.query().unwrap_or_default(), &mut faults);
        if endpoint.name.action().is_some() {
            faults.extend(misnamed(&head));
        }
        Self { admin, endpoint, caller, query, head, target, faults }
    }

    /// Refuses it with everything that is wrong with it so far.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let code = match self.faults.iter().all(|fault| fault.is_reason) {
            true => Code::ReasonMissing,
            false => Code::RequestInvalid,
        };
        Err(Refusal::invalid(code, &self.faults))
    }

    /// What else is wrong with it.
    pub(super) fn blame(&mut self, faults: Vec<Fault>) {
        self.faults.extend(faults);
    }

    /// The scope of its path, once it was checked.
    pub(super) fn scope(&self) -> [u8; 32] {
        self.target.scope.expect("a path without a scope is a fault, and was refused")
    }

    /// The record of its path, once it was checked.
    pub(super) fn id(&self) -> Id {
        self.target.id().expect("a path without a scope and a key is a fault, and was refused")
    }

    /// The message of its path, once it was checked.
    pub(super) fn number(&self) -> u64 {
        self.target.number.expect("a path without a number is a fault, and was refused")
    }

    /// The record's name for people, once it was checked.
    pub(super) fn record_name(&self) -> String {
        let key = self.target.key.as_ref().map_or("", Key::as_str);
        format!("key \"{key}\" in scope {}", Scope::stored(self.scope(), None))
    }

    /// The order it gives.
    pub(super) fn order(&mut self, reason: Arc<str>) -> Order {
        Order {
            operator: self.caller.operator(&self.head.headers),
            reason,
            force: if self.query.flag("force") == Some(true) { Force::Yes } else { Force::No },
            expected: self.expected(),
            dry_run: self.query.flag("dry_run") == Some(true),
        }
    }

    /// The revision that `If-Match` names. What is no revision of ours stands for one that no record has.
    fn expected(&mut self) -> Option<Revision> {
        let mut values = self.head.headers.get_all(IF_MATCH).iter();
        let (first, second) = (values.next()?, values.next());
        let text = first.to_str().unwrap_or_default().trim();
        if text == "*" && second.is_none() {
            return None;
        }
        let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let Some(quoted) = quoted.filter(|text| second.is_none() && !text.contains('"')) else {
            let detail = "must be one revision in quotes, as the record's ETag has it";
            self.faults.push(Fault::new("header.if-match", detail));
            return None;
        };
        let is_revision = quoted.len() == 16 && quoted.bytes().all(|byte| byte.is_ascii_hexdigit());
        let known = u64::from_str_radix(quoted, 16).ok().filter(|_| is_revision);
        Some(Revision(known.unwrap_or_else(|| {
            let digest = Sha256::digest(quoted);
            digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
        })))
    }

    /// All of its body, which must be JSON and not too large.
    pub(super) async fn read(&self, body: Body) -> Result<Bytes, Refusal> {
        if !is_json(&self.head) {
            let detail = "send the body as JSON, with the header Content-Type: application/json";
            return Err(Refusal::new(Code::ContentType, detail));
        }
        let bytes_max = self.admin.rules().body_bytes_max;
        let too_large = || {
            Refusal::new(Code::BodyTooLarge, format!("the body has more than {bytes_max} bytes"))
                .with("bytes_max", bytes_max)
        };
        let length =
            self.head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: usize| length > bytes_max) {
            return Err(too_large());
        }
        match timeout(BODY_WITHIN, whole::read(pin!(body), bytes_max as u64, |_| true)).await {
            Ok(Ok(whole)) => Ok(whole),
            Ok(Err(Unread::TooLarge)) => Err(too_large()),
            Ok(Err(Unread::NoRoom | Unread::Broken)) | Err(_) => {
                let fault = Fault::new("body", "could not be read to its end; send it again");
                Err(Refusal::invalid(Code::RequestInvalid, &[fault]))
            }
        }
    }
}

fn is_json(head: &Parts) -> bool {
    let mut values = head.headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    media.trim().eq_ignore_ascii_case(JSON)
}

/// What is wrong with the name that a person calls itself.
fn misnamed(head: &Parts) -> Option<Fault> {
    let mut values = head.headers.get_all(who::AS).iter();
    let first = values.next()?;
    let is_fine = who::name(first).is_some() && values.next().is_none();
    (!is_fine).then(|| {
        let detail = format!("must be one name of 1 to {} characters, in UTF-8", who::AS_CHARS_MAX);
        Fault::new("header.onlyonce-as", detail)
    })
}
