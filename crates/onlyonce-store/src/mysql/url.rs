//! `mysql://user:password@host:port,host:port/database?sslmode=…`, parsed once.
//!
//! The URL is parsed here and not by the client library: its errors quote passwords, it knows one host, and its parameters
//! have other names. `sslmode` and its files mean what they mean for PostgreSQL (`crate::ssl`).

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};

use super::failure::Failure;
use crate::ErrorKind;
use crate::ssl::{Ssl, decoded, is_local};

/// A parsed URL. It holds a password: it has no `Debug`, and only [`Database::shown`] is printed.
pub(super) struct Database {
    /// The options for each host, in the order of the URL.
    pub(super) hosts: Vec<Opts>,
    /// The host that last accepted writes: it is tried first.
    pub(super) last: AtomicUsize,
    /// Whether the server that was last connected to is a node of a Galera cluster.
    pub(super) is_galera: AtomicBool,
    pub(super) user: String,
    /// The database's name.
    pub(super) name: String,
    /// For messages and logs: hosts and database.
    pub(super) shown: String,
    connect_within: Duration,
}

const PORT: u16 = 3306;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// How many statements a connection keeps prepared: each of ours, and batches of a few sizes.
const PREPARED_MAX: usize = 128;
const REMEDY: &str =
    "write mysql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded";

/// A host of a URL.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    Tcp(String, u16),
    /// A Unix socket.
    Socket(String),
}

impl Database {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let rest = url
            .strip_prefix("mysql://")
            .or_else(|| url.strip_prefix("mariadb://"))
            .ok_or_else(|| wrong("the MySQL URL does not begin with mysql://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, name) = rest.split_once('/').ok_or_else(|| wrong("the MySQL URL names no database"))?;
        let (login, hosts) = server.rsplit_once('@').ok_or_else(|| wrong("the MySQL URL has no user"))?;
        let (user, password) = login.split_once(':').map_or((login, None), |(user, pass)| (user, Some(pass)));
        let (user, name) = (text(user)?, text(name)?);
        let password = password.map(text).transpose()?;
        if user.is_empty() {
            return Err(wrong("the MySQL URL has no user"));
        }
        if name.is_empty() {
            return Err(wrong("the MySQL URL names no database"));
        }
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>, _>>()?;
        let (ssl, connect_within) = parameters(query)?;
        let ssl = ssl_options(&ssl, &hosts)?;
        let options = |host: &Host| {
            let options = OptsBuilder::default()
                .user(Some(&user))
                .pass(password.as_deref())
                .db_name(Some(&name))
                .ssl_opts(ssl.clone())
                // Else a connection to this machine is made twice, the second time by a socket that nobody named.
                .prefer_socket(false)
                .client_found_rows(false)
                .stmt_cache_size(PREPARED_MAX)
                .tcp_keepalive(Some(KEEPALIVE_AFTER));
            match host {
                Host::Tcp(name, port) => options.ip_or_hostname(name).tcp_port(*port).into(),
                Host::Socket(path) => options.socket(Some(path)).into(),
            }
        };
        let shown = format!("{}/{name}", hosts.iter().map(Host::shown).collect::<Vec<_>>().join(","));
        let hosts = hosts.iter().map(options).collect();
        let (last, is_galera) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { hosts, last, is_galera, user, name, shown, connect_within })
    }

    /// The time limit for connecting to one host, TLS and login included: a silent host must leave time for the others.
    pub(super) fn connects_within(&self) -> Duration {
        self.connect_within / u32::try_from(self.hosts.len()).unwrap_or(1).max(1)
    }
}

impl Host {
    fn shown(&self) -> String {
        match self {
            Self::Tcp(name, port) if name.contains(':') => format!("[{name}]:{port}"),
            Self::Tcp(name, port) => format!("{name}:{port}"),
            Self::Socket(path) => path.clone(),
        }
    }
}

/// A host and its port; an address of IPv6 in brackets; or the path of a socket, percent-encoded.
fn host(part: &str) -> Result<Host, Failure> {
    let unread = || wrong("a host of the MySQL URL cannot be read");
    let (name, port) = match part.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(unread)?;
            (name, port.strip_prefix(':'))
        }
        None => part.split_once(':').map_or((part, None), |(name, port)| (name, Some(port))),
    };
    let name = text(name)?;
    if name.is_empty() {
        return Err(wrong("the MySQL URL has no host"));
    }
    if name.starts_with('/') {
        return Ok(Host::Socket(name));
    }
    let port = port.map_or(Ok(PORT), str::parse).map_err(|_| unread())?;
    Ok(Host::Tcp(name, port))
}

fn parameters(query: &str) -> Result<(Ssl, Duration), Failure> {
    let (mut ssl, mut connect_within) = (Ssl::of("MySQL"), CONNECT_WITHIN);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = text(value)?;
        if ssl.take(name, &value) {
            continue;
        }
        match (name, value.parse()) {
            ("connect_timeout", Ok(seconds)) if seconds > 0 => connect_within = Duration::from_secs(seconds),
            ("connect_timeout", _) => {
                let what = format!("connect_timeout \"{value}\" of the MySQL URL is not a number of seconds");
                return Err(refused(&what, "write connect_timeout=5, or leave it out"));
            }
            _ => {
                // Not the value: it may be anything, also a password.
                let what = format!("the MySQL URL has the parameter \"{name}\", which is unknown");
                return Err(refused(
                    &what,
                    "use sslmode, sslrootcert, sslcert, sslkey and connect_timeout only",
                ));
            }
        }
    }
    Ok((ssl, connect_within))
}

