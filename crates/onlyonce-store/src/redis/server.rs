//! A connection to one server that many callers share, made again where it is lost.
//!
//! 1. A trip without an answer in time is `Unavailable`, and its connection is not used again: what was sent may still be
//!    executed.
//! 2. Connecting is a task of its own: a caller that gives up does not stop it. Of those who wait, one connects; if that
//!    fails, all who waited get its failure.
//! 3. A server that has become a replica refuses writes (`READONLY`), and says so to reads, which ask for its `ROLE`: then
//!    every connection of this node is made again.
//! 4. Scripts are loaded with each connection. A server that has lost them (`NOSCRIPT`) has done nothing: they are loaded
//!    again, and what it refused is sent again.
//! 5. Each answer comes with the server's `TIME`.

#![allow(clippy::wildcard_enum_match_arm, reason = "any other kind of answer is an error")]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onlyonce_core::time::Timestamp;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::clock::Clock;
use super::failure::Failure;
use super::script;
use super::url::{Database, Durability, Host};
use crate::ErrorKind;
use crate::clock::steady;

/// How often a trip is sent: again where the server has lost the scripts, or has become a replica.
const SENT_MAX: u32 = 3;

/// A server, and the connection to it.
pub(super) struct Server {
    database: Arc<Database>,
    clock: Arc<Clock>,
    /// None: the one of the URL's hosts that is the master.
    host: Option<Host>,
    /// How long the server may take to answer a trip.
    within: Duration,
    current: Mutex<Option<Numbered>>,
    /// How the last attempt to connect ended. Held while one is made.
    connecting: tokio::sync::Mutex<Result<(), Failure>>,
    attempts: AtomicU64,
}

#[derive(Clone)]
struct Numbered {
    number: u64,
    /// How many servers had become replicas when it was made.
    demotions: u64,
    connection: MultiplexedConnection,
    /// Whether it has `WAITAOF`, and replicas have to confirm what is told.
    confirms_disks: bool,
}

/// What a server answered to a trip.
pub(super) struct Reply {
    pub(super) values: Vec<Value>,
    pub(super) now: Timestamp,
    /// Whether all that it shows would survive the loss of the server; see `master.rs`.
    pub(super) is_confirmed: bool,
}

/// Commands of one caller, to be confirmed by replicas.
pub(super) struct Trip {
    pub(super) commands: Pipeline,
    /// A key that the server has, for [`script::MARK`].
    pub(super) marker: Vec<u8>,
    /// Whether the key's slot is about to become the server's, so that each command needs `ASKING` before it.
    pub(super) is_asking: bool,
}

impl Server {
    pub(super) fn new(
        database: &Arc<Database>,
        clock: &Arc<Clock>,
        within: Duration,
        host: Option<Host>,
    ) -> Arc<Self> {
        Arc::new(Self {
            database: database.clone(),
            clock: clock.clone(),
            host,
            within,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::new(Ok(())),
            attempts: AtomicU64::new(0),
        })
    }

    /// Sends commands together. With `checks_role`, a server that is no longer a master is not believed.
    pub(super) async fn ask(
        self: &Arc<Self>,
        mut trip: Pipeline,
        checks_role: bool,
    ) -> Result<Reply, Failure> {
        if checks_role {
            trip.cmd("ROLE");
        }
        trip.cmd("TIME").ignore_errors();
        for _ in 0..SENT_MAX {
            let current = self.connection().await?;
            let mut reply = self.send_on(&current, &trip).await?;
            if checks_role && !reply.values.pop().is_some_and(|role| is_master(&role)) {
                // Only what a replica refuses could have been written, so that it may be sent again.
                self.demoted();
                continue;
            }
            if has_error(&reply.values, "READONLY") {
                self.demoted();
            }
            if !has_error(&reply.values, "NOSCRIPT") {
                return Ok(reply);
            }
            self.send_on(&current, &script::load()).await.map_err(Failure::before_sending)?;
        }
        Err(self.unsettled())
    }

