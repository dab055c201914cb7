//! `redis://USER:PASSWORD@HOST:PORT,HOST:PORT/DB?prefix=…&durability=…&replicas=…`, parsed once. `rediss://` is the same with
//! TLS, `redis+cluster://` and `rediss+cluster://` are Redis Cluster.
//!
//! The client library has a parser of its own; its errors may quote the password, and it takes one host.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use redis::RedisConnectionInfo;
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use super::lineage::Lineages;
use crate::ErrorKind;
use crate::ssl::{self, Ssl};

/// A parsed URL. It holds a password: it has no `Debug`, and only [`Database::shown`] is printed.
pub(super) struct Database {
    pub(super) hosts: Vec<Host>,
    /// The host that last was a master: it is tried first.
    pub(super) last: AtomicUsize,
    /// How often a server was found to have become a replica.
    pub(super) demotions: AtomicU64,
    /// The masters that this node has met.
    pub(super) lineages: Lineages,
    pub(super) is_cluster: bool,
    /// How many replicas must confirm what is told.
    pub(super) replicas: u32,
    /// User, password, and number of the database.
    pub(super) login: RedisConnectionInfo,
    /// None where connections are not encrypted.
    pub(super) tls: Option<TlsConnector>,
    /// Every key begins with it, in braces.
    pub(super) prefix: String,
    pub(super) durability: Durability,
    /// The time limit for connecting, to one host or to several in turn.
    pub(super) connect_within: Duration,
    /// Whether the URL allows clear text to other machines.
    is_clear_allowed: bool,
    /// As in [`SCHEMES`].
    pub(super) scheme: &'static str,
    /// For messages and logs: hosts and number of the database.
    pub(super) shown: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Who answers for it that an acknowledged write survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// The server's settings, which are read.
    Checked,
    /// The operator, where the settings cannot be read.
    Vouched,
    /// Nobody: records may be lost.
    None,
}

/// Each with the one for TLS or without, and the one for a cluster or without.
const SCHEMES: [&str; 4] = ["redis", "rediss", "redis+cluster", "rediss+cluster"];
const REPLICAS_MAX: u32 = 100;
const PREFIX: &str = "onlyonce";
const PORT: u16 = 6379;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const REMEDY: &str = "write redis://USER:PASSWORD@HOST:PORT/DB, with special characters percent-encoded";

impl Database {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let (scheme, rest) = divided(url)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (login, hosts),
            None => ("", authority),
        };
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()?;
        let parameters = Parameters::parse(query)?;
        let tls = tls(scheme, &parameters.ssl, &hosts)?;
        let is_cluster = scheme.ends_with("+cluster");
        let number = number(path)?;
        if is_cluster && number != 0 {
            let what = format!("the Redis URL names database {number}, and a cluster has database 0 only");
            return Err(wrong(&what, "leave the number out"));
        }
        let shown: Vec<_> = hosts.iter().map(Host::to_string).collect();
        Ok(Self {
            scheme,
            shown: if is_cluster { shown.join(",") } else { format!("{}/{number}", shown.join(",")) },
            is_clear_allowed: !parameters.ssl.is_wanted(false)?,
            tls,
            is_cluster,
            lineages: Lineages::default(),
            replicas: parameters.replicas.unwrap_or(0),
            last: AtomicUsize::new(0),
            demotions: AtomicU64::new(0),
            login: credentials(login)?.set_db(number),
            prefix: parameters.prefix.unwrap_or_else(|| PREFIX.to_owned()),
            durability: parameters.durability.unwrap_or(Durability::Checked),
            connect_within: parameters.connect_within.unwrap_or(CONNECT_WITHIN),
            hosts,
        })
    }

    /// Whether a host may be connected to: in a cluster, it is a member that tells the hosts of the others.
    pub(super) fn may_connect_to(&self, host: &Host) -> bool {
        self.tls.is_some() || self.is_clear_allowed || ssl::is_local(&host.name)
    }

    /// The scheme of the same URL with a cluster, or without.
    pub(super) fn other_scheme(&self) -> String {
        self.scheme.strip_suffix("+cluster").map_or_else(|| format!("{}+cluster", self.scheme), str::to_owned)
    }

    /// The time limit for connecting to one host, login included: a silent host must leave time for the others.
    pub(super) fn connects_within(&self) -> Duration {
        self.connect_within / u32::try_from(self.hosts.len()).unwrap_or(1).max(1)
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// What stands behind the question mark.
struct Parameters {
    prefix: Option<String>,
    durability: Option<Durability>,
    connect_within: Option<Duration>,
    replicas: Option<u32>,
    ssl: Ssl,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, Failure> {
        let (prefix, durability, connect_within, replicas) = (None, None, None, None);
        let mut parameters = Self { prefix, durability, connect_within, replicas, ssl: Ssl::of("Redis") };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value)?;
            match name {
                "prefix" => parameters.prefix = Some(checked_prefix(value)?),
                "durability" => parameters.durability = Some(read_durability(&value)?),
                "connect_timeout" => parameters.connect_within = Some(read_connect_within(&value)?),
                name if parameters.ssl.take(name, &value) => {}
                "replicas" => parameters.replicas = Some(read_replicas(&value)?),
                // Not quoted: who forgets to encode a question mark has a part of the password here.
                _ => {
                    return Err(wrong(
                        "the Redis URL has a parameter that is not known",
                        "use prefix, durability, replicas, connect_timeout, sslmode, sslrootcert, sslcert and sslkey",
                    ));
                }
            }
        }
        Ok(parameters)
    }
}

