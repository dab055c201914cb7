//! A TCP proxy that loses answers: the server has done the work, and the client never hears of it.
//!
//! Every second thing that the server sends is lost, and the connection with it. What clients send always arrives.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const CHUNK_BYTES: usize = 64 << 10;

/// A proxy on a port of its own, for as long as the process lives.
#[derive(Debug)]
pub struct Lossy {
    address: SocketAddr,
    answers: Arc<AtomicU64>,
}

impl Lossy {
    /// In front of this server.
    ///
    /// # Errors
    ///
    /// Where no port is free.
    pub fn to(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let answers = Arc::new(AtomicU64::new(0));
        let counted = answers.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let answers = counted.clone();
                thread::spawn(move || pass(&client, server, &answers));
            }
        });
        Ok(Self { address, answers })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many answers were lost.
    pub fn lost(&self) -> u64 {
        self.answers.load(Ordering::SeqCst).div_ceil(2)
    }
}

/// Ends when either side does. A connection that fails is closed, which is what it is for.
fn pass(client: &TcpStream, server: SocketAddr, answers: &AtomicU64) {
    let Ok(server) = TcpStream::connect(server) else { return };
    thread::scope(|scope| {
        scope.spawn(|| {
            pump(client, &server, || true);
            let _ = server.shutdown(Shutdown::Write);
        });
        pump(&server, client, || answers.fetch_add(1, Ordering::SeqCst) % 2 == 1);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, mut arrives: impl FnMut() -> bool) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !arrives() || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
