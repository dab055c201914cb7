//! Errors of DynamoDB, with their kind, what they mean for a write, and a remedy.

use std::fmt;

use serde_json::Value;

use super::value::Item;
use crate::{Error, ErrorKind};

/// An error that can be cloned.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    /// Whether certainly nothing was written.
    pub(super) wrote_nothing: bool,
    message: String,
}

/// What is not done: an answer that callers look at, or a failure.
#[derive(Debug)]
pub(super) enum Fault {
    /// The condition does not hold; with the item that stands there, where the server shows it.
    Condition(Option<Item>),
    /// A transaction was not executed; the reason of each of its parts.
    Cancelled(Vec<Reason>),
    /// There is no such table.
    NoTable(Failure),
    /// The table is there already, or is being changed.
    InUse(Failure),
    Failure(Failure),
}

/// Why a part of a transaction was not executed.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) code: String,
    pub(super) item: Option<Item>,
}

/// What may be done about an error that the server answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Sent again after a pause.
    Again,
    /// Signed with the server's time, or other credentials, and sent again.
    SignAnew,
    Nothing,
}

impl Failure {
    /// An error after which nothing was written, since we or the server refused.
    pub(super) fn refused(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, wrote_nothing: true, message: message.into() }
    }

    /// An error after which it is unknown what was written.
    pub(super) fn doubt(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unavailable, wrote_nothing: false, message: message.into() }
    }

    /// An answer that is none to what was asked.
    pub(super) fn misunderstood(shown: &str, what: &str) -> Self {
        Self::doubt(format!("{shown}: an answer without {what}; check that its endpoint is DynamoDB"))
    }

    /// The same for a call that may have been sent, or certainly was not.
    pub(super) fn having_sent(self, was_sent: bool) -> Self {
        Self { wrote_nothing: !was_sent, ..self }
    }

    /// The same where an earlier sending of the call may have been executed.
    pub(super) fn after_doubt(self, is_in_doubt: bool) -> Self {
        Self { wrote_nothing: self.wrote_nothing && !is_in_doubt, ..self }
    }
}

impl Fault {
    /// What the server answered with an error, and what may be done about it.
    pub(super) fn answered(shown: &str, status: u16, body: &[u8]) -> (Self, Then) {
        let told: Value = serde_json::from_slice(body).unwrap_or_default();
        let code = told["__type"].as_str().unwrap_or_default();
        let code = code.rsplit_once('#').map_or(code, |(_, code)| code);
        let said = told["message"].as_str().or_else(|| told["Message"].as_str()).unwrap_or_default();
        match code {
            "ConditionalCheckFailedException" => (Self::Condition(item(&told)), Then::Nothing),
            "TransactionCanceledException" => {
                let reasons = told["CancellationReasons"].as_array().map(Vec::as_slice).unwrap_or_default();
                let reason = |told: &Value| Reason {
                    code: told["Code"].as_str().unwrap_or_default().to_owned(),
                    item: item(told),
                };
                (Self::Cancelled(reasons.iter().map(reason).collect()), Then::Nothing)
            }
            _ => {
                let (kind, then, remedy) = judge(status, code);
                let told = match (code, said) {
                    ("", _) => format!("HTTP status {status}"),
                    (code, "") => code.to_owned(),
                    (code, said) => format!("{code}: {said}"),
                };
                let message = format!("{shown}: {told}; {remedy}");
                let failure = if status >= 500 {
                    Failure { kind, wrote_nothing: false, message }
                } else {
                    Failure::refused(kind, message)
                };
                let fault = match code {
                    "ResourceNotFoundException" => Self::NoTable(failure),
                    "ResourceInUseException" => Self::InUse(failure),
                    _ => Self::Failure(failure),
                };
                (fault, then)
            }
        }
    }

    pub(super) fn failure(self, shown: &str) -> Failure {
        match self {
            Self::NoTable(failure) | Self::InUse(failure) | Self::Failure(failure) => failure,
            Self::Condition(_) => {
                Failure::refused(ErrorKind::Other, format!("{shown}: a condition that must hold does not"))
            }
            Self::Cancelled(reasons) => cancelled(shown, &reasons),
        }
    }

    /// The same where an earlier sending of the call may have been executed.
    pub(super) fn after_doubt(self, is_in_doubt: bool) -> Self {
        match self {
            Self::Failure(failure) => Self::Failure(failure.after_doubt(is_in_doubt)),
            Self::NoTable(failure) => Self::NoTable(failure.after_doubt(is_in_doubt)),
            Self::InUse(failure) => Self::InUse(failure.after_doubt(is_in_doubt)),
            // The first sending may be the transaction that the second one met.
            Self::Cancelled(reasons)
                if is_in_doubt && reasons.iter().all(|reason| reason.code != CONDITION) =>
            {
                let failure = cancelled("DynamoDB", &reasons).after_doubt(true);
                Self::Failure(Failure { kind: ErrorKind::Unavailable, ..failure })
            }
            // The item that stands there tells.
            Self::Condition(_) | Self::Cancelled(_) => self,
        }
    }
}

/// The code of a condition that does not hold, in a transaction.
pub(super) const CONDITION: &str = "ConditionalCheckFailed";