/// The scheme of a URL, and what follows it.
fn divided(url: &str) -> Result<(&'static str, &str), Failure> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if let Some(known) = SCHEMES.into_iter().find(|known| *known == scheme) {
        return Ok((known, rest));
    }
    match scheme {
        "redis+sentinel" | "rediss+sentinel" => Err(wrong(
            &format!("{scheme}:// is Redis Sentinel, which this release does not offer"),
            "list all hosts in a redis:// URL: the one that is the master is used",
        )),
        _ => Err(wrong("the Redis URL does not begin with redis://", REMEDY)),
    }
}

/// `rediss://` is encrypted and verified; `redis://` is neither, and leaves this machine only where the URL says so.
fn tls(scheme: &str, ssl: &Ssl, hosts: &[Host]) -> Result<Option<TlsConnector>, Failure> {
    let are_all_local = hosts.iter().all(|host| ssl::is_local(&host.name));
    let has_tls = scheme.starts_with("rediss");
    let is_wanted = ssl.is_wanted(!has_tls && are_all_local)?;
    match (has_tls, is_wanted) {
        (true, true) => Ok(Some(TlsConnector::from(ssl.config()?))),
        (false, false) => Ok(None),
        (true, false) => Err(wrong(
            &format!("the Redis URL begins with {scheme}:// and says sslmode=disable"),
            "leave one of them out",
        )),
        (false, true) => Err(wrong(
            &format!(
                "the Redis URL asks for TLS or has a host on another machine, and {scheme}:// is not encrypted"
            ),
            &format!(
                "write {}://, or sslmode=disable where the network is trusted",
                scheme.replacen("redis", "rediss", 1)
            ),
        )),
    }
}

fn host(text: &str) -> Result<Host, Failure> {
    let unreadable = || wrong("a host of the Redis URL cannot be read", REMEDY);
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(unreadable)?;
            (name, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    if name.is_empty() {
        return Err(wrong("the Redis URL has no host", REMEDY));
    }
    let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| unreadable()))?;
    Ok(Host { name: decoded(name)?, port })
}

fn credentials(login: &str) -> Result<RedisConnectionInfo, Failure> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (user, password) = (decoded(user)?, decoded(password)?);
    let mut info = RedisConnectionInfo::default();
    if !user.is_empty() {
        info = info.set_username(user);
    }
    if !password.is_empty() {
        info = info.set_password(password);
    }
    Ok(info)
}

fn number(path: &str) -> Result<i64, Failure> {
    if path.is_empty() {
        return Ok(0);
    }
    let number = path.parse::<u16>().map(i64::from);
    number.map_err(|_| {
        let what = format!("the Redis URL names the database \"{path}\", and Redis numbers its databases");
        wrong(&what, "write a number, or leave it out for database 0")
    })
}

fn checked_prefix(value: String) -> Result<String, Failure> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    if !value.is_empty() && value.bytes().all(is_fine) {
        return Ok(value);
    }
    let what = format!("prefix \"{value}\" of the Redis URL cannot begin a key");
    Err(wrong(&what, "write letters, digits, \"-\", \"_\", \".\" and \":\" only, at least one"))
}

fn read_durability(value: &str) -> Result<Durability, Failure> {
    match value {
        "checked" => Ok(Durability::Checked),
        "vouched" => Ok(Durability::Vouched),
        "none" => Ok(Durability::None),
        other => {
            let what = format!("durability \"{other}\" of the Redis URL is not known");
            Err(wrong(&what, "write checked, vouched or none"))
        }
    }
}

fn read_replicas(value: &str) -> Result<u32, Failure> {
    match value.parse() {
        Ok(replicas @ 1..=REPLICAS_MAX) => Ok(replicas),
        _ => {
            let what = format!("replicas \"{value}\" of the Redis URL is not a number of replicas");
            Err(wrong(&what, "write how many must confirm each write, at least 1, or leave it out"))
        }
    }
}

fn read_connect_within(value: &str) -> Result<Duration, Failure> {
    match value.parse() {
        Ok(seconds @ 1..=60) => Ok(Duration::from_secs(seconds)),
        _ => {
            let what = format!("connect_timeout \"{value}\" of the Redis URL is not a number of seconds");
            Err(wrong(&what, "write 1 to 60"))
        }
    }
}

/// Percent-decoded.
fn decoded(text: &str) -> Result<String, Failure> {
    ssl::decoded(text).ok_or_else(|| wrong("the Redis URL cannot be read", REMEDY))
}

