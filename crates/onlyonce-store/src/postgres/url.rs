//! `postgres://user:password@host:port/database?schema=…&sslmode=…`, parsed once.
//!
//! Parameters mean what they mean in libpq, except `sslmode` (`crate::ssl`): TLS is either off or fully verified.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::failure::Failure;
use super::tls::Tls;
use crate::ErrorKind;
use crate::ssl::{self, Ssl, decoded};

/// A parsed URL. It holds a password: it has no `Debug`, and only [`Database::shown`] is printed.
pub(super) struct Database {
    pub(super) config: Config,
    /// One configuration per host, in the order of the URL.
    pub(super) hosts: Vec<Config>,
    /// The host that last accepted writes: it is tried first.
    pub(super) last: AtomicUsize,
    /// `None` if the connection is not encrypted.
    pub(super) tls: Option<Tls>,
    /// The schema of the tables, as written in the URL.
    pub(super) schema: String,
    /// For messages and logs: user, hosts, database.
    pub(super) shown: String,
    /// Servers that only resemble PostgreSQL are allowed.
    pub(super) is_unproven_allowed: bool,
}

/// The URL parameters that are ours.
struct Ours {
    schema: Option<String>,
    ssl: Ssl,
    unproven: Option<String>,
}

/// The default schema.
const SCHEMA: &str = "public";
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const REMEDY: &str =
    "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded";

impl Database {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let (ours, theirs) = divide(url)?;
        // The parser's message may quote what it could not parse, which may be the password.
        let mut config: Config =
            theirs.parse().map_err(|_| wrong("the PostgreSQL URL cannot be read", REMEDY))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(wrong("the PostgreSQL URL has no host", REMEDY));
        }
        let shown = shown(&config);
        let tls = tls(&ours.ssl, &config)?;
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if config.get_application_name().is_none() {
            config.application_name("onlyonce");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        if !url.contains("keepalives_idle=") {
            config.keepalives_idle(KEEPALIVE_AFTER);
        }
        let schema = ours.schema.unwrap_or_else(|| SCHEMA.to_owned());
        if schema.is_empty() || schema.contains('\0') {
            return Err(wrong(
                "the PostgreSQL URL has an empty schema",
                "leave the parameter out, or give a name",
            ));
        }
        let is_unproven_allowed = match ours.unproven.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                let what = format!("unproven \"{other}\" of the PostgreSQL URL is neither true nor false");
                return Err(wrong(&what, "leave the parameter out, or write unproven=true"));
            }
        };
        let hosts = each_host(&config);
        Ok(Self { config, hosts, last: AtomicUsize::new(0), tls, schema, shown, is_unproven_allowed })
    }

    /// The time limit for connecting to one host, TLS and login included: a silent host must leave time for the others.
    pub(super) fn connects_within(&self) -> Duration {
        let within = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_WITHIN);
        within / u32::try_from(self.hosts.len()).unwrap_or(1).max(1)
    }

    /// The schema, quoted for SQL.
    pub(super) fn quoted_schema(&self) -> String {
        quoted(&self.schema)
    }

    pub(super) fn user(&self) -> &str {
        self.config.get_user().unwrap_or("the system's user")
    }
}

/// A name, quoted for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Splits off the parameters that are ours.
fn divide(url: &str) -> Result<(Ours, String), Failure> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(wrong("the PostgreSQL URL does not begin with postgres://", REMEDY));
    }
    let (head, query) = url.split_once('?').unwrap_or((url, ""));
    let mut ours = Ours { schema: None, ssl: Ssl::of("PostgreSQL"), unproven: None };
    let mut theirs = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = || decoded(value).ok_or_else(|| wrong("the PostgreSQL URL cannot be read", REMEDY));
        match name {
            "schema" => ours.schema = Some(value()?),
            "unproven" => ours.unproven = Some(value()?),
            name if ours.ssl.take(name, &value()?) => {}
            _ => theirs.push(parameter),
        }
    }
    let theirs = if theirs.is_empty() { head.to_owned() } else { format!("{head}?{}", theirs.join("&")) };
    Ok((ours, theirs))
}

/// The library also tries hosts in turn, but waits for ever for one that accepts the connection and sends nothing, such as a
/// stopped server.
fn each_host(config: &Config) -> Vec<Config> {
    let count = config.get_hosts().len().max(config.get_hostaddrs().len());
    (0..count).map(|number| only_host(config, number)).collect()
}

fn only_host(config: &Config, number: usize) -> Config {
    let mut only = Config::new();
    match config.get_hosts().get(number) {
        Some(Host::Tcp(name)) => drop(only.host(name)),
        Some(Host::Unix(folder)) => drop(only.host_path(folder)),
        None => {}
    }
    config.get_hostaddrs().get(number).map(|address| only.hostaddr(*address));
    let ports = config.get_ports();
    ports.get(number).or_else(|| ports.first()).map(|port| only.port(*port));
    config.get_user().map(|user| only.user(user));
    config.get_password().map(|password| only.password(password));
    config.get_dbname().map(|name| only.dbname(name));
    config.get_options().map(|options| only.options(options));
    config.get_application_name().map(|name| only.application_name(name));
    config.get_connect_timeout().map(|span| only.connect_timeout(*span));
    config.get_tcp_user_timeout().map(|span| only.tcp_user_timeout(*span));
    config.get_keepalives_interval().map(|span| only.keepalives_interval(span));
    config.get_keepalives_retries().map(|count| only.keepalives_retries(count));
    only.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    only.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    only.channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs());
    only
}