/// A transaction that was cancelled for another reason than a condition.
fn cancelled(shown: &str, reasons: &[Reason]) -> Failure {
    let code = reasons.iter().map(|reason| &*reason.code).find(|code| !matches!(*code, "None" | ""));
    let code = code.unwrap_or("no reason");
    let (kind, remedy) = match code {
        "TransactionConflict" => {
            (ErrorKind::Busy, "another write of the record was under way; it may be tried again")
        }
        "ProvisionedThroughputExceeded" | "ThrottlingError" => (ErrorKind::Unavailable, THROTTLED),
        _ => (ErrorKind::Other, "see its message"),
    };
    Failure::refused(kind, format!("{shown}: the transaction was cancelled by {code}; {remedy}"))
}

const THROTTLED: &str = "raise the capacity of the table, or use on-demand capacity";

/// The errors that a store meets. One with a status below 500 has written nothing.
fn judge(status: u16, code: &str) -> (ErrorKind, Then, &'static str) {
    use ErrorKind::{Misconfigured, Other, Unavailable};
    match code {
        "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "ThrottlingException"
        | "LimitExceededException" => (Unavailable, Then::Again, THROTTLED),
        "TransactionConflictException" | "TransactionInProgressException" => {
            (Unavailable, Then::Again, "a transaction on the record was under way; it may be tried again")
        }
        "ResourceNotFoundException" => (
            Misconfigured,
            Then::Nothing,
            "check table and region, or run \"onlyonce migrate\" to create the table",
        ),
        "ResourceInUseException" => {
            (Unavailable, Then::Nothing, "the table is being changed; wait until it is ACTIVE")
        }
        "AccessDeniedException" => {
            (Misconfigured, Then::Nothing, "allow the role what docs/engines.md lists for DynamoDB")
        }
        "UnrecognizedClientException" | "ExpiredTokenException" | "ExpiredToken" | "InvalidClientTokenId" => {
            (Misconfigured, Then::SignAnew, "check the AWS credentials of this process")
        }
        "InvalidSignatureException" | "SignatureDoesNotMatch" | "RequestExpired" | "RequestTimeTooSkewed" => {
            (Misconfigured, Then::SignAnew, "check the AWS secret access key and this machine's clock")
        }
        "IncompleteSignatureException"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "OptInRequired" => {
            (Misconfigured, Then::Nothing, "check the AWS credentials and account of this process")
        }
        "UnknownOperationException" => (Misconfigured, Then::Nothing, "check that the endpoint is DynamoDB"),
        "ItemCollectionSizeLimitExceededException" | "ValidationException" | "SerializationException" => {
            (Other, Then::Nothing, "see its message")
        }
        _ if status >= 500 => (Unavailable, Then::Again, "DynamoDB is in trouble; it may be tried again"),
        _ if status == 429 => (Unavailable, Then::Again, THROTTLED),
        _ => (Other, Then::Nothing, "see its message"),
    }
}

fn item(told: &Value) -> Option<Item> {
    told["Item"].as_object().map(|item| Item(item.clone()))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Self::new(failure.kind, failure.message);
        if failure.wrote_nothing { error.having_written_nothing() } else { error }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.failure("DynamoDB").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X05
    #[test]
    fn each_answer_has_its_kind_and_says_what_it_left() {
        use ErrorKind::{Misconfigured, Other, Unavailable};
        for (status, code, kind, wrote_nothing) in [
            (400, "ProvisionedThroughputExceededException", Unavailable, true),
            (400, "ThrottlingException", Unavailable, true),
            (400, "RequestLimitExceeded", Unavailable, true),
            (400, "TransactionConflictException", Unavailable, true),
            (500, "InternalServerError", Unavailable, false),
            (503, "ServiceUnavailable", Unavailable, false),
            (502, "", Unavailable, false),
            (400, "ResourceNotFoundException", Misconfigured, true),
            (400, "AccessDeniedException", Misconfigured, true),
            (400, "UnrecognizedClientException", Misconfigured, true),
            (400, "InvalidSignatureException", Misconfigured, true),
            (400, "ItemCollectionSizeLimitExceededException", Other, true),
            (400, "ValidationException", Other, true),
            (404, "", Other, true),
        ] {
            let body = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"so"}}"#);
            let failure = Fault::answered("dynamodb://t", status, body.as_bytes()).0.failure("t");
            assert_eq!((failure.kind, failure.wrote_nothing), (kind, wrote_nothing), "{status} {code}");
            assert!(failure.to_string().contains(&status.to_string()) || failure.to_string().contains(code));
        }
    }

    /// X05: what was sent twice has written nothing only where neither did.
    #[test]
    fn a_refusal_after_a_doubt_is_a_doubt() {
        let body = br#"{"__type":"x#ThrottlingException"}"#;
        let fault = Fault::answered("t", 400, body).0;
        assert!(!fault.after_doubt(true).failure("t").wrote_nothing);
        let conflict = || {
            let reasons = r#""CancellationReasons":[{"Code":"TransactionConflict"},{"Code":"None"}]"#;
            let body = format!(r#"{{"__type":"x#TransactionCanceledException",{reasons}}}"#);
            Fault::answered("t", 400, body.as_bytes()).0
        };
        let failure = conflict().after_doubt(false).failure("t");
        assert_eq!((failure.kind, failure.wrote_nothing), (ErrorKind::Busy, true));
        let failure = conflict().after_doubt(true).failure("t");
        assert_eq!((failure.kind, failure.wrote_nothing), (ErrorKind::Unavailable, false));
    }
}
