//! `onlyonce serve` as a process, each with its own store file.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::runner::Node;
use crate::runner::data::{Case, Expect, Step, Suite};
use crate::runner::store::{Engine, Faulty, Folder};
use crate::runner::upstream::Shared;
use crate::settings;

pub(crate) struct Program {
    address: SocketAddr,
    process: Child,
    logs: Arc<Mutex<Vec<u8>>>,
    // After the process: its files go last.
    _folder: Folder,
}

impl Node for Program {
    const NAME: &'static str = "program";
    const SUITE: Suite = Suite::Gateway;

    async fn start(case: &Case, _: Arc<Faulty>, _: &Shared, socket: Option<SocketAddr>) -> Self {
        let folder = Folder::new();
        let service = socket.expect("U of a gateway is behind a socket");
        let store = format!("sqlite:{}", folder.new_file("db").display());
        let file = settings::write(case, &folder, service, &store);
        let mut process = Command::new(env!("CARGO_BIN_EXE_onlyonce"))
            .args(["serve", "--config"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let logs = collect(process.stderr.take().expect("piped"));
        let mut ready = String::new();
        let read = BufReader::new(process.stdout.take().expect("piped")).read_line(&mut ready);
        read.expect("it writes text");
        let address = ready.strip_prefix("ready: gateway http://").and_then(|rest| rest.split(' ').next());
        let address = address.and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = process.wait();
            panic!("the case's settings do not stand: {}", text_of(&logs))
        };
        Self { address, process, logs, _folder: folder }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn stop(&mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("it is our own");
    }

    async fn stopped(&mut self) {
        self.process.wait().expect("it can be waited for");
    }

    fn obstacle(case: &Case) -> Option<&'static str> {
        if case.nodes > 1 {
            return Some("one process writes a file");
        }
        case.steps.iter().find_map(obstacle)
    }

    /// Without what it says about records, which only the process knows.
    fn fitted(mut case: Case) -> Case {
        for expect in case.steps.iter_mut().filter_map(|step| step.expect.as_mut()) {
            let Expect { records, states, store_calls, never_stored, .. } = expect;
            (*records, *states, *store_calls) = (None, None, None);
            never_stored.clear();
        }
        case
    }

    /// It opens its own; the one of the runner stays empty.
    fn store(_: Engine) -> Engine {
        Engine::Memory
    }

    fn token(case: &Case, credential: &str, subject: &str) -> String {
        settings::token(case, credential, subject)
    }

    fn logs(&self) -> String {
        text_of(&self.logs)
    }
}

fn obstacle(step: &Step) -> Option<&'static str> {
    if step.advance.is_some() || step.advance_node.is_some() || step.reap {
        return Some("its clock cannot be moved");
    }
    if step.store.is_some() {
        return Some("its store cannot be broken");
    }
    let looks = |until: &crate::runner::data::Until| until.states.is_some() || until.store_calls.is_some();
    step.until.as_ref().is_some_and(looks).then_some("its records cannot be waited for")
}

/// Reads on beside the case, so that the process never waits for a reader.
fn collect(mut from: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let logs = Arc::new(Mutex::new(Vec::new()));
    let kept = logs.clone();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
        }
    });
    logs
}

fn text_of(logs: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&logs.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
