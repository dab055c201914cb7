//! `onlyonce sweep`: settles records that nobody came back for.

use onlyonce::{Engine, machine};

use super::failure::Failure;
use super::work::{self, Round, count_due};
use crate::Ended;
use crate::cli::Sweep;

const ROUND: Round =
    Round { done: "settled", every: |settings| settings.background.sweep_every, begins_with_taking: true };

pub(crate) async fn run(arguments: &Sweep) -> Result<Ended, Failure> {
    let plan = async |engine: &Engine| {
        count_due(engine, machine::SWEPT, |seen| machine::sweep(seen).is_some()).await
    };
    work::run(&arguments.work, &ROUND, plan, async |engine, _| engine.sweep().await).await
}
