//! Messages of the outbox, as a handler makes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_store::outbox;
use serde::Serialize;

use crate::transaction::{Error, ErrorKind};

/// The key of a message: the same at every delivery.
pub type Key = Arc<str>;

/// The longest payload, in bytes.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The longest key of a message, in characters.
const KEY_CHARS_MAX: usize = 128;
/// The longest group, in characters.
const GROUP_CHARS_MAX: usize = 255;

/// A side effect that is stored with the work and delivered by a relay afterwards: both are there, or neither.
///
/// ```
/// use std::time::Duration;
/// use onlyonce::Message;
///
/// let receipt = Message::to("receipts").json(&serde_json::json!({"ride": 7}))?.group(42);
/// let reminder = Message::to("reminders").bytes("ride 7").content_type("text/plain").after(Duration::from_secs(3600));
/// # Ok::<(), onlyonce::transaction::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    destination: Arc<str>,
    payload: Bytes,
    key: Option<Arc<str>>,
    content_type: Arc<str>,
    group: Option<Arc<str>>,
    delay: Duration,
}

impl Message {
    /// An empty message to a destination of that name.
    pub fn to(destination: impl Into<Arc<str>>) -> Self {
        Self {
            destination: destination.into(),
            payload: Bytes::new(),
            key: None,
            content_type: outbox::CONTENT_TYPE.into(),
            group: None,
            delay: Duration::ZERO,
        }
    }

    /// With this payload, as JSON.
    ///
    /// # Errors
    ///
    /// `Invalid` where it cannot be written as JSON.
    pub fn json(self, payload: &impl Serialize) -> Result<Self, Error> {
        let payload = serde_json::to_vec(payload).map_err(|error| {
            Error::new(ErrorKind::Invalid, "the payload of a message cannot be written as JSON")
                .because(error)
        })?;
        Ok(self.bytes(payload))
    }

    /// With this payload, sent as it is: at most 1 MiB.
    #[must_use]
    pub fn bytes(self, payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..self }
    }

    /// With this media type, instead of `application/json`.
    #[must_use]
    pub fn content_type(self, content_type: impl Into<Arc<str>>) -> Self {
        Self { content_type: content_type.into(), ..self }
    }

    /// With a key of one's own, `[A-Za-z0-9_:-]{1,128}`: a message whose key is known is not stored again. A random one is
    /// right otherwise, since of all attempts one commits.
    #[must_use]
    pub fn key(self, key: impl Into<Arc<str>>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// In order with the other messages of this group to the same destination.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a number or a text is passed as it is")]
    pub fn group(self, group: impl ToString) -> Self {
        Self { group: Some(group.to_string().into()), ..self }
    }

    /// Not delivered before so long after it was stored.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The message as it is stored, with its key.
    pub(crate) fn stored(self) -> Result<outbox::Message, Error> {
        let key = self.key.unwrap_or_else(|| random_key().into());
        let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte);
        let group_chars = self.group.as_deref().map(|group| group.chars().count());
        let fault = if key.is_empty() || key.len() > KEY_CHARS_MAX || !key.bytes().all(is_key) {
            Some(format!("the key \"{}\" of a message is not [A-Za-z0-9_:-]{{1,128}}", key.escape_debug()))
        } else if self.payload.len() > PAYLOAD_BYTES_MAX {
            let bytes = self.payload.len();
            Some(format!("a payload of {bytes} bytes is too large; at most {PAYLOAD_BYTES_MAX} are stored"))
        } else if group_chars.is_some_and(|chars| chars == 0 || chars > GROUP_CHARS_MAX) {
            Some(format!("the group of a message must have 1 to {GROUP_CHARS_MAX} characters"))
        } else {
            None
        };
        match fault {
            Some(fault) => Err(Error::new(ErrorKind::Invalid, fault)),
            None => Ok(outbox::Message {
                key,
                destination: self.destination,
                payload: self.payload,
                content_type: self.content_type,
                group: self.group,
                delay: self.delay,
            }),
        }
    }
}

/// 128 random bits, written as a UUID is.
fn random_key() -> String {
    let hex = format!("{:032x}", rand::random::<u128>());
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W01: a fault is told before anything is sent, and the transaction is untouched.
    #[test]
    fn a_message_that_no_table_takes_is_refused() {
        let fine = Message::to("receipts").bytes("x").key("a:b_c-9").group(7);
        assert_eq!(&*fine.clone().stored().unwrap().key, "a:b_c-9");
        for (message, says) in [
            (fine.clone().key("a.b"), "a.b"),
            (fine.clone().key(""), "is not"),
            (fine.clone().key("k".repeat(129)), "is not"),
            (fine.clone().group(""), "1 to 255"),
            (fine.clone().group("g".repeat(256)), "1 to 255"),
            (fine.bytes(vec![0; PAYLOAD_BYTES_MAX + 1]), "too large"),
        ] {
            let error = message.stored().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
        let [first, second] = [(); 2].map(|()| Message::to("x").stored().unwrap().key);
        assert_ne!(first, second);
        assert_eq!(first.len(), 36);
    }
}
