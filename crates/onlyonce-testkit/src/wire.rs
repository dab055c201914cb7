//! A TCP proxy between a client and a server, which a test can cut, hold, slow down and point to another server.
//!
//! ```text
//!   client ──► Wire, a port of its own ──► the server, or another one later
//! ```
//!
//! 1. *Held* bytes wait and are not lost: when they are released, they go on in their order.
//! 2. Bytes that are held when the wire is *cut* are lost. To lose the answer of a commit: hold the answers, wait until the
//!    server has committed, cut.
//! 3. Open connections stay with the server they began with; new ones go to the present server.
//!
//! Threads, and not tasks: the tools have no runtime, and faults must happen while a test's own runtime is busy.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// A proxy on a port of its own; see the module. Dropping it cuts its connections and closes the port.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    made: AtomicU64,
    trips: AtomicU64,
}

#[derive(Debug)]
struct State {
    leads_to: SocketAddr,
    refuses: bool,
    is_gone: bool,
    is_over: bool,
    holds_questions: bool,
    holds_answers: bool,
    pause: Duration,
    /// Both ends of each open connection.
    under_way: HashMap<u64, [TcpStream; 2]>,
}

/// How many bytes are passed on at once.
const CHUNK_BYTES: usize = 16 << 10;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const BOUND_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Wire {
    /// A wire to this port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// Where no port is free.
    pub fn to(port: u16) -> Result<Self, String> {
        let told = |error| format!("no port is free: {error}");
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        let state = State {
            leads_to: here(port),
            refuses: false,
            is_gone: false,
            is_over: false,
            holds_questions: false,
            holds_answers: false,
            pause: Duration::ZERO,
            under_way: HashMap::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            made: AtomicU64::new(0),
            trips: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        thread::spawn(move || accepting.listen(listener));
        Ok(Self { address, shared })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections clients have opened, with those that were refused.
    pub fn asked(&self) -> u64 {
        self.shared.made.load(Ordering::Relaxed)
    }

    /// The number of round trips: how often a client has sent something after the server had answered, or at first. All
    /// that is sent before the next answer is one trip.
    pub fn trips(&self) -> u64 {
        self.shared.trips.load(Ordering::SeqCst)
    }

    /// New connections go to this port from now on.
    pub fn lead_to(&self, port: u16) {
        self.change(|state| state.leads_to = here(port));
    }

    /// Cuts every open connection, and gives their number. New ones are still accepted.
    pub fn cut(&self) -> usize {
        let mut count = 0;
        self.change(|state| {
            count = state.under_way.len();
            state.under_way.drain().for_each(|(_, ends)| ends.iter().for_each(close));
        });
        count
    }

    /// Cuts, and closes every new connection at once, until [`Wire::mend`].
    pub fn refuse(&self) {
        self.change(|state| state.refuses = true);
        self.cut();
    }

    /// Cuts, and closes the port until [`Wire::mend`]: connections are refused before anything can be sent.
    pub fn vanish(&self) {
        self.change(|state| state.is_gone = true);
        self.cut();
        self.wake();
    }

    /// Holds all bytes of this direction, also on new connections, until [`Wire::mend`].
    pub fn hold(&self, direction: Direction) {
        self.change(|state| *state.held(direction) = true);
    }

    /// Delays every chunk by this pause.
    pub fn slow_down(&self, pause: Duration) {
        self.change(|state| state.pause = pause);
    }

    /// Ends everything: the port listens again, and nothing is refused, held or delayed.
    pub fn mend(&self) {
        self.change(|state| {
            state.is_gone = false;
            (state.refuses, state.holds_questions, state.holds_answers) = (false, false, false);
            state.pause = Duration::ZERO;
        });
    }

    /// Wakes the accepting thread with a connection.
    fn wake(&self) {
        drop(TcpStream::connect(self.address));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changed.notify_all();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.change(|state| state.is_over = true);
        self.cut();
        self.wake();
    }
}

impl State {
    fn held(&mut self, direction: Direction) -> &mut bool {
        match direction {
            Direction::ToServer => &mut self.holds_questions,
            Direction::ToClient => &mut self.holds_answers,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts until the wire is dropped; after the port was closed, listens on the same port again.
    fn listen(self: Arc<Self>, mut listener: TcpListener) {
        let Ok(address) = listener.local_addr() else { return };
        loop {
            self.accept(&listener);
            drop(listener);
            let is_gone = |state: &mut State| state.is_gone && !state.is_over;
            let state =
                self.changed.wait_while(self.state(), is_gone).unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            drop(state);
            listener = bound_again(address);
        }
    }

    /// Accepts until the port is closed or the wire is dropped.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let (is_gone, is_over) = {
                let state = self.state();
                (state.is_gone, state.is_over)
            };
            if is_gone || is_over {
                return;
            }
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            if let Ok(client) = client {
                let shared = self.clone();
                thread::spawn(move || shared.carry(number, client));
            }
        }
    }

    /// Serves one connection until either end closes it, or it is cut.
    fn carry(self: Arc<Self>, number: u64, client: TcpStream) {
        let (leads_to, refuses) = {
            let state = self.state();
            (state.leads_to, state.refuses)
        };
        let server = TcpStream::connect_timeout(&leads_to, CONNECT_WITHIN);
        let (false, Ok(server)) = (refuses, server) else { return close(&client) };
        let ends = [&client, &server].map(TcpStream::try_clone);
        let ([Ok(asks), Ok(hears)], [Ok(asked), Ok(answers)]) =
            (ends, [&server, &client].map(TcpStream::try_clone))
        else {
            return close(&client);
        };
        // A chunk is often a whole answer: the kernel must not wait for more.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        {
            let mut state = self.state();
            if state.refuses || state.is_over {
                return close(&client);
            }
            state.under_way.insert(number, [client, server]);
        }
        let is_answered = Arc::new(AtomicBool::new(true));
        let (shared, answering) = (self.clone(), is_answered.clone());
        let other = thread::spawn(move || {
            shared.pass(number, [hears, answers], Direction::ToClient, &answering);
        });
        self.pass(number, [asks, asked], Direction::ToServer, &is_answered);
        let _ = other.join();
    }

    fn pass(
        &self,
        number: u64,
        [mut from, mut to]: [TcpStream; 2],
        direction: Direction,
        is_answered: &AtomicBool,
    ) {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(bytes @ 1..) = from.read(&mut chunk) {
            let was_answered = is_answered.swap(direction == Direction::ToClient, Ordering::SeqCst);
            if was_answered && direction == Direction::ToServer {
                self.trips.fetch_add(1, Ordering::SeqCst);
            }
            if !self.may_go_on(number, direction) || to.write_all(&chunk[..bytes]).is_err() {
                break;
            }
        }
        // If one end closes the connection, so does the other.
        if let Some(ends) = self.state().under_way.remove(&number) {
            ends.iter().for_each(close);
        }
    }

    /// Waits while this direction is held; false where the connection has been cut meanwhile.
    fn may_go_on(&self, number: u64, direction: Direction) -> bool {
        let pause = self.state().pause;
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let is_held = |state: &mut State| state.under_way.contains_key(&number) && *state.held(direction);
        let state = self.changed.wait_while(self.state(), is_held).unwrap_or_else(PoisonError::into_inner);
        state.under_way.contains_key(&number)
    }
}

