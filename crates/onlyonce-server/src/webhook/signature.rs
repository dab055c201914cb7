//! Who signed a webhook, and when.
//!
//! | scheme | headers | signed bytes |
//! |---|---|---|
//! | `onlyonce`, `stripe` | `…-Signature: t=<unix seconds>,v1=<hex>[,v1=<hex>]` | time `.` body |
//! | `standard` | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<base64>[ v1,<base64>]` | id `.` time `.` body |
//!
//! 1. HMAC-SHA-256 over the bytes as they came. Any secret and any `v1` may match; other versions are not looked at.
//! 2. Two times, or two lines of a header, are no signature: of two, nobody can say which was meant.
//! 3. The time counts only once the signature is right, and both ways: too old and too far ahead are refused alike.
//! 4. Signatures are compared in constant time. The body is hashed once for each secret, however many are shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName};
use onlyonce::time::Timestamp;
use sha2::Sha256;

use crate::config::{Scheme, Webhook};

/// A request whose signature is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signed<'a> {
    /// When it was signed, by the sender's clock.
    pub(crate) at: Timestamp,
    /// The id that was signed with it, where the scheme has one.
    pub(crate) id: Option<&'a str>,
}

/// Why a request is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distrust {
    /// There is no signature, or it is wrong.
    Invalid,
    /// The signature is right, and its time is out of tolerance.
    TooOld,
}

/// Verifies the signature of a request of `source`.
pub(crate) fn verify<'a>(
    source: &Webhook,
    headers: &'a HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Result<Signed<'a>, Distrust> {
    let shown = match source.scheme {
        Scheme::Onlyonce | Scheme::Stripe => listed(headers, &source.header),
        Scheme::Standard => standard(headers, &source.header),
    };
    let shown = shown.ok_or(Distrust::Invalid)?;
    let at = shown.at().ok_or(Distrust::Invalid)?;
    let is_right = |secret: &[u8]| {
        let mac = shown.signed_with(secret, body);
        shown.signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    };
    if !source.secrets.iter().any(|secret| is_right(&secret.bytes)) {
        return Err(Distrust::Invalid);
    }
    let apart = now.since(at).max(at.since(now));
    if apart > source.tolerance {
        return Err(Distrust::TooOld);
    }
    Ok(Signed { at, id: shown.id })
}

/// What a request shows of its signature; nothing of it is verified.
struct Shown<'a> {
    id: Option<&'a str>,
    time: &'a str,
    signatures: Vec<Vec<u8>>,
}

impl Shown<'_> {
    /// The time, in whole seconds of our age.
    fn at(&self) -> Option<Timestamp> {
        const DIGITS_MAX: usize = 12;
        let is_whole = !self.time.is_empty()
            && self.time.len() <= DIGITS_MAX
            && self.time.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: i64 = self.time.parse().ok().filter(|_| is_whole)?;
        seconds.checked_mul(1_000_000).map(Timestamp::from_micros)
    }

    fn signed_with(&self, secret: &[u8], body: &[u8]) -> Hmac<Sha256> {
        mac(secret, self.id, self.time, body)
    }
}

/// The signature of a request of ours; with an id, as Standard Webhooks has it.
pub(crate) fn signed(secret: &[u8], id: Option<&str>, time: &str, body: &[u8]) -> impl AsRef<[u8]> + use<> {
    mac(secret, id, time, body).finalize().into_bytes()
}

fn mac(secret: &[u8], id: Option<&str>, time: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    if let Some(id) = id {
        mac.update(id.as_bytes());
        mac.update(b".");
    }
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac
}

/// `t=…,v1=…`
fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Shown<'a>> {
    let mut time = None;
    let mut signatures = Vec::new();
    for element in only(headers, name)?.split(',') {
        match element.trim().split_once('=') {
            Some(("t", _)) if time.is_some() => return None,
            Some(("t", text)) => time = Some(text),
            Some(("v1", text)) => signatures.extend(unhex(text)),
            Some(_) | None => {}
        }
    }
    Some(Shown { id: None, time: time?, signatures })
}

/// Standard Webhooks. Headers of another name have their id and time beside them: `svix-signature`, `svix-id`.
fn standard<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Shown<'a>> {
    let prefix = name.as_str().strip_suffix("-signature").unwrap_or("webhook");
    let beside = |suffix: &str| HeaderName::try_from(format!("{prefix}-{suffix}")).ok();
    let id = only(headers, &beside("id")?)?;
    let time = only(headers, &beside("timestamp")?)?;
    let versions = only(headers, name)?.split(' ').filter_map(|element| element.split_once(','));
    let signatures = versions.filter(|(version, _)| *version == "v1");
    let signatures = signatures.filter_map(|(_, text)| STANDARD.decode(text).ok()).collect();
    Some(Shown { id: Some(id).filter(|id| !id.is_empty()), time, signatures })
        .filter(|shown| shown.id.is_some())
}

/// The one line of that header.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.to_str().ok()).flatten()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? * 16 + digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests;
