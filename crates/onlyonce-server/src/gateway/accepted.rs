//! Runs accepted work: by the routes and services of now.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use onlyonce::accepted::{Running, Runs, Work};

use super::site::Site;

/// Runs accepted work while its gateway is there. Its connections to services are its own, and not those of a serving thread.
pub(crate) struct Accepted(pub(crate) Weak<RwLock<Arc<Site>>>);

impl Runs for Accepted {
    fn run(&self, work: Work) -> Result<Running, Work> {
        let Some(sites) = self.0.upgrade() else { return Err(work) };
        let site = sites.read().unwrap_or_else(PoisonError::into_inner).clone();
        site.run(work)
    }
}
