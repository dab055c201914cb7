//! `dynamodb://TABLE?region=…&endpoint=…&reap=ttl|index`, parsed once. Credentials are never in it.

use std::time::Duration;

use super::failure::Failure;
use crate::ErrorKind;
use crate::ssl::{decoded, is_local};

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Database {
    pub(super) table: String,
    pub(super) region: String,
    pub(super) endpoint: Endpoint,
    pub(super) reap: Reap,
    pub(super) connect_within: Duration,
}

/// Where calls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) is_encrypted: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Who deletes records that have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reap {
    /// DynamoDB itself, by its time to live.
    Ttl,
    /// The reaper, which finds them by the index.
    Index,
}

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const REMEDY: &str = "write dynamodb://TABLE?region=REGION";

impl Database {
    /// `environment` is asked for the region where the URL does not name it.
    pub(super) fn parse(url: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let rest = url
            .strip_prefix("dynamodb://")
            .ok_or_else(|| wrong("the DynamoDB URL does not begin with dynamodb://", REMEDY))?;
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let table = table_name(table.strip_suffix('/').unwrap_or(table))?;
        let (mut region, mut endpoint, mut reap, mut connect_within) = (None, None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value).ok_or_else(|| wrong("the DynamoDB URL cannot be read", REMEDY))?;
            match name {
                "region" => region = Some(value),
                "endpoint" => endpoint = Some(Endpoint::parse(&value)?),
                "reap" => reap = Some(reaping(&value)?),
                "connect_timeout" => connect_within = Some(seconds(&value)?),
                other => {
                    let what = format!("the DynamoDB URL has a parameter \"{other}\", which is not known");
                    return Err(wrong(&what, "use region, endpoint, reap and connect_timeout"));
                }
            }
        }
        let region =
            region.or_else(|| environment("AWS_REGION")).or_else(|| environment("AWS_DEFAULT_REGION"));
        let region = region_name(region)?;
        Ok(Self {
            endpoint: endpoint.unwrap_or_else(|| Endpoint::of_region(&region)),
            table,
            region,
            reap: reap.unwrap_or(Reap::Ttl),
            connect_within: connect_within.unwrap_or(CONNECT_WITHIN),
        })
    }

    /// For messages and logs.
    pub(super) fn shown(&self) -> String {
        format!("dynamodb://{}?region={}", self.table, self.region)
    }
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, Failure> {
        let remedy = "write https://HOST:PORT, or http://HOST:PORT for an emulator on this machine";
        let unreadable = || wrong(&format!("endpoint \"{text}\" of the DynamoDB URL cannot be read"), remedy);
        let (is_encrypted, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(unreadable()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(unreadable)?;
                (host, port.strip_prefix(':'))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let usual = if is_encrypted { 443 } else { 80 };
        let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| unreadable()))?;
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':' | b'_');
        if host.is_empty() || !host.bytes().all(is_fine) {
            return Err(unreadable());
        }
        let endpoint = Self { is_encrypted, host: host.to_owned(), port };
        if !is_encrypted && !endpoint.is_local() {
            let what = format!(
                "endpoint \"{text}\" of the DynamoDB URL is on another machine, and the connection to it is not encrypted"
            );
            return Err(wrong(&what, "write https://"));
        }
        Ok(endpoint)
    }

    /// AWS's own.
    fn of_region(region: &str) -> Self {
        let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        Self { is_encrypted: true, host: format!("dynamodb.{region}.{suffix}"), port: 443 }
    }

    /// On this machine: an emulator.
    pub(super) fn is_local(&self) -> bool {
        is_local(&self.host)
    }

    /// The header `Host`: without the port where it is the usual one.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.is_encrypted, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// By DynamoDB's rules.
fn table_name(text: &str) -> Result<String, Failure> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (3..=255).contains(&text.len()) && text.bytes().all(is_fine) {
        return Ok(text.to_owned());
    }
    // What stands there may be a password: it is not repeated.
    if text.contains('@') {
        let what = "the DynamoDB URL has credentials in it, and takes none";
        return Err(wrong(
            what,
            "write dynamodb://TABLE?region=REGION, and see docs/engines.md for where credentials are found",
        ));
    }
    let what = format!("the DynamoDB URL names the table \"{text}\", which no table can be called");
    Err(wrong(
        &what,
        "write 3 to 255 letters, digits, \"-\", \"_\" and \".\": dynamodb://TABLE?region=REGION",
    ))
}

