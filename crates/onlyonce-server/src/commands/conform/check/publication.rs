//! What the API says of its keys.

use super::super::subject::Subject;
use super::{Findings, Found, Scenario, may};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    group: "publication",
    checks: &[may("openapi", "The OpenAPI document lists the key as a parameter")],
    writes: 0,
    play: |subject| Box::pin(openapi(subject)),
}];

async fn openapi(subject: &Subject) -> Findings {
    Ok(vec![match subject.is_listed {
        Some(is_listed) => Found::when(is_listed, "as its parameters say"),
        None => Found::unclear("no document is known; name it with --openapi"),
    }])
}