fn wrong(what: &str, remedy: &str) -> Failure {
    Failure::refused(ErrorKind::Misconfigured, format!("{what}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Database {
        Database::parse(url).map_err(|failure| failure.to_string()).unwrap()
    }

    #[test]
    fn a_url_says_where_who_and_how() {
        let database = parsed(
            "redis://ann:s%403cret@localhost:6400,[::1],127.0.0.1/3?prefix=pay&durability=none&connect_timeout=9",
        );
        assert_eq!(database.shown, "localhost:6400,[::1]:6379,127.0.0.1:6379/3");
        assert_eq!((database.login.username(), database.login.password()), (Some("ann"), Some("s@3cret")));
        assert_eq!(database.login.db(), 3);
        assert_eq!((&*database.prefix, database.durability), ("pay", Durability::None));
        assert_eq!(database.connects_within(), Duration::from_secs(3), "one that is silent leaves time");
    }

    #[test]
    fn what_a_url_leaves_out_is_the_usual() {
        let database = parsed("redis://localhost");
        assert_eq!((&*database.shown, &*database.prefix), ("localhost:6379/0", "onlyonce"));
        assert_eq!((database.login.username(), database.login.password()), (None, None));
        assert_eq!(database.durability, Durability::Checked);
        assert_eq!(parsed("redis://:s3cret@localhost").login.password(), Some("s3cret"));
    }

    #[test]
    fn a_cluster_has_a_scheme_of_its_own_and_clear_text_stays_on_this_machine() {
        let cluster = parsed("redis+cluster://localhost:7000,localhost:7001?replicas=2");
        assert_eq!((cluster.is_cluster, cluster.replicas), (true, 2));
        assert_eq!((&*cluster.shown, &*cluster.other_scheme()), ("localhost:7000,localhost:7001", "redis"));
        assert_eq!(parsed("redis://localhost").other_scheme(), "redis+cluster");
        let host = |name: &str| Host { name: name.to_owned(), port: 7_002 };
        assert!(cluster.may_connect_to(&host("127.0.0.1")) && !cluster.may_connect_to(&host("10.0.0.1")));
        assert!(parsed("rediss+cluster://localhost").may_connect_to(&host("10.0.0.1")));
        assert!(parsed("redis+cluster://10.0.0.2?sslmode=disable").may_connect_to(&host("10.0.0.1")));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_with_its_remedy_and_without_its_password() {
        for (url, told) in [
            ("postgres://ann:s3cret@db/x", "does not begin with redis://"),
            ("rediss://:s3cret@db?sslmode=disable", "leave one of them out"),
            ("rediss://:s3cret@db?sslmode=prefer", "sslmode \"prefer\" of the Redis URL"),
            ("rediss://:s3cret@db?sslrootcert=/nowhere", "sslrootcert \"/nowhere\" of the Redis URL"),
            ("rediss://:s3cret@db?sslcert=a.pem", "only one of sslcert and sslkey"),
            ("redis+cluster://:s3cret@db", "write rediss+cluster://, or sslmode=disable"),
            ("redis+cluster://:s3cret@localhost/1", "a cluster has database 0 only"),
            ("redis+sentinel://:s3cret@db", "list all hosts in a redis:// URL"),
            ("redis://:s3cret@", "has no host"),
            ("redis://:s3cret@localhost:http", "a host of the Redis URL cannot be read"),
            ("redis://:s3cret@[::1", "a host of the Redis URL cannot be read"),
            ("redis://:s3cret%zz@localhost", "cannot be read; write redis://USER"),
            ("redis://:s3cret@localhost/pay", "names the database \"pay\""),
            ("redis://:s3cret@db.example.org", "write rediss://, or sslmode=disable"),
            ("redis://:s3cret@localhost?sslmode=require", "write rediss://, or sslmode=disable"),
            ("redis://localhost?s3cret", "a parameter that is not known; use prefix"),
            ("redis://:s3cret@localhost?prefix=", "prefix \"\""),
            ("redis://:s3cret@localhost?prefix=a%7Bb", "prefix \"a{b\""),
            ("redis://:s3cret@localhost?durability=maybe", "durability \"maybe\""),
            ("redis://:s3cret@localhost?connect_timeout=0", "connect_timeout \"0\""),
            ("redis://:s3cret@localhost?replicas=0", "replicas \"0\""),
            ("redis://:s3cret@localhost?replicas=all", "replicas \"all\""),
        ] {
            let Err(failure) = Database::parse(url) else { panic!("{url} was taken") };
            let message = failure.to_string();
            assert!(message.contains(told), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
            assert_eq!(failure.kind, ErrorKind::Misconfigured);
        }
        let clear = parsed("redis://db.example.org?sslmode=disable");
        assert_eq!((&*clear.shown, clear.tls.is_some()), ("db.example.org:6379/0", false));
        assert!(parsed("rediss://db.example.org").tls.is_some());
        assert!(parsed("rediss://localhost?sslmode=verify-full").tls.is_some());
    }
}