    /// Sends trips together, and waits until so many replicas as the URL says have all that the server has executed until then.
    pub(super) async fn ask_and_wait(self: &Arc<Self>, trips: &[Trip]) -> Result<Vec<Reply>, Failure> {
        let mut answered: Vec<Option<Vec<Value>>> = trips.iter().map(|_| None).collect();
        // In a slot that is about to become this server's, the marker would stand beside the one that is still to come.
        let marker = trips.iter().find(|trip| !trip.is_asking).map(|trip| &trip.marker);
        let mut number = None;
        for _ in 0..SENT_MAX {
            let left: Vec<usize> = (0..trips.len()).filter(|place| answered[*place].is_none()).collect();
            let after =
                |failure: Failure| if left.len() < trips.len() { failure.after_others() } else { failure };
            let current = self.connection().await.map_err(after)?;
            if left.len() < trips.len() && number != Some(current.number) {
                // `WAIT` speaks for what its own connection wrote, and this may be another server.
                let what = "the connection was lost before replicas had confirmed what was written";
                return Err(Failure::doubt(&self.database, what));
            }
            number = Some(current.number);
            let whole = self.together(trips, &left, marker, current.confirms_disks);
            let Reply { mut values, now, .. } = self.send_on(&current, &whole).await.map_err(after)?;
            let stored = current.confirms_disks.then(|| values.pop());
            let waited = values.pop();
            let marked = marker.and_then(|_| values.pop());
            if has_error(&values, "READONLY") || has_error(marked.as_slice(), "READONLY") {
                self.demoted();
            }
            let mut values = values.into_iter();
            for place in left {
                let count = trips[place].commands.len() * (1 + usize::from(trips[place].is_asking));
                let some: Vec<Value> = values.by_ref().take(count).collect();
                answered[place] = Some(some).filter(|some| !has_error(some, "NOSCRIPT"));
            }
            if has_error(marked.as_slice(), "NOSCRIPT") || answered.iter().any(Option::is_none) {
                let loaded = self.send_on(&current, &script::load()).await;
                loaded.map_err(Failure::after_others)?;
                continue;
            }
            self.judge_wait(waited.as_ref())?;
            stored.map_or(Ok(()), |stored| self.judge_stored(stored.as_ref()))?;
            let is_confirmed = marker.is_some() && self.judge_mark(marked)?;
            let reply = |values| Reply { values, now, is_confirmed };
            return Ok(answered.into_iter().flatten().map(reply).collect());
        }
        Err(self.unsettled().after_others())
    }

