//! One connection on which batches go one behind the other: the next is sent while the one before is still executed.
//!
//! ```text
//!   we       ──A──B────────────────C──────────►
//!   server     [ A ][commit][ B ][commit][ C ]    no pause between an answer and the next statement
//!   we       ◄─────────────a─────────────b─────
//! ```
//!
//! 1. Each is a statement, a transaction and an answer of its own, in the order they were sent. One that fails leaves the
//!    one behind it as it is.
//! 2. It is carried by a task, which hands each its answer; the task ends with the line. A lone write does without
//!    (`connection.rs`), and never waits here behind a batch.
//! 3. What is much larger than all that is under way does not wait behind it (`pool.rs`): where that happens the disk is slow,
//!    and it can be executed while the other's commit is synced.
//! 4. What the server says in passing comes before the answer that it belongs to, and is heard before it. Whether it was
//!    said of that answer or of one before it is not told apart: all that are answered after it are in doubt.
//! 5. Dropped, it is closed: who is in the middle of an answer holds it. Whether the server has closed it is seen before
//!    anything is sent ([`Line::is_usable`]).

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::care::Care;
use super::connection::{Connection, Wire};
use super::statement::{Statements, Verb};

/// A connection for batches, which several may be waiting for; see the module's documentation.
pub(super) struct Line {
    client: Client,
    batch: Statement,
    careful: Statement,
    wire: Shared,
    rows_under_way: AtomicUsize,
}

impl Line {
    pub(super) async fn new(mut connection: Connection, statements: &Statements) -> Result<Self, Error> {
        let batch = connection.prepare(statements, Verb::Batch).await?;
        let careful = connection.prepare(statements, Verb::CarefulBatch).await?;
        let (client, wire) = connection.into_parts();
        let wire = Shared(Arc::new(Mutex::new(wire)));
        let carried = Shared(wire.0.clone());
        tokio::spawn(async move { poll_fn(|context| carried.lock().poll_until_closed(context)).await });
        Ok(Self { client, batch, careful, wire, rows_under_way: AtomicUsize::new(0) })
    }

    /// The answer to a batch of so many rows. It is sent at once, behind those that are not answered yet.
    pub(super) async fn query(
        &self,
        care: Care,
        rows: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let _under_way = UnderWay::new(&self.rows_under_way, rows);
        let statement = match care {
            Care::None => &self.batch,
            Care::Taken => &self.careful,
        };
        self.client.query(statement, parameters).await
    }

    /// Something is under way, and a batch of so many rows is at least twice as large.
    pub(super) fn is_small_beside(&self, rows: usize) -> bool {
        let under_way = self.rows_under_way.load(Ordering::Relaxed);
        under_way > 0 && rows >= under_way.saturating_mul(2)
    }

    /// False where it is closed, as far as this node was told, or in doubt.
    pub(super) fn is_usable(&self) -> bool {
        let mut wire = self.wire.lock();
        wire.is_open() && !wire.gave_up_on_standby
    }

    /// The server has said on it that it did not wait for its standby.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.wire.lock().gave_up_on_standby
    }
}

/// Counts rows while they are under way.
struct UnderWay<'a> {
    all: &'a AtomicUsize,
    rows: usize,
}

impl<'a> UnderWay<'a> {
    fn new(all: &'a AtomicUsize, rows: usize) -> Self {
        all.fetch_add(rows, Ordering::Relaxed);
        Self { all, rows }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.rows, Ordering::Relaxed);
    }
}

/// The wire of a line and of the task that carries it: whichever is dropped first, with its runtime or its last user,
/// closes it. Where nobody carries it, nobody is to wait.
struct Shared(Arc<Mutex<Wire>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.lock().hang_up();
    }
}
