//! A scripted service that records the requests it saw.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::wire::{Message, Wire};

pub(super) struct Service {
    pub(super) address: SocketAddr,
    seen: Seen,
    accepting: JoinHandle<()>,
}

/// The requests that a service has seen, whole or not.
#[derive(Clone)]
pub(super) struct Seen(Arc<(Mutex<Vec<Message>>, watch::Sender<usize>)>);

/// One connection of a service.
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// Which one it is, from 1.
    pub(super) number: usize,
    seen: Seen,
}

impl Service {
    /// Serves every connection by `act`.
    pub(super) async fn start<F>(act: impl Fn(Connection) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen(Arc::new((Mutex::default(), watch::channel(0).0)));
        let all = seen.clone();
        let accepting = tokio::spawn(async move {
            for number in 1.. {
                let (tcp, _) = listener.accept().await.unwrap();
                tokio::spawn(act(Connection { wire: Wire::new(tcp), number, seen: all.clone() }));
            }
        });
        Self { address, seen, accepting }
    }

    /// Answers every request with this.
    pub(super) async fn answering(answer: &'static str) -> Self {
        Self::start(move |mut connection| async move {
            while connection.request().await.is_some() {
                connection.wire.write(answer).await;
            }
        })
        .await
    }

    /// An address where nobody listens.
    pub(super) async fn nowhere() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    pub(super) fn seen(&self) -> Vec<Message> {
        self.seen.0.0.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.seen().len()
    }

    /// The only request it saw.
    pub(super) fn only(&self) -> Message {
        let [only] = self.seen().try_into().expect("one request");
        only
    }

    /// Ready once it has seen so many.
    pub(super) async fn has_seen(&self, count: usize) {
        self.seen.0.1.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Connection {
    /// The next request, whole.
    pub(super) async fn request(&mut self) -> Option<Message> {
        let request = self.wire.message().await?;
        self.saw(request.clone());
        Some(request)
    }

    pub(super) fn saw(&self, request: Message) {
        let mut seen = self.seen.0.0.lock().unwrap();
        seen.push(request);
        self.seen.0.1.send_replace(seen.len());
    }

    /// Closes it so that the other end gets a reset.
    pub(super) fn reset(self) {
        self.wire.tcp.set_zero_linger().unwrap();
    }
}