    /// Those trips, a write of our own, and `WAIT`: it waits for what this connection wrote, and the write comes after all that
    /// the trips have read. Then `WAITAOF`, which by itself would take a second: a replica that flushes every write is asked
    /// once, answers before its flush, and tells of it with its next answer. After `WAIT` it is asked again.
    fn together(
        &self,
        trips: &[Trip],
        places: &[usize],
        marker: Option<&Vec<u8>>,
        confirms_disks: bool,
    ) -> Pipeline {
        let mut whole = Pipeline::new();
        for trip in places.iter().map(|place| &trips[*place]) {
            for command in trip.commands.cmd_iter() {
                if trip.is_asking {
                    whole.cmd("ASKING");
                }
                whole.add_command(command.clone());
            }
        }
        if let Some(marker) = marker {
            script::call(&mut whole, &script::MARK, std::slice::from_ref(marker)).arg("1");
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let replicas = self.database.replicas;
        whole.cmd("WAIT").arg(replicas).arg(millis(self.within / 2));
        if confirms_disks {
            whole.cmd("WAITAOF").arg(1).arg(replicas).arg(millis(self.within / 4));
        }
        whole.cmd("TIME").ignore_errors();
        whole
    }

    /// Whether so many replicas have confirmed what was written.
    fn judge_wait(&self, waited: Option<&Value>) -> Result<(), Failure> {
        let (database, wanted) = (&self.database, self.database.replicas);
        match waited {
            Some(Value::Int(count)) if *count >= i64::from(wanted) => Ok(()),
            Some(Value::Int(count)) => {
                let what = format!(
                    "{count} of the {wanted} replicas that the URL wants have confirmed the write in time; see to it that they \
                     run and are connected"
                );
                Err(Failure::doubt(database, &what))
            }
            Some(Value::ServerError(error)) => Err(Failure::answered(database, error).after_others()),
            _ => Err(Failure::misunderstood(database)),
        }
    }

    /// Whether what was written is on the server's disk, and on those of so many replicas.
    fn judge_stored(&self, stored: Option<&Value>) -> Result<(), Failure> {
        let (database, wanted) = (&self.database, self.database.replicas);
        let Some(Value::Array(counts)) = stored else {
            return Err(match stored {
                Some(Value::ServerError(error)) => Failure::answered(database, error).after_others(),
                _ => Failure::misunderstood(database),
            });
        };
        match counts[..] {
            [Value::Int(1..), Value::Int(count)] if count >= i64::from(wanted) => Ok(()),
            [Value::Int(own), Value::Int(count)] => {
                let own = if own == 0 { "the master has not, and " } else { "" };
                let what = format!(
                    "{own}{count} of the {wanted} replicas that the URL wants have written to their disks in time; set appendonly \
                     yes and appendfsync always on each"
                );
                Err(Failure::doubt(database, &what))
            }
            _ => Err(Failure::misunderstood(database)),
        }
    }

    /// Whether the marker was written, so that what was read is confirmed as well; not where its slot is moving.
    fn judge_mark(&self, marked: Option<Value>) -> Result<bool, Failure> {
        match marked {
            Some(Value::Int(1)) => Ok(true),
            Some(Value::ServerError(error)) if matches!(error.code(), "ASK" | "MOVED" | "TRYAGAIN") => {
                Ok(false)
            }
            Some(Value::ServerError(error)) => Err(Failure::answered(&self.database, &error).after_others()),
            _ => Err(Failure::misunderstood(&self.database)),
        }
    }

    fn demoted(&self) {
        self.database.demotions.fetch_add(1, Ordering::AcqRel);
    }

    fn unsettled(&self) -> Failure {
        let shown = &self.database.shown;
        let what =
            format!("Redis at {shown}: it loses scripts, or its role, as soon as it has them; see its log");
        Failure::refused(ErrorKind::Unavailable, what)
    }

    /// The connection there is, or a new one.
    async fn connection(self: &Arc<Self>) -> Result<Numbered, Failure> {
        if let Some(current) = self.usable() {
            return Ok(current);
        }
        let (server, seen) = (self.clone(), self.attempts.load(Ordering::Acquire));
        let connected = tokio::spawn(async move { server.connect(seen).await }).await;
        let ended = |_| Err(Failure::doubt(&self.database, "the runtime has ended"));
        connected.unwrap_or_else(ended).map_err(Failure::before_sending)
    }

    async fn connect(&self, seen: u64) -> Result<Numbered, Failure> {
        let mut last = self.connecting.lock().await;
        if let Some(current) = self.usable() {
            return Ok(current);
        }
        if self.attempts.load(Ordering::Acquire) != seen {
            (*last).clone()?;
        }
        let demotions = self.database.demotions.load(Ordering::Acquire);
        let connected = match &self.host {
            Some(host) => self.connect_in_time(host, self.database.connect_within).await,
            None => self.connect_to_master().await,
        };
        let number = self.attempts.fetch_add(1, Ordering::AcqRel);
        *last = connected.as_ref().map(drop).map_err(Failure::clone);
        let (connection, confirms_disks) = connected?;
        let connected = Numbered { number, demotions, connection, confirms_disks };
        *self.current() = Some(connected.clone());
        Ok(connected)
    }

    /// Tries the hosts one after the other, the last master first.
    async fn connect_to_master(&self) -> Result<(MultiplexedConnection, bool), Failure> {
        let database = &self.database;
        let (count, first) = (database.hosts.len(), database.last.load(Ordering::Acquire));
        let mut failed = None;
        for place in (first..first + count).map(|place| place % count) {
            match self.connect_in_time(&database.hosts[place], database.connects_within()).await {
                Ok(connection) => {
                    database.last.store(place, Ordering::Release);
                    return Ok(connection);
                }
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.expect("a URL has at least one host"))
    }

    /// The connection, and whether [`Numbered::confirms_disks`].
    async fn connect_in_time(
        &self,
        host: &Host,
        within: Duration,
    ) -> Result<(MultiplexedConnection, bool), Failure> {
        let connecting = timeout(within, self.connect_to(host)).await;
        connecting.unwrap_or_else(|_| Err(Failure::silent(&self.database, within)))
    }

    async fn connect_to(&self, host: &Host) -> Result<(MultiplexedConnection, bool), Failure> {
        let mut connection = connect(&self.database, host).await?;
        let mut values = self.send(&mut connection, &script::load()).await?.values.into_iter();
        let first = [values.next(), values.next()];
        let wrong = [&first[0], &first[1]].into_iter().flatten().chain(values.as_slice()).find_map(error_of);
        if let Some(error) = wrong {
            return Err(Failure::answered(&self.database, error));
        }
        let [Some(role), Some(info)] = first else { return Err(Failure::misunderstood(&self.database)) };
        if !is_master(&role) {
            let what = format!(
                "Redis at {}: {host} is a replica; use the master's URL, or list all hosts in it",
                self.database.shown
            );
            return Err(Failure::refused(ErrorKind::Unavailable, what));
        }
        let info = info_text(&info).ok_or_else(|| Failure::misunderstood(&self.database))?;
        if self.database.lineages.connected(&info) {
            tracing::warn!("{host} has taken over from the master of Redis at {}", self.database.shown);
            metrics::counter!("onlyonce_store_failovers_total").increment(1);
            // Its clock is another one.
            self.clock.forget();
            let mut time = Pipeline::new();
            time.cmd("TIME").ignore_errors();
            self.send(&mut connection, &time).await?;
        }
        let confirms_disks = self.confirms_disks(&mut connection).await?;
        Ok((connection, confirms_disks))
    }

    /// Whether replicas have to confirm what is told, and can say that it is on their disks: Redis 7.2 and Valkey can. Who needs
    /// no disk (`durability=none`) does not wait for those of replicas.
    async fn confirms_disks(&self, connection: &mut MultiplexedConnection) -> Result<bool, Failure> {
        if self.database.replicas == 0 || self.database.durability == Durability::None {
            return Ok(false);
        }
        let mut trip = Pipeline::new();
        // It waits for nobody.
        trip.cmd("WAITAOF").arg(0).arg(0).arg(0);
        trip.cmd("TIME").ignore_errors();
        match self.send(connection, &trip).await?.values.pop() {
            Some(Value::Array(_)) => Ok(true),
            Some(Value::ServerError(error)) if is_unknown(&error) => Ok(false),
            Some(Value::ServerError(error)) => Err(Failure::answered(&self.database, &error)),
            _ => Err(Failure::misunderstood(&self.database)),
        }
    }

    /// Sends on a connection; without an answer, it is not used again.
    async fn send_on(&self, current: &Numbered, trip: &Pipeline) -> Result<Reply, Failure> {
        let sent = self.send(&mut current.connection.clone(), trip).await;
        if sent.is_err() {
            self.give_up(current.number);
        }
        sent
    }

    /// `trip` ends with `TIME`.
    async fn send(&self, connection: &mut MultiplexedConnection, trip: &Pipeline) -> Result<Reply, Failure> {
        let sent = steady();
        let sending = timeout(self.within, trip.query_async::<Vec<Value>>(connection));
        let answered = sending.await.map_err(|_| Failure::late(&self.database, self.within))?;
        let mut values = answered.map_err(|error| Failure::lost(&self.database, &error))?;
        let time = values.pop().ok_or_else(|| Failure::misunderstood(&self.database))?;
        let time = match time {
            Value::ServerError(error) => return Err(Failure::answered(&self.database, &error).after_others()),
            time => read_time(&time).ok_or_else(|| Failure::misunderstood(&self.database))?,
        };
        let now = self.clock.told(sent, steady(), time);
        Ok(Reply { values, now, is_confirmed: true })
    }

    /// The connection of this number is not used again.
    fn give_up(&self, number: u64) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| current.number == number) {
            *current = None;
        }
    }

