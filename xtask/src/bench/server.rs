//! A server under measurement: a process of its own on a free port, gone when this value is.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::subjects::Subject;
use super::tools::Tools;

const READY_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Server {
    child: Child,
    /// Where it listens, as `127.0.0.1:PORT`.
    pub(super) address: String,
    ticks_per_second: f64,
}

impl Server {
    /// Starts it and waits until it listens. It ends when its stdin closes, so it cannot outlive us.
    pub(super) fn start(tools: &Tools, subject: &Subject) -> Result<Self> {
        let mut command = tools.command(subject.package);
        let mut child = command
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
            let _ = sender.send(read.map(|_| line));
        });
        // From here on dropping the value ends the process.
        let mut server = Self { child, address: String::new(), ticks_per_second: tools.ticks_per_second };
        let line = ready
            .recv_timeout(READY_WITHIN)
            .with_context(|| format!("{} is not ready", subject.package))??;
        let address = line.trim().strip_prefix("ready ");
        server.address = address.with_context(|| format!("{} said {line:?}", subject.package))?.to_owned();
        Ok(server)
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