fn ssl_options(ssl: &Ssl, hosts: &[Host]) -> Result<Option<SslOpts>, Failure> {
    let are_all_local = hosts.iter().all(|host| match host {
        Host::Tcp(name, _) => is_local(name),
        Host::Socket(_) => true,
    });
    if !ssl.is_wanted(are_all_local)? {
        return Ok(None);
    }
    // The client library takes the process' provider and panics where there could be two; a program that chose one keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let roots = ssl.roots()?.iter().map(|root| root.to_vec().into()).collect();
    let client = match ssl.client()? {
        None => None,
        Some((chain, key)) => {
            ssl.certificates("sslcert", chain)?;
            ssl.private_key(key)?;
            Some(ClientIdentity::new(chain.to_owned().into(), key.to_owned().into()))
        }
    };
    let options = SslOpts::default().with_disable_built_in_roots(true).with_root_certs(roots);
    Ok(Some(options.with_client_identity(client)))
}

fn text(part: &str) -> Result<String, Failure> {
    decoded(part).ok_or_else(|| wrong("the MySQL URL cannot be read"))
}

fn wrong(what: &str) -> Failure {
    refused(what, REMEDY)
}

fn refused(what: &str, remedy: &str) -> Failure {
    Failure::refused(ErrorKind::Misconfigured, format!("{what}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Database {
        Database::parse(url).map_err(|failure| failure.to_string()).unwrap()
    }

    #[test]
    fn a_server_on_this_machine_is_spoken_to_in_clear_and_any_other_with_tls() {
        for (url, has_tls) in [
            ("mysql://ann@localhost/pay", false),
            ("mariadb://ann@127.0.0.1:3307/pay", false),
            ("mysql://ann@[::1]/pay", false),
            ("mysql://ann@%2Frun%2Fmysqld%2Fmysqld.sock/pay", false),
            ("mysql://ann@localhost/pay?sslmode=require", true),
            ("mysql://ann@db.internal/pay", true),
            ("mysql://ann@db.internal/pay?sslmode=verify-full", true),
            ("mysql://ann@localhost,db.internal/pay", true),
            ("mysql://ann@db.internal/pay?sslmode=disable", false),
        ] {
            assert_eq!(parsed(url).hosts[0].ssl_opts().is_some(), has_tls, "{url}");
        }
    }

    #[test]
    fn each_host_keeps_what_the_url_says_of_all() {
        let database =
            parsed("mysql://ann%40x:s%3Acr%40t@localhost:3307,[::1],%2Frun%2Fs/my%2Fpay?connect_timeout=9");
        let [first, second, third] = &database.hosts[..] else { panic!("there are three") };
        assert_eq!((first.ip_or_hostname(), first.tcp_port()), ("localhost", 3307));
        assert_eq!((second.ip_or_hostname(), second.tcp_port()), ("::1", 3306));
        assert_eq!(third.socket(), Some("/run/s"));
        for host in [first, second, third] {
            assert_eq!((host.user(), host.pass()), (Some("ann@x"), Some("s:cr@t")));
            assert_eq!((host.db_name(), host.prefer_socket()), (Some("my/pay"), false));
        }
        assert_eq!(database.connects_within(), Duration::from_secs(3), "one that is silent leaves time");
        assert_eq!(database.shown, "localhost:3307,[::1]:3306,/run/s/my/pay");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_with_its_remedy_and_without_its_password() {
        for (url, told) in [
            ("postgres://ann:s3cret@db/x", "does not begin with mysql://"),
            ("mysql://ann:s3cret@db", "names no database; write mysql://USER"),
            ("mysql://ann:s3cret@db/", "names no database"),
            ("mysql://db/x", "has no user"),
            ("mysql://:s3cret@db/x", "has no user"),
            ("mysql://ann:s3cret@/x", "has no host"),
            ("mysql://ann:s3cret@db:http/x", "a host of the MySQL URL cannot be read"),
            ("mysql://ann:s3cret%zz@db/x", "cannot be read"),
            ("mysql://ann:s3cret@db/x?nonsense=s3cret", "parameter \"nonsense\", which is unknown"),
            ("mysql://ann:s3cret@db/x?connect_timeout=soon", "connect_timeout \"soon\""),
            ("mysql://ann:s3cret@db/x?sslmode=prefer", "sslmode \"prefer\""),
            ("mysql://ann:s3cret@db/x?sslmode=verify-ca", "write sslmode=verify-full"),
            ("mysql://ann:s3cret@db/x?sslcert=a.pem", "only one of sslcert and sslkey"),
            ("mysql://ann:s3cret@db/x?sslrootcert=/no/such/file", "\"/no/such/file\""),
        ] {
            let Err(failure) = Database::parse(url) else { panic!("{url} was taken") };
            let message = failure.to_string();
            assert!(message.contains(told), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
            assert_eq!(failure.kind, ErrorKind::Misconfigured);
        }
    }
}
