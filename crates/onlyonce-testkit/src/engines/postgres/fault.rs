//! Faults of a server: it is stopped, killed, frozen, and started again; its disk is full.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use super::super::system;
use super::{LOOK_EVERY, STARTS_WITHIN, Server, USER};

/// How a server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What runs is rolled back, connections are closed, and everything is in order.
    Fast,
    /// At once: the next start recovers from the log.
    Immediate,
}

impl Server {
    /// Stops it, and waits until it is gone. Nothing happens where it is gone already.
    ///
    /// # Panics
    ///
    /// Where it does not stop.
    pub fn stop(&self, how: Stop) {
        let signal = match how {
            Stop::Fast => "-INT",
            Stop::Immediate => "-QUIT",
        };
        self.send(signal, self.postmaster());
        self.wait_until_gone();
    }

    /// Kills it, as a machine that loses its power does, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where that cannot be done.
    pub fn kill(&self) {
        // While the first process is stopped, it starts no others.
        self.send("-STOP", self.postmaster());
        self.send("-KILL", self.processes());
        self.wait_until_gone();
        // The file names a process that is gone, and the system may give that number to another one.
        let _ = fs::remove_file(self.folder.join("data/postmaster.pid"));
    }

    /// Starts it again as it was, on the same port, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it does not start, with the end of its log.
    pub fn start_again(&self) {
        let began = Instant::now();
        // What was killed may hold its memory, or the port, for a moment.
        while began.elapsed() < STARTS_WITHIN {
            if self.launch().unwrap_or_else(|reason| panic!("{reason}")) {
                return;
            }
            sleep(LOOK_EVERY);
        }
        panic!("PostgreSQL did not start again: {}", self.log());
    }

    /// Lets every process of it stand still, as a machine does that is overloaded or suspended: it still takes
    /// connections, and answers nobody.
    ///
    /// # Panics
    ///
    /// Where it does not run.
    pub fn freeze(&self) {
        assert!(self.postmaster().is_some(), "it does not run");
        self.send("-STOP", self.postmaster());
        self.send("-STOP", self.processes());
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.send("-CONT", self.processes());
    }

    /// A small disk in its folder, for a tablespace. It takes root to mount it, and it goes with the server.
    ///
    /// # Panics
    ///
    /// Where it cannot be mounted, with the reason.
    pub fn mount_disk(&self, megabytes: u32) -> PathBuf {
        let disk = self.disk();
        system::mount_disk(&disk, megabytes, USER);
        disk
    }

    /// Fills that disk, and gives the file that does it, for the test to remove.
    ///
    /// # Panics
    ///
    /// Where it does not get full.
    pub fn fill_disk(&self) -> PathBuf {
        system::fill_disk(&self.disk())
    }

    pub(super) fn take_disk_away(&self) {
        system::take_disk_away(&self.disk());
    }

    fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn postmaster(&self) -> Option<u32> {
        self.process().as_ref().map(std::process::Child::id)
    }

    /// The first one and those it has started, each of which is in a group of its own.
    fn processes(&self) -> Vec<u32> {
        let Some(first) = self.postmaster() else { return Vec::new() };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
        numbers.filter(|number| *number == first || parent(*number) == Some(first)).collect()
    }

    fn send(&self, signal: &str, to: impl IntoIterator<Item = u32>) {
        let to: Vec<_> = to.into_iter().map(|process| process.to_string()).collect();
        if !to.is_empty() {
            // One that has just ended by itself is no failure.
            let _ = Command::new("kill").arg(signal).args(to).stderr(Stdio::null()).status();
        }
    }

    fn wait_until_gone(&self) {
        let mut process = self.process();
        let Some(child) = process.as_mut() else { return };
        let began = Instant::now();
        while began.elapsed() < STARTS_WITHIN {
            if matches!(child.try_wait(), Ok(Some(_))) {
                *process = None;
                return;
            }
            sleep(LOOK_EVERY);
        }
        panic!("PostgreSQL does not end: {}", self.log());
    }
}

fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}