/// The port may be taken for a moment, for example by a connection that was just cut.
fn bound_again(address: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(_) if began.elapsed() < BOUND_WITHIN => thread::sleep(LOOK_EVERY),
            Err(error) => panic!("{address} was taken by somebody else: {error}"),
        }
    }
}

fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each byte with the same, and itself as a first one.
    fn echo(name: u8) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    stream.write_all(&[name]).unwrap();
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        port
    }

    fn connected(wire: &Wire) -> TcpStream {
        let stream = TcpStream::connect(wire.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn read(stream: &mut TcpStream) -> Option<u8> {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok().map(|()| byte[0])
    }

    #[test]
    fn it_carries_both_ways_and_leads_new_connections_elsewhere() {
        let wire = Wire::to(echo(1)).unwrap();
        let mut first = connected(&wire);
        assert_eq!(read(&mut first), Some(1));
        wire.lead_to(echo(2));
        assert_eq!(wire.trips(), 0);
        first.write_all(&[9]).unwrap();
        assert_eq!(read(&mut first), Some(9), "it stays with its server");
        assert_eq!(wire.trips(), 1);
        assert_eq!(read(&mut connected(&wire)), Some(2));
        assert_eq!(wire.asked(), 2);
    }

    #[test]
    fn what_is_held_is_not_lost_and_what_is_cut_is() {
        let wire = Wire::to(echo(1)).unwrap();
        let mut stream = connected(&wire);
        assert_eq!(read(&mut stream), Some(1));
        wire.hold(Direction::ToClient);
        stream.write_all(&[7]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(read(&mut stream), None, "the answer is held");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        wire.mend();
        assert_eq!(read(&mut stream), Some(7));
        wire.hold(Direction::ToServer);
        stream.write_all(&[8]).unwrap();
        assert_eq!(wire.cut(), 1);
        wire.mend();
        assert_eq!(read(&mut stream), None, "it was lost");
    }

    #[test]
    fn a_line_that_is_gone_lets_nobody_connect_and_comes_back_on_its_port() {
        let wire = Wire::to(echo(1)).unwrap();
        let mut stream = connected(&wire);
        assert_eq!(read(&mut stream), Some(1));
        wire.vanish();
        assert_eq!(read(&mut stream), None, "it was cut");
        let began = Instant::now();
        while TcpStream::connect(wire.address()).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20), "it still listens");
        }
        wire.mend();
        let began = Instant::now();
        while TcpStream::connect(wire.address()).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not listen again");
        }
        assert_eq!(read(&mut connected(&wire)), Some(1));
    }

    #[test]
    fn a_line_that_refuses_takes_nobody_until_it_is_mended() {
        let wire = Wire::to(echo(1)).unwrap();
        wire.refuse();
        assert_eq!(read(&mut connected(&wire)), None);
        wire.mend();
        assert_eq!(read(&mut connected(&wire)), Some(1));
    }
}
