//! Upgraded connections: bytes are copied both ways until either side ends.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::phase::Ending;

/// Opens tunnels, and closes them at shutdown: a web socket may never end by itself.
#[derive(Clone)]
pub(crate) struct Tunnels(Ending);

impl Tunnels {
    pub(crate) fn new(ending: Ending) -> Self {
        Self(ending)
    }

    /// Joins the two once both have upgraded. An error on either side closes the other.
    pub(crate) fn open(&self, client: OnUpgrade, service: OnUpgrade) {
        let ending = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = join(client, service) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a tunnel broke");
                    }
                }
                () = ending.wait() => {}
            }
        });
    }
}

async fn join(client: OnUpgrade, service: OnUpgrade) -> anyhow::Result<()> {
    let (client, service) = tokio::try_join!(client, service)?;
    copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(service)).await?;
    Ok(())
}