fn tls(ssl: &Ssl, config: &Config) -> Result<Option<Tls>, Failure> {
    let are_all_local = config.get_hosts().iter().all(is_local);
    if ssl.is_wanted(are_all_local)? { Tls::new(ssl).map(Some) } else { Ok(None) }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => ssl::is_local(name),
    }
}

fn shown(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| {
        let ports = config.get_ports();
        let port = ports.get(number).or_else(|| ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(folder) => format!("{}:{port}", folder.display()),
        }
    });
    let hosts: Vec<_> = hosts.collect();
    let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or_default();
    format!("{}/{database}", hosts.join(","))
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
    fn a_server_on_this_machine_is_spoken_to_in_clear_and_any_other_with_tls() {
        for (url, has_tls) in [
            ("postgres://ann@localhost/pay", false),
            ("postgres://ann@127.0.0.1:5433/pay", false),
            ("postgresql://ann@[::1]/pay", false),
            ("postgres://ann@%2Frun%2Fpostgresql/pay", false),
            ("postgres://ann@localhost/pay?sslmode=require", true),
            ("postgres://ann@db.internal/pay", true),
            ("postgres://ann@db.internal/pay?sslmode=verify-full", true),
            ("postgres://ann@localhost,db.internal/pay", true),
            ("postgres://ann@db.internal/pay?sslmode=disable", false),
        ] {
            assert_eq!(parsed(url).tls.is_some(), has_tls, "{url}");
        }
    }

    #[test]
    fn the_schema_is_ours_and_what_libpq_knows_is_passed_on() {
        let database =
            parsed("postgres://ann@localhost/pay?schema=My%20%22Keys&application_name=x&connect_timeout=9");
        assert_eq!(database.schema, "My \"Keys");
        assert_eq!(database.quoted_schema(), "\"My \"\"Keys\"");
        assert_eq!(database.config.get_application_name(), Some("x"));
        assert_eq!(database.connects_within(), Duration::from_secs(9));
        assert_eq!(parsed("postgres://ann@localhost/pay").schema, "public");
    }

    #[test]
    fn each_host_keeps_what_the_url_says_of_all() {
        let database = parsed(
            "postgres://ann:s3cret@localhost:5433,127.0.0.1:5434/pay?connect_timeout=9&options=-c%20a=b",
        );
        let [first, second] = &database.hosts[..] else { panic!("there are two") };
        assert_eq!((first.get_hosts().len(), first.get_ports()), (1, &[5433][..]));
        assert_eq!(
            (&second.get_hosts()[0], second.get_ports()),
            (&Host::Tcp("127.0.0.1".into()), &[5434][..])
        );
        for host in [first, second] {
            assert_eq!((host.get_user(), host.get_password()), (Some("ann"), Some(&b"s3cret"[..])));
            assert_eq!((host.get_dbname(), host.get_options()), (Some("pay"), Some("-c a=b")));
            assert_eq!(
                (host.get_ssl_mode(), host.get_keepalives_idle()),
                (SslMode::Disable, KEEPALIVE_AFTER)
            );
        }
        assert_eq!(
            database.connects_within(),
            Duration::from_millis(4_500),
            "one that is silent leaves time"
        );
    }

    #[test]
    fn messages_tell_where_and_never_the_password() {
        let database = parsed("postgres://ann:s3cret@localhost:5433,127.0.0.1/pay");
        assert_eq!(database.shown, "localhost:5433,127.0.0.1:5432/pay");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_with_its_remedy_and_without_its_password() {
        for (url, told) in [
            ("mysql://ann:s3cret@db/x", "does not begin with postgres://"),
            ("postgres://ann:s3cret@db:http/x", "cannot be read; write postgres://USER"),
            ("postgres://ann:s3cret@db/x?nonsense=s3cret", "cannot be read"),
            ("postgres://ann:s3cret@db/x?schema=%zz", "cannot be read"),
            ("postgres:///x", "has no host"),
            ("postgres://ann:s3cret@db/x?schema=", "empty schema"),
            ("postgres://ann:s3cret@db/x?unproven=maybe", "unproven \"maybe\""),
            ("postgres://ann:s3cret@db/x?sslmode=prefer", "sslmode \"prefer\""),
            ("postgres://ann:s3cret@db/x?sslmode=verify-ca", "write sslmode=verify-full"),
            ("postgres://ann:s3cret@db/x?sslcert=a.pem", "only one of sslcert and sslkey"),
            ("postgres://ann:s3cret@db/x?sslrootcert=/no/such/file", "\"/no/such/file\""),
        ] {
            let Err(failure) = Database::parse(url) else { panic!("{url} was taken") };
            let message = failure.to_string();
            assert!(message.contains(told), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
            assert_eq!(failure.kind, ErrorKind::Misconfigured);
        }
    }
}
