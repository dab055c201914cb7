//! What the settings alone say.

use http::header::AUTHORIZATION;
use onlyonce::Limits;
use onlyonce::key::PersonalData;
use onlyonce::scope::Source;
use onlyonce::store::KeyUse;

use super::{Told, or_well, parted, routes};
use crate::config::{AdminToken, Config, Fault, Faults, Loaded, Role, Warning};
use crate::store::Url;

const TOKEN_CHARS_MIN: usize = 16;

/// The faults that serve would refuse, or the warnings of `check`.
pub(super) fn found(loaded: &Result<Loaded, Faults>) -> Vec<Told> {
    match loaded {
        Err(faults) => faults.0.iter().map(fault).collect(),
        Ok(loaded) => or_well(loaded.warnings.iter().map(warning).collect(), "no fault, no warning"),
    }
}

fn fault(fault: &Fault) -> Told {
    let (wrong, remedy) = parted(&fault.remedy);
    Told::fail(Fault { remedy: wrong.to_owned(), ..fault.clone() }.to_string(), remedy)
}

fn warning(warning: &Warning) -> Told {
    let (wrong, remedy) = parted(&warning.remedy);
    Told::warn(Warning { remedy: wrong.to_owned(), ..warning.clone() }.to_string(), remedy)
}

pub(super) fn tokens(tokens: &[AdminToken]) -> Vec<Told> {
    if tokens.is_empty() {
        return vec![Told::ok(
            "none is configured: requests from this machine are trusted, all others are refused",
        )];
    }
    let is_short = |token: &&AdminToken| token.token.bytes.len() < TOKEN_CHARS_MIN;
    let mut told: Vec<_> = tokens
        .iter()
        .filter(is_short)
        .map(|token| {
            Told::warn(
                format!("the admin token \"{}\" is shorter than {TOKEN_CHARS_MIN} characters", token.name),
                "use a longer one, such as from openssl rand -hex 24",
            )
        })
        .collect();
    if tokens.iter().all(|token| token.role == Role::Operate) {
        told.push(Told::warn(
            "every admin token has the role operate: everyone who may read may also make changes",
            "add a token of role \"read\" for dashboards and for people who only read",
        ));
    }
    or_well(told, format!("{} configured", tokens.len()))
}

/// `is_on`: keys are configured. `keys`: which keys something stored needs; none where that could not be found out.
pub(super) fn encryption(is_on: bool, config: Option<&Config>, keys: Option<&[KeyUse]>) -> Vec<Told> {
    let mut told = Vec::new();
    for used in keys.into_iter().flatten().filter(|used| !used.is_known) {
        told.push(Told::fail(
            format!(
                "the encryption key {} is not configured. Rows that need it, and whose requests get 503: {}",
                used.id, used.rows
            ),
            format!("put key {} back into encryption.keys, behind the first, until no row needs it", used.id),
        ));
    }
    if !is_on {
        let is_personal =
            |route: &&crate::config::Route| route.policy.key.personal_data == PersonalData::Allow;
        for route in config.into_iter().flat_map(routes).filter(is_personal) {
            told.push(Told::warn(
                format!("route \"{}\" allows personal data in keys, but nothing is encrypted", route.name),
                "set encryption.keys, or personal_data = \"refuse\"",
            ));
        }
    }
    told.push(match (is_on, keys) {
        (_, None) => Told::skip("the store could not be read, so it is not known which keys it needs"),
        (false, Some(_)) => Told::ok("off: stored answers are not encrypted"),
        (true, Some(_)) => Told::ok("every key that stored rows need is configured"),
    });
    told
}

pub(super) fn scope(config: &Config) -> Vec<Told> {
    let by_token = |route: &&crate::config::Route| {
        let scope = &route.policy.scope;
        scope.contains(&Source::Header(AUTHORIZATION))
            && !scope.iter().any(|source| matches!(source, Source::Jwt(_)))
    };
    let names: Vec<_> = routes(config).filter(by_token).map(|route| format!("\"{}\"", route.name)).collect();
    if names.is_empty() {
        return vec![Told::ok("callers keep their scope when a token is refreshed")];
    }
    vec![Told::warn(
        format!(
            "callers are identified by their Authorization header in {}: with a refreshed token a client is another caller, and a retry runs again",
            names.join(", ")
        ),
        "if tokens are refreshed, set scope = [\"jwt:sub\"] with [jwt]; otherwise leave it",
    )]
}

pub(super) fn limits(limits: &Limits, store: &Url) -> Vec<Told> {
    let is_divided = [
        limits.keys_per_second,
        limits.keys_per_second_total,
        limits.lookups_per_second,
        limits.lookups_per_second_total,
        limits.in_flight,
        limits.in_flight_total,
    ];
    if !is_divided.iter().any(Option::is_some) {
        return vec![Told::ok("no rates are limited")];
    }
    match (store, limits.nodes) {
        (Url::Server(..), 1) => vec![Told::warn(
            "each gateway limits rates by itself, and limits.nodes is 1: two gateways on this database allow twice as much",
            "set limits.nodes to the number of gateways",
        )],
        (Url::Server(..) | Url::Memory | Url::Sqlite(_), nodes) => {
            vec![Told::ok(format!("rates are divided among {nodes} gateways"))]
        }
    }
}