fn region_name(region: Option<String>) -> Result<String, Failure> {
    let Some(region) = region else {
        let what = "the DynamoDB URL names no region, and neither AWS_REGION nor AWS_DEFAULT_REGION is set";
        return Err(wrong(what, REMEDY));
    };
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !region.is_empty() && region.bytes().all(is_fine) {
        return Ok(region);
    }
    let what = format!("region \"{region}\" of the DynamoDB URL is none");
    Err(wrong(&what, "write one such as eu-central-1"))
}

fn reaping(value: &str) -> Result<Reap, Failure> {
    match value {
        "ttl" => Ok(Reap::Ttl),
        "index" => Ok(Reap::Index),
        other => {
            let what = format!("reap \"{other}\" of the DynamoDB URL is not known");
            Err(wrong(&what, "write ttl (DynamoDB deletes) or index (the reaper deletes)"))
        }
    }
}

fn seconds(value: &str) -> Result<Duration, Failure> {
    match value.parse() {
        Ok(seconds @ 1..=60) => Ok(Duration::from_secs(seconds)),
        _ => {
            let what = format!("connect_timeout \"{value}\" of the DynamoDB URL is not a number of seconds");
            Err(wrong(&what, "write 1 to 60"))
        }
    }
}

fn wrong(what: &str, remedy: &str) -> Failure {
    Failure::refused(ErrorKind::Misconfigured, format!("{what}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Database, String> {
        Database::parse(url, |_| None).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_url_says_which_table_where_and_who_deletes() {
        let database =
            parse("dynamodb://pay.ments?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&reap=index")
                .unwrap();
        assert_eq!(
            (&*database.table, &*database.region, database.reap),
            ("pay.ments", "eu-west-1", Reap::Index)
        );
        assert_eq!(database.endpoint.authority(), "127.0.0.1:8000");
        assert!(!database.endpoint.is_encrypted && database.endpoint.is_local());
        assert_eq!(database.shown(), "dynamodb://pay.ments?region=eu-west-1");
    }

    #[test]
    fn what_a_url_leaves_out_is_the_usual() {
        let region = |name: &str| (name == "AWS_DEFAULT_REGION").then(|| "cn-north-1".to_owned());
        let database = Database::parse("dynamodb://payments", region).unwrap();
        assert_eq!(database.endpoint.authority(), "dynamodb.cn-north-1.amazonaws.com.cn");
        assert_eq!((database.endpoint.is_encrypted, database.reap), (true, Reap::Ttl));
        let database = parse("dynamodb://payments?region=us-east-1&endpoint=https://[::1]:8443/").unwrap();
        assert_eq!(database.endpoint.authority(), "[::1]:8443");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_with_its_remedy() {
        for (url, told) in [
            ("dynamo://payments", "does not begin with dynamodb://"),
            ("dynamodb://", "names the table \"\""),
            ("dynamodb://ab?region=us-east-1", "names the table \"ab\""),
            ("dynamodb://key:secret@payments?region=us-east-1", "has credentials in it, and takes none"),
            ("dynamodb://payments", "names no region"),
            ("dynamodb://payments?region=Frankfurt", "region \"Frankfurt\""),
            ("dynamodb://payments?region=us-east-1&reap=never", "reap \"never\""),
            ("dynamodb://payments?region=us-east-1&table=x", "parameter \"table\""),
            ("dynamodb://payments?region=us-east-1&connect_timeout=0", "connect_timeout \"0\""),
            ("dynamodb://payments?region=us-east-1&endpoint=localhost:8000", "endpoint \"localhost:8000\""),
            ("dynamodb://payments?region=us-east-1&endpoint=http://localhost:x", "cannot be read"),
            (
                "dynamodb://payments?region=us-east-1&endpoint=http://db.example.org",
                "not encrypted; write https://",
            ),
            ("dynamodb://payments?region=%zz", "cannot be read"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(told), "{url}: {error}");
        }
    }
}
