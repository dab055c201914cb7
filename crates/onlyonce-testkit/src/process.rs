//! A server as a child process: it ends when its value is dropped, and when this process ends.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a process may take to end after SIGTERM.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const CONNECTED_WITHIN: Duration = Duration::from_secs(1);

/// A child process, ended on drop as its [`End`] says.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    end: End,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGKILL.
    Kill,
    /// SIGTERM, then SIGKILL: for a program that has processes of its own to end.
    Terminate,
}

/// A command for a program that the kernel ends when this process dies, even by SIGKILL.
pub fn child_command(program: &Path, end: End) -> Command {
    let signal = match end {
        End::Kill => "KILL",
        End::Terminate => "TERM",
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

/// A port of 127.0.0.1 that is free at this moment, for programs that cannot choose one themselves.
///
/// # Errors
///
/// Where none is free.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

impl Process {
    /// Starts the command. Messages call the process by this name.
    ///
    /// # Errors
    ///
    /// Where it cannot be started.
    pub fn start(name: &str, command: &mut Command, end: End) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, end })
    }

    /// The first line of its stdout, which must be piped. Later lines are read and dropped.
    ///
    /// # Errors
    ///
    /// Where it ends before that, or takes longer.
    pub fn first_line(&mut self, within: Duration) -> Result<String> {
        let stdout = self.child.stdout.take().with_context(|| format!("{} has no stdout", self.name))?;
        let (sender, first) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The receiver is gone if it took too long.
            let _ = sender.send(lines.next());
            lines.for_each(drop);
        });
        match first.recv_timeout(within) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!("{} ended before it was ready: {}", self.name, self.child.wait()?),
            Err(_) => bail!("{} was not ready within {within:?}", self.name),
        }
    }

    /// Waits until it accepts connections at this address.
    ///
    /// # Errors
    ///
    /// Where it ends before that, or takes longer.
    pub fn wait_until_listening(&mut self, address: SocketAddr, within: Duration) -> Result<()> {
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes its stdin and waits, for a program that ends when its stdin does.
    ///
    /// # Errors
    ///
    /// Where it takes longer.
    pub fn close(mut self, within: Duration) -> Result<()> {
        drop(self.child.stdin.take());
        if self.exit_status_within(within)?.is_none() {
            bail!("{} did not end within {within:?}", self.name);
        }
        Ok(())
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    ///
    /// Where the system cannot say.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Its exit status, if it ends within this time.
    ///
    /// # Errors
    ///
    /// Where the system cannot say.
    pub fn exit_status_within(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        let asked = Instant::now();
        loop {
            let status = self.exit_status()?;
            if status.is_some() || asked.elapsed() > within {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.end == End::Terminate && matches!(self.child.try_wait(), Ok(None)) {
            // If this fails, SIGKILL follows.
            let _ =
                Command::new("kill").arg("-TERM").arg(self.pid().to_string()).stderr(Stdio::null()).status();
            let _ = self.exit_status_within(ENDED_WITHIN);
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
        let mut command = child_command(Path::new("sh"), end);
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
        let error = shell("exit 3", End::Kill)
            .wait_until_listening(free_address().unwrap(), SOON)
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn one_with_processes_of_its_own_may_end_them() {
        let folder = std::env::temp_dir().join(format!("onlyonce-testkit-process-{}", std::process::id()));
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
