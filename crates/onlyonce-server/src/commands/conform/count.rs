//! How often a write ran, as somebody else counts it.

use std::process::Stdio;
use std::time::Duration;

use http::Uri;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::wire::{self, Answer, Manner};
use crate::tls::Connector;

const WITHIN: Duration = Duration::from_secs(10);
/// An effect may come a moment after its answer: two equal counts this far apart are believed.
const APART: Duration = Duration::from_millis(150);
const LOOKS_MAX: u32 = 40;

pub(super) enum Counter {
    Url { url: Uri, connector: Connector, pointer: Option<String> },
    Command(String),
}

impl Counter {
    /// The count once it no longer changes.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(super) async fn settled(&self) -> Result<u64, String> {
        let mut last = self.now().await?;
        for _ in 0..LOOKS_MAX {
            sleep(APART).await;
            let now = self.now().await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        Err("the count does not come to rest: somebody else is writing".to_owned())
    }

    async fn now(&self) -> Result<u64, String> {
        match self {
            Self::Url { url, connector, pointer } => {
                let host = url.authority().map_or("", |authority| authority.as_str());
                let path = url.path_and_query().map_or("/", |path| path.as_str());
                let head = format!(
                    "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
                );
                let parts = (head.as_bytes(), &b""[..]);
                let answer = wire::exchange(url, connector, parts, Manner::Patient, WITHIN).await;
                let answer = answer.map_err(|why| format!("--count {url}: {why}"))?;
                let Some(Answer { status: 200, body, .. }) = answer else {
                    return Err(format!("--count {url} does not answer with 200"));
                };
                counted(&body, pointer.as_deref())
                    .ok_or_else(|| format!("--count {url} answers with no count: a whole number, or JSON with one at --count-pointer"))
            }
            Self::Command(text) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(text).stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
                let output = timeout(WITHIN, command.output()).await;
                let output = output.map_err(|_| format!("--count-command did not end within {WITHIN:?}"))?;
                let output = output.map_err(|error| format!("--count-command: {error}"))?;
                let number = output.status.success().then(|| counted(&output.stdout, None)).flatten();
                number.ok_or_else(|| format!("--count-command ended with {} and no number", output.status))
            }
        }
    }
}

/// A number, or what is at the pointer of JSON: a number, or a list, which is counted.
fn counted(body: &[u8], pointer: Option<&str>) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let Some(pointer) = pointer else { return text.parse().ok() };
    let json: Value = serde_json::from_str(text).ok()?;
    match json.pointer(pointer)? {
        Value::Array(items) => u64::try_from(items.len()).ok(),
        Value::Number(number) => number.as_u64(),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_or_at_a_pointer() {
        assert_eq!(counted(b" 17\n", None), Some(17));
        assert_eq!(counted(br#"{"a":{"b":17}}"#, Some("/a/b")), Some(17));
        assert_eq!(counted(br#"{"charges":[1,2]}"#, Some("/charges")), Some(2));
        for (body, pointer) in
            [("-1", None), ("many", None), ("{}", Some("/a")), ("{\"a\":\"1\"}", Some("/a"))]
        {
            assert_eq!(counted(body.as_bytes(), pointer), None, "{body}");
        }
    }
}
