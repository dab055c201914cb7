//! What one writes by hand, as River does it: a claim is committed before the delivery and its end after it, one message at a
//! time. 64 tasks share 32 connections; statements are prepared once; no transaction is open during a delivery.
//!
//! It has no tokens, so a late end overwrites a newer claim; no groups, no retries, no dead letters, no pruning.

use std::sync::atomic::Ordering;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use serde_json::Value;
use tokio_postgres::{Config, NoTls};

use super::{DELIVERED, IN_FLIGHT, Outcome, PAYLOAD, execute, fill, rate};

const CONNECTIONS: usize = 32;
/// A task that found nothing.
const PAUSE: Duration = Duration::from_millis(100);

const TABLE: &str = "
    CREATE TABLE message (
        id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key          text NOT NULL DEFAULT gen_random_uuid()::text UNIQUE,
        payload      bytea,
        state        text NOT NULL DEFAULT 'waiting',
        attempt      integer NOT NULL DEFAULT 0,
        due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
        attempted_at timestamptz,
        delivered_at timestamptz
    );
    CREATE INDEX message_by_due ON message (due_at, id) WHERE state = 'waiting'";
const CLAIM: &str = "
    UPDATE message SET state = 'running', attempt = attempt + 1, attempted_at = now()
    WHERE id = (
        SELECT id FROM message WHERE state = 'waiting' AND due_at <= now()
        ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, key, payload";
const END: &str =
    "UPDATE message SET state = 'delivered', payload = NULL, delivered_at = now() WHERE id = $1";

pub(super) async fn relay(url: &str, messages: u64, seconds: u64) -> Outcome<Value> {
    execute(url, TABLE).await?;
    fill(url, &format!("INSERT INTO message (payload) SELECT {PAYLOAD}"), messages).await?;
    execute(url, "VACUUM ANALYZE message").await?;
    let config: Config = url.parse()?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config, NoTls, recycling);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    let tasks: Vec<_> = (0..IN_FLIGHT).map(|_| tokio::spawn(work(pool.clone()))).collect();
    let report = rate(messages, seconds).await?;
    for task in tasks {
        if task.is_finished() {
            task.await??;
        } else {
            task.abort();
        }
    }
    Ok(report)
}

async fn work(pool: Pool) -> Outcome<()> {
    loop {
        let client = pool.get().await?;
        let claim = client.prepare_cached(CLAIM).await?;
        let claimed = client.query_opt(&claim, &[]).await?;
        drop(client);
        let Some(row) = claimed else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        deliver(row.try_get(1)?, row.try_get(2)?);
        let client = pool.get().await?;
        let end = client.prepare_cached(END).await?;
        client.execute(&end, &[&row.try_get::<_, i64>(0)?]).await?;
    }
}

/// Answers at once.
fn deliver(_key: &str, _payload: &[u8]) {
    DELIVERED.fetch_add(1, Ordering::Relaxed);
}
