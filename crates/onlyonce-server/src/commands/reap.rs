//! `onlyonce reap`: deletes expired records, or archives them where the settings say so, delivered messages and old audit entries.

use onlyonce::{Engine, machine};

use super::failure::Failure;
use super::work::{self, Round, count_due};
use crate::Ended;
use crate::cli::Reap;
use crate::config;

const ROUND: Round =
    Round { done: "deleted", every: |settings| settings.background.reap_every, begins_with_taking: false };

pub(crate) async fn run(arguments: &Reap) -> Result<Ended, Failure> {
    let plan = async |engine: &Engine| {
        count_due(engine, machine::EXPIRING, |seen| machine::may_reap(&seen.record, seen.now)).await
    };
    let work = async |engine: &Engine, settings: &config::Work| {
        let background = &settings.background;
        let reaped = engine.reap(background.reap_batch).await?;
        engine.reap_messages(background.delivered_retention, background.reap_batch).await?;
        engine.reap_audit(background.audit_retention, background.reap_batch).await?;
        Ok(reaped)
    };
    work::run(&arguments.work, &ROUND, plan, work).await
}
