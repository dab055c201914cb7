//! A server under measurement: a process of its own on a free port, gone when this value is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::folder::Folder;
use super::subjects::{Place, Subject};
use super::tools::Tools;

const READY_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a server may take to end: one with a file carries its WAL over first.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

pub(super) struct Server {
    child: Child,
    /// Where it listens, as `127.0.0.1:PORT`.
    pub(super) address: String,
    /// From its start to its first line.
    pub(super) ready_after: Duration,
    ticks_per_second: f64,
    /// The folder of its file, where that is its own. Dropped after the process has ended.
    folder: Option<Folder>,
}

impl Server {
    /// Starts it, with a new file where it needs one, and waits until it listens.
    pub(super) fn start(tools: &Tools, subject: &Subject) -> Result<Self> {
        match subject.place {
            Place::Own => Self::run(tools, subject, &[]),
            Place::Memory => Self::run(tools, subject, &["memory:"]),
            Place::File => {
                let folder = Folder::new(tools)?;
                let mut server = Self::open(tools, subject, &folder.store(), &[])?;
                server.folder = Some(folder);
                Ok(server)
            }
        }
    }

    /// Starts it on the file at `path`, which stays when the server is gone.
    pub(super) fn open(tools: &Tools, subject: &Subject, path: &Path, flags: &[&str]) -> Result<Self> {
        let store = format!("sqlite:{}", path.display());
        Self::run(tools, subject, &[&[store.as_str()], flags].concat())
    }

    /// It ends when its stdin closes, so it cannot outlive us.
    fn run(tools: &Tools, subject: &Subject, arguments: &[&str]) -> Result<Self> {
        let started = Instant::now();
        let mut child = tools
            .command(subject.package)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", subject.package))?;
        let stdout = child.stdout.take().expect("stdout was piped");
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // Nobody listens any more where it took too long.
            let _ = sender.send((read.map(|_| line), started.elapsed()));
        });
        // From here on dropping the value ends the process.
        let mut server = Self {
            child,
            address: String::new(),
            ready_after: Duration::ZERO,
            ticks_per_second: tools.ticks_per_second,
            folder: None,
        };
        let (line, ready_after) =
            ready.recv_timeout(READY_WITHIN).with_context(|| format!("{} is not ready", subject.package))?;
        let line = line?;
        let address = line.trim().strip_prefix("ready ");
        server.address = address.with_context(|| format!("{} said {line:?}", subject.package))?.to_owned();
        server.ready_after = ready_after;
        Ok(server)
    }

    /// Lets it end by itself, which leaves its file at rest. Dropping the value instead kills it.
    pub(super) fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > ENDED_WITHIN {
                bail!("the server did not end within {ENDED_WITHIN:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What its engine has done so far.
    pub(super) fn figures(&self) -> Result<Value> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        write!(stream, "GET /_figures HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        let figures = body.and_then(|body| serde_json::from_str(body).ok());
        figures.with_context(|| format!("no figures in {answer:?}"))
    }

    /// What it has caused to be written to disks so far, by the kernel's count.
    pub(super) fn written_bytes(&self) -> Result<u64> {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid())).context("cannot read /proc")?;
        let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        bytes.with_context(|| format!("cannot understand {io:?}"))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far, user and system, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).context("cannot read /proc")?;
        let ticks = ticks(&stat).with_context(|| format!("cannot understand {stat:?}"))?;
        Ok(ticks / self.ticks_per_second)
    }
}

/// utime and stime: fields 14 and 15, of which the name in parentheses is the second and may contain anything.
fn ticks(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 3 0 1 1 1";
        assert_eq!(ticks(stat), Some(300.0));
    }
}
