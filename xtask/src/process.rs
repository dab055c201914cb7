//! A server that we started: a process of its own that ends when this value does, or when we do.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a process may take to end when it is asked to.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const CONNECTED_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct Process {
    name: String,
    child: Child,
    end: End,
}

/// How it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGKILL.
    Kill,
    /// SIGTERM: it has processes of its own to end.
    Terminate,
}

/// A command for a program that the kernel ends where we die without having done so, killed ourselves.
pub(crate) fn bound(program: &Path, end: End) -> Command {
    let signal = match end {
        End::Kill => "KILL",
        End::Terminate => "TERM",
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

/// A port of 127.0.0.1 that nobody has at this moment, for programs that cannot choose one themselves.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command, end: End) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, end })
    }

    /// Its first line of stdout, which must be piped. What it says after that is read and dropped.
    pub(crate) fn first_line(&mut self, within: Duration) -> Result<String> {
        let stdout = self.child.stdout.take().with_context(|| format!("{} has no stdout", self.name))?;
        let (sender, first) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // Nobody listens any more where it took too long.
            let _ = sender.send(lines.next());
            lines.for_each(drop);
        });
        match first.recv_timeout(within) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!("{} ended before it was ready: {}", self.name, self.child.wait()?),
            Err(_) => bail!("{} was not ready within {within:?}", self.name),
        }
    }

    /// Waits until it listens there.
    pub(crate) fn listens(&mut self, address: SocketAddr, within: Duration) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect_timeout(&address, CONNECTED_WITHIN).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended before it was ready: {status}", self.name);
            }
            if started.elapsed() > within {
                bail!("{} did not listen on {address} within {within:?}", self.name);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it end by itself, for one that ends when its stdin does.
    pub(crate) fn close(mut self, within: Duration) -> Result<()> {
        drop(self.child.stdin.take());
        if self.ended_within(within)?.is_none() {
            bail!("{} did not end within {within:?}", self.name);
        }
        Ok(())
    }

    /// How it ended, where it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// How it ended, where it does within this.
    pub(crate) fn ended_within(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        let asked = Instant::now();
        loop {
            let ended = self.ended()?;
            if ended.is_some() || asked.elapsed() > within {
                return Ok(ended);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.end == End::Terminate && matches!(self.child.try_wait(), Ok(None)) {
            // Where this fails, what follows does not.
            let _ =
                Command::new("kill").arg("-TERM").arg(self.pid().to_string()).stderr(Stdio::null()).status();
            let _ = self.ended_within(ENDED_WITHIN);
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn shell(script: &str, end: End) -> Process {
        let mut command = bound(Path::new("sh"), end);
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start("shell", &mut command, end).unwrap()
    }

    #[test]
    fn the_first_line_is_what_counts() {
        let mut process = shell("echo ready; echo more; cat", End::Kill);
        assert_eq!(process.first_line(SOON).unwrap(), "ready");
        process.close(SOON).unwrap();
    }

    #[test]
    fn one_that_dies_before_it_is_ready_says_so() {
        let error = shell("exit 3", End::Kill).first_line(SOON).unwrap_err().to_string();
        assert!(error.contains("ended before it was ready: exit status: 3"), "{error}");
        let error =
            shell("exit 3", End::Kill).listens(free_address().unwrap(), SOON).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn one_with_processes_of_its_own_may_end_them() {
        let folder = std::env::temp_dir().join(format!("onlyonce-xtask-process-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let said = folder.join("said");
        let script = format!(
            "trap 'echo bye > {}; exit' TERM; echo ready; while :; do sleep 0.01; done",
            said.display()
        );
        let mut process = shell(&script, End::Terminate);
        process.first_line(SOON).unwrap();
        drop(process);
        assert_eq!(std::fs::read_to_string(&said).unwrap(), "bye\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