    /// The connection there is, unless a server has become a replica since it was made.
    fn usable(&self) -> Option<Numbered> {
        let demotions = self.database.demotions.load(Ordering::Acquire);
        self.current().clone().filter(|current| current.demotions == demotions)
    }

    fn current(&self) -> MutexGuard<'_, Option<Numbered>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a command was answered with this error.
fn has_error(values: &[Value], code: &str) -> bool {
    values.iter().filter_map(error_of).any(|error| error.code() == code)
}

pub(super) fn error_of(value: &Value) -> Option<&redis::ServerError> {
    match value {
        Value::ServerError(error) => Some(error),
        _ => None,
    }
}

/// Whether the server has no such command.
fn is_unknown(error: &redis::ServerError) -> bool {
    error.details().is_some_and(|details| details.starts_with("unknown command"))
}

/// `ROLE` begins with the name of the role.
fn is_master(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".to_vec())))
}

/// What `INFO` answers.
pub(super) fn info_text(info: &Value) -> Option<String> {
    match info {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// A new connection, logged in.
pub(super) async fn connect(database: &Database, host: &Host) -> Result<MultiplexedConnection, Failure> {
    if !database.may_connect_to(host) {
        let what = format!(
            "Redis at {}: its member {host} is on another machine, and the connection to it would not be encrypted; write \
             rediss+cluster://, or sslmode=disable where the network is trusted",
            database.shown
        );
        return Err(Failure::refused(ErrorKind::Misconfigured, what));
    }
    open(database, host).await.map_err(|error| Failure::unconnected(database, host, &error))
}

async fn open(database: &Database, host: &Host) -> Result<MultiplexedConnection, RedisError> {
    let stream = TcpStream::connect((&*host.name, host.port)).await?;
    stream.set_nodelay(true)?;
    match &database.tls {
        None => log_in(database, stream).await,
        Some(tls) => {
            let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
            log_in(database, tls.connect(name, stream).await?).await
        }
    }
}

async fn log_in<S>(database: &Database, stream: S) -> Result<MultiplexedConnection, RedisError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The time limits are our own, around the whole.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let logging_in = MultiplexedConnection::new_with_config(&database.login, stream, config);
    let (connection, driver) = logging_in.await?;
    // It ends with the last clone of the connection.
    tokio::spawn(driver);
    Ok(connection)
}

/// `TIME` answers seconds and microseconds.
fn read_time(time: &Value) -> Option<Timestamp> {
    let Value::Array(parts) = time else { return None };
    let number = |place: usize| match parts.get(place)? {
        Value::BulkString(digits) => str::from_utf8(digits).ok()?.parse::<i64>().ok(),
        _ => None,
    };
    Some(Timestamp::from_micros(number(0)?.checked_mul(1_000_000)?.checked_add(number(1)?)?))
}
