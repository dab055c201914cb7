//! The gateway in this process, on the case's store.

use std::net::SocketAddr;
use std::sync::Arc;

use onlyonce_server::testing::Gateway;
use tokio::task::JoinHandle;

use crate::runner::Node;
use crate::runner::data::{Case, Suite};
use crate::runner::store::{Faulty, Folder};
use crate::runner::upstream::Shared;
use crate::settings;

pub(crate) struct InProcess {
    address: SocketAddr,
    gateway: Option<Gateway>,
    stopping: Option<JoinHandle<()>>,
}

impl Node for InProcess {
    const NAME: &'static str = "gateway";
    const SUITE: Suite = Suite::Gateway;

    async fn start(case: &Case, store: Arc<Faulty>, _: &Shared, socket: Option<SocketAddr>) -> Self {
        let folder = Folder::new();
        let service = socket.expect("U of a gateway is behind a socket");
        let file = settings::write(case, &folder, service, "memory:");
        let gateway = Gateway::start(&file, store).await;
        let gateway = gateway.unwrap_or_else(|error| panic!("the case's settings do not stand: {error:#}"));
        Self { address: gateway.address(), gateway: Some(gateway), stopping: None }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn stop(&mut self) {
        self.stopping = self.gateway.take().map(|gateway| tokio::spawn(gateway.stop()));
    }

    async fn stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            stopping.await.expect("a stop does not panic");
        }
    }

    fn token(case: &Case, credential: &str, subject: &str) -> String {
        settings::token(case, credential, subject)
    }
}
