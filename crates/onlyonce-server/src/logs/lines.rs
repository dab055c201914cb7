//! Where log lines are written.
//!
//! A line of the decision log waits for others, for up to 20 ms, and is written by a thread of its own: a system call for each
//! would take a third of the throughput of replays. Every other line is written at once, after those that wait, so that lines
//! keep their order. If the reader is too slow, lines of the decision log are dropped and counted, and requests go on.

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::DECISIONS;

/// How long a line of the decision log waits for others.
const GATHER: Duration = Duration::from_millis(20);
/// How many bytes may wait.
const WAITING_MAX: usize = 1 << 20;

/// A writer of log lines that threads share.
pub(super) struct Lines<W>(Arc<Shared<W>>);

struct Shared<W> {
    waiting: Mutex<Waiting>,
    has_lines: Condvar,
    /// Taken before `waiting`, by whoever writes.
    out: Mutex<W>,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    dropped: u64,
}

/// The writer of one line.
pub(super) struct Line<'a, W> {
    shared: &'a Shared<W>,
    may_wait: bool,
}

impl<W: Write + Send + 'static> Lines<W> {
    /// Starts the thread that writes what waits. It ends with the process: call [`Lines::flush`] before.
    pub(super) fn start(out: W) -> io::Result<Self> {
        let waiting = Mutex::default();
        let shared = Arc::new(Shared { waiting, has_lines: Condvar::new(), out: Mutex::new(out) });
        let lines = Self(shared.clone());
        thread::Builder::new().name("log".to_owned()).spawn(move || shared.write_what_waits())?;
        Ok(lines)
    }

    /// Writes what waits.
    pub(super) fn flush(&self) {
        // Nobody can be told that standard error is gone.
        let _ = self.0.write_all(&[]);
    }
}

impl<W> Clone for Lines<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: Write> Shared<W> {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, and then this line.
    fn write_all(&self, line: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = mem::take(&mut self.waiting().bytes);
        bytes.extend_from_slice(line);
        out.write_all(&bytes)?;
        out.flush()
    }

    fn wait(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.bytes.len() + line.len() > WAITING_MAX {
            waiting.dropped += 1;
            return;
        }
        if waiting.bytes.is_empty() {
            self.has_lines.notify_one();
        }
        waiting.bytes.extend_from_slice(line);
    }

    fn write_what_waits(&self) {
        loop {
            let waiting = self.has_lines.wait_while(self.waiting(), |waiting| waiting.bytes.is_empty());
            drop(waiting);
            thread::sleep(GATHER);
            let _ = self.write_all(&[]);
            let dropped = mem::take(&mut self.waiting().dropped);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "standard error is read too slowly: lines of the decision log were dropped"
                );
            }
        }
    }
}

impl<W: Write> Write for Line<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.may_wait {
            self.shared.wait(line);
        } else {
            self.shared.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: Write + 'a> MakeWriter<'a> for Lines<W> {
    type Writer = Line<'a, W>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { shared: &self.0, may_wait: false }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        Line { shared: &self.0, may_wait: metadata.target() == DECISIONS }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Each write, as it came.
    struct Writes(Sender<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines() -> (Lines<Writes>, Receiver<String>) {
        let (sender, writes) = channel();
        (Lines::start(Writes(sender)).unwrap(), writes)
    }

    fn decide(lines: &Lines<Writes>, line: &str) {
        Line { shared: &lines.0, may_wait: true }.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn decisions_are_written_together_and_soon() {
        let (lines, writes) = lines();
        let all: Vec<_> = (0..100).map(|number| format!("{number}\n")).collect();
        all.iter().for_each(|line| decide(&lines, line));
        let mut written = String::new();
        let mut count = 0;
        while written.len() < all.concat().len() {
            written += &writes.recv_timeout(Duration::from_secs(10)).unwrap();
            count += 1;
        }
        assert_eq!(written, all.concat());
        assert!(count < 50, "{count} writes");
    }

    #[test]
    fn another_line_is_written_at_once_after_those_that_wait() {
        let (lines, writes) = lines();
        decide(&lines, "decided\n");
        lines.make_writer().write_all(b"failed\n").unwrap();
        let written: String = writes.try_iter().collect();
        assert_eq!(written, "decided\nfailed\n");
        decide(&lines, "last\n");
        lines.flush();
        assert_eq!(writes.try_iter().collect::<String>(), "last\n");
    }

    #[test]
    fn what_nobody_reads_is_dropped_and_delays_nobody() {
        let (lines, writes) = lines();
        let held = lines.0.out.lock().unwrap();
        let line = "x".repeat(WAITING_MAX / 4);
        for _ in 0..6 {
            decide(&lines, &line);
        }
        assert_eq!(lines.0.waiting().dropped, 2);
        drop(held);
        let written = writes.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(written.len(), WAITING_MAX);
    }
}
