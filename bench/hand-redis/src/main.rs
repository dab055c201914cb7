//! The same handler behind what a good engineer writes in an afternoon: a middleware and two commands.
//!
//! ```text
//! bench-hand-redis redis://…[?prefix=…]
//! ```
//!
//! A key is reserved by `SET … NX GET EX`, and the answer is stored by `SET … EX` (`bench-hand`), on one connection that all
//! requests share. Whether it is durable is up to the server's settings. Nothing fences it: a request that was given up and comes
//! back late overwrites what another one has stored.

use std::io;

use axum::http::StatusCode;
use bench_hand::{Answer, Name, Outcome, Row};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, cmd};

const DAY_SECONDS: u64 = 86_400;
const DIGEST_BYTES: usize = 32;

#[tokio::main]
async fn main() -> io::Result<()> {
    let Some(url) = std::env::args().nth(1) else {
        return Err(io::Error::other("name the store: redis://…"));
    };
    bench_hand::serve(Keys::open(&url).await.map_err(io::Error::other)?).await
}

#[derive(Clone)]
struct Keys {
    connection: MultiplexedConnection,
    prefix: String,
}

impl Keys {
    async fn open(url: &str) -> Outcome<Self> {
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let prefix = query.strip_prefix("prefix=").unwrap_or_default().to_owned();
        let connection = Client::open(server)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, prefix })
    }

    fn set(&self, Name { caller, key }: &Name, value: &[u8]) -> Cmd {
        let mut set = cmd("SET");
        set.arg(format!("{}:{caller}:{key}", self.prefix)).arg(value).arg("EX").arg(DAY_SECONDS);
        set
    }
}

impl bench_hand::Table for Keys {
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> Outcome<Option<Row>> {
        let mut connection = self.connection.clone();
        let found: Option<Vec<u8>> =
            self.set(&name, &digest).arg("NX").arg("GET").query_async(&mut connection).await?;
        found.as_deref().map(row).transpose()
    }

    async fn complete(&self, name: Name, digest: [u8; 32], answer: Answer) -> Outcome<()> {
        let mut value = digest.to_vec();
        value.extend_from_slice(&answer.status.as_u16().to_be_bytes());
        let content_type = answer.content_type.unwrap_or_default();
        value.push(u8::try_from(content_type.len())?);
        value.extend_from_slice(content_type.as_bytes());
        value.extend_from_slice(&answer.body);
        Ok(self.set(&name, &value).query_async(&mut self.connection.clone()).await?)
    }

    async fn release(&self, Name { caller, key }: Name) -> Outcome<()> {
        let mut delete = cmd("DEL");
        delete.arg(format!("{}:{caller}:{key}", self.prefix));
        Ok(delete.query_async(&mut self.connection.clone()).await?)
    }
}

/// The digest; and, once it is completed, the status in two bytes, the length of the content type in one, the content type and
/// the body.
fn row(value: &[u8]) -> Outcome<Row> {
    let (digest, rest) = value.split_at_checked(DIGEST_BYTES).ok_or("a value without a digest")?;
    let answer = match rest {
        [] => None,
        [high, low, length, rest @ ..] => {
            let (content_type, body) =
                rest.split_at_checked(usize::from(*length)).ok_or("a content type that is cut off")?;
            let content_type = Some(String::from_utf8(content_type.to_vec())?);
            let status = StatusCode::from_u16(u16::from_be_bytes([*high, *low]))?;
            Some(Answer { status, content_type, body: body.to_vec().into() })
        }
        _ => return Err("an answer that is cut off".into()),
    };
    Ok(Row { digest: digest.try_into()?, answer })
}
