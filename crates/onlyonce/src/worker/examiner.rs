//! The examiner: asks the store what is wrong, risky or worth knowing about it, and tells what is new.

use std::sync::PoisonError;

use onlyonce_store::{Error, Finding, Level};

use crate::counts::Operation;
use crate::engine::Engine;

impl Engine {
    /// What is wrong, risky or worth knowing about the store now, and about the cache in front of it. What was not found the last time is logged.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let mut findings =
            self.guarded(Operation::Scan, super::STORE_TIMEOUT, self.store().examine()).await?;
        findings.extend(self.examine_front().await);
        let mut known = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        for finding in &findings {
            if !known.contains(&finding.code) {
                tell(finding);
            }
        }
        *known = findings.iter().map(|finding| finding.code).collect();
        Ok(findings)
    }
}

fn tell(finding: &Finding) {
    let Finding { level, code, says, remedy } = finding;
    match level {
        Level::Error => tracing::error!(code, remedy, "{says}"),
        Level::Warning => tracing::warn!(code, remedy, "{says}"),
        Level::Note => tracing::info!(code, remedy, "{says}"),
    }
}
