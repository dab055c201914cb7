//! Redis Cluster: which master has a key, and where to send a command again that has moved.
//!
//! 1. The map of slots is read from any member, corrected by `MOVED`, and read anew where a master cannot be reached.
//! 2. The commands of a trip are sent to their masters, in order for each master. A command that was redirected (`MOVED`,
//!    `ASK`), or that could not be sent, was not executed: it is sent again. A command without an answer is not.
//! 3. While a slot moves, a command with one key is redirected key by key, and goes on. A script with several keys is refused
//!    (`TRYAGAIN`) until the keys are together again: it is sent again for a second.
//! 4. Each master has a clock of its own, which is asked before anything is stamped by it.
//!
//! The client library's cluster client sends a command again also where its answer was lost, and a pipeline of it to one
//! master only; so it is not used.

#![allow(clippy::wildcard_enum_match_arm, reason = "any other kind of answer is an error")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onlyonce_core::time::Timestamp;
use redis::{Arg, Cmd, Pipeline, Value};
use tokio::time::{sleep, timeout};

use super::clock::Clock;
use super::failure::Failure;
use super::layout::{Keys, buckets, marker};
use super::master::{Ending, Master};
use super::server::{self, Reply, error_of};
use super::url::{Database, Host};
use crate::ErrorKind;
use crate::clock::steady;

const SLOTS: u16 = 16_384;
/// How often the commands of a trip are sent because they were redirected.
const REDIRECTED_MAX: u32 = 8;
/// How long, and how often, scripts are sent again whose keys are moving.
const MOVING_MAX: Duration = Duration::from_secs(1);
const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The map is not read more often.
const READ_EVERY: Duration = Duration::from_millis(100);
/// How many slots are tried for a write that confirms what a master has shown.
const MARKERS_MAX: usize = 8;

/// The masters of a cluster; see the module's documentation.
pub(super) struct Cluster {
    database: Arc<Database>,
    clock: Arc<Clock>,
    within: Duration,
    ending: Ending,
    known: Mutex<Known>,
    /// When the map was last read. Held while it is.
    read_at: tokio::sync::Mutex<Option<Instant>>,
    /// Whether a master could not be reached since then.
    is_stale: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// The owner of each slot, where it has one; empty until the map was read.
    owners: Vec<Option<Arc<Host>>>,
    /// Who told them.
    told_by: Option<Host>,
    masters: HashMap<Host, Arc<Master>>,
}

/// Where a command goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    host: Arc<Host>,
    /// Its slot is not yet this master's.
    is_asking: bool,
}

/// What an answer says about where its key is.
enum Redirect {
    Moved(u16, Host),
    Ask(Host),
    TryAgain,
}

impl Cluster {
    pub(super) fn new(
        database: &Arc<Database>,
        clock: &Arc<Clock>,
        within: Duration,
        ending: Ending,
    ) -> Self {
        Self {
            database: database.clone(),
            clock: clock.clone(),
            within,
            ending,
            known: Mutex::default(),
            read_at: tokio::sync::Mutex::default(),
            is_stale: AtomicBool::new(true),
        }
    }

    /// The answer to each command, with the time of its server; and the earliest of these times.
    pub(super) async fn ask(&self, trip: &Pipeline) -> Result<(Vec<(Value, Timestamp)>, Timestamp), Failure> {
        if trip.is_empty() {
            return Ok((Vec::new(), self.ask_all().await?));
        }
        let commands: Vec<&Cmd> = trip.cmd_iter().collect();
        let mut answers: Vec<Option<(Value, Timestamp)>> = commands.iter().map(|_| None).collect();
        let settled = self.settle(&commands, &mut answers).await;
        // A part of the trip may have been executed.
        let is_first = answers.iter().all(Option::is_none);
        settled.map_err(|failure| if is_first { failure } else { failure.after_others() })?;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let earliest = answers.iter().map(|(_, now)| *now).min().expect("a trip has commands");
        Ok((answers, earliest))
    }

    /// Sends commands, and again those that were redirected, until each has an answer.
    async fn settle(
        &self,
        commands: &[&Cmd],
        answers: &mut [Option<(Value, Timestamp)>],
    ) -> Result<(), Failure> {
        let mut asking: Vec<Option<Host>> = commands.iter().map(|_| None).collect();
        let began = Instant::now();
        let (mut redirected, mut has_failed) = (0, false);
        while redirected <= REDIRECTED_MAX {
            self.read_if_stale().await?;
            let left = (0..commands.len()).filter(|place| answers[*place].is_none());
            let mut is_moving = false;
            for (target, places) in self.targets(commands, &asking, left)? {
                let reply = match self.send(&target, places.iter().map(|place| commands[*place])).await {
                    Ok(reply) => reply,
                    Err(failure) => {
                        self.is_stale.store(true, Ordering::Release);
                        // It was not sent. Another master may have taken over.
                        if failure.has_written_nothing() && !std::mem::replace(&mut has_failed, true) {
                            asking.fill(None);
                            continue;
                        }
                        return Err(failure);
                    }
                };
                for (place, value) in places.into_iter().zip(reply.values) {
                    asking[place] = None;
                    match redirect(&value, &target.host) {
                        None => answers[place] = Some((value, reply.now)),
                        Some(Redirect::Moved(slot, host)) => self.moved(slot, host),
                        Some(Redirect::Ask(host)) => asking[place] = Some(host),
                        Some(Redirect::TryAgain) if began.elapsed() < MOVING_MAX => is_moving = true,
                        Some(Redirect::TryAgain) => answers[place] = Some((value, reply.now)),
                    }
                }
            }
            if answers.iter().all(Option::is_some) {
                return Ok(());
            }
            if is_moving {
                sleep(MOVING_PAUSE).await;
            } else {
                redirected += 1;
            }
        }
        Err(self.refused("a key is sent from one member to the other; see CLUSTER NODES of its members"))
    }

    /// The commands that are left, by where they go, in order.
    fn targets(
        &self,
        commands: &[&Cmd],
        asking: &[Option<Host>],
        left: impl Iterator<Item = usize>,
    ) -> Result<Vec<(Target, Vec<usize>)>, Failure> {
        let mut targets: Vec<(Target, Vec<usize>)> = Vec::new();
        for place in left {
            let key = key_of(commands[place]).ok_or_else(|| Failure::misunderstood(&self.database))?;
            let target = match &asking[place] {
                Some(host) => Target { host: Arc::new(host.clone()), is_asking: true },
                None => Target { host: self.owner(slot_of(key))?, is_asking: false },
            };
            match targets.iter_mut().find(|(known, _)| *known == target) {
                Some((_, places)) => places.push(place),
                None => targets.push((target, vec![place])),
            }
        }
        Ok(targets)
    }

    /// Sends commands to one master, and sees to it that what they show is confirmed where it has to be.
    async fn send<'a>(
        &self,
        target: &Target,
        commands: impl Iterator<Item = &'a Cmd>,
    ) -> Result<Reply, Failure> {
        let mut trip = Pipeline::new();
        for command in commands {
            trip.add_command(command.clone());
        }
        let first = trip.cmd_iter().find_map(key_of).map(slot_of);
        let master = self.master(&target.host);
        let reply = master.ask(&self.database, trip, None, target.is_asking).await?;
        let is_all_elsewhere = reply.values.iter().all(|value| redirect(value, &target.host).is_some());
        if !reply.is_confirmed && !is_all_elsewhere {
            self.confirm(&target.host, first).await.map_err(Failure::after_others)?;
        }
        Ok(reply)
    }

    /// Confirms what a master has shown by a write to another of its slots than this one, which moves.
    async fn confirm(&self, host: &Host, moving: Option<u16>) -> Result<Timestamp, Failure> {
        let master = self.master(host);
        for marker in self.markers(host, moving) {
            let reply = master.ask(&self.database, Pipeline::new(), Some(marker), false).await?;
            if reply.is_confirmed {
                return Ok(reply.now);
            }
        }
        Err(Failure::doubt(
            &self.database,
            "slots are moving, and what was read could not be confirmed by replicas",
        ))
    }

    /// Keys for a write of our own to this master: one of each of its slots that parts of ours are in.
    fn markers(&self, host: &Host, but: Option<u16>) -> Vec<Vec<u8>> {
        let keys = Keys { prefix: self.database.prefix.clone() };
        let known = self.known();
        let owns = |key: &Vec<u8>| {
            let slot = slot_of(key);
            Some(slot) != but
                && known.owners.get(usize::from(slot)).is_some_and(|owner| owner.as_deref() == Some(host))
        };
        // From anywhere on: neighbours of a slot that moves may have moved just before.
        let first = steady().to_le_bytes()[0];
        let marker = |bucket: u8| keys.marker(bucket.wrapping_add(first));
        buckets().map(marker).filter(owns).take(MARKERS_MAX).collect()
    }

    /// Asks every master, and gives the earliest of their times.
    async fn ask_all(&self) -> Result<Timestamp, Failure> {
        let mut earliest = None;
        for (host, master) in self.masters().await? {
            let asked = match self.ending {
                Ending::Wait if self.markers(&host, None).is_empty() => continue,
                Ending::Wait => self.confirm(&host, None).await,
                Ending::Time | Ending::Role => {
                    let asked = master.ask(&self.database, Pipeline::new(), None, false).await;
                    asked.map(|reply| reply.now)
                }
            };
            let now = asked.inspect_err(|_| self.is_stale.store(true, Ordering::Release))?;
            earliest = earliest.into_iter().chain([now]).min();
        }
        earliest.ok_or_else(|| self.refused("no slot has a master; see CLUSTER INFO of its members"))
    }

    /// The clock of the master that has a key: it has told its time.
    pub(super) async fn clock_of(&self, key: &[u8]) -> Result<Arc<Clock>, Failure> {
        self.read_if_stale().await?;
        let host = self.owner(slot_of(key))?;
        let master = self.master(&host);
        if !master.clock.is_told() {
            let marker = marker(Some(key), &self.database.prefix);
            let asked = master.ask(&self.database, Pipeline::new(), Some(marker), false).await;
            asked.inspect_err(|_| self.is_stale.store(true, Ordering::Release))?;
        }
        Ok(master.clock.clone())
    }

    /// Every master that has slots.
    pub(super) async fn masters(&self) -> Result<Vec<(Host, Arc<Master>)>, Failure> {
        self.read_if_stale().await?;
        let mut hosts: Vec<Host> = Vec::new();
        for owner in self.known().owners.iter().flatten() {
            if !hosts.contains(owner) {
                hosts.push(Host::clone(owner));
            }
        }
        Ok(hosts.into_iter().map(|host| (host.clone(), self.master(&host))).collect())
    }

    fn master(&self, host: &Host) -> Arc<Master> {
        let mut known = self.known();
        let new = || {
            let clock = self.clock.of(host);
            Arc::new(Master::new(&self.database, &clock, self.within, self.ending, Some(host)))
        };
        known.masters.entry(host.clone()).or_insert_with(new).clone()
    }

    fn owner(&self, slot: u16) -> Result<Arc<Host>, Failure> {
        let owner = self.known().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.is_stale.store(true, Ordering::Release);
            self.refused(&format!("slot {slot} has no master; see CLUSTER INFO of its members"))
        })
    }

    fn moved(&self, slot: u16, host: Host) {
        if let Some(owner) = self.known().owners.get_mut(usize::from(slot)) {
            *owner = Some(Arc::new(host));
        }
    }

    /// Reads the map, where it was never read or a master could not be reached since.
    async fn read_if_stale(&self) -> Result<(), Failure> {
        if !self.is_stale.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut read_at = self.read_at.lock().await;
        if read_at.is_some_and(|read_at| read_at.elapsed() < READ_EVERY) {
            return Ok(());
        }
        let mut failed = None;
        let members = self.members();
        let within = self.database.connect_within / u32::try_from(members.len()).unwrap_or(1).max(1);
        for host in members {
            match self.read_map(&host, within).await {
                Ok(owners) => {
                    let mut known = self.known();
                    known.masters.retain(|master, _| owners.iter().flatten().any(|owner| **owner == *master));
                    known.owners = owners;
                    known.told_by = Some(host);
                    *read_at = Some(Instant::now());
                    self.is_stale.store(false, Ordering::Release);
                    return Ok(());
                }
                // A single server is none of those that have merely gone.
                Err(failure) if failure.kind == ErrorKind::Misconfigured => return Err(failure),
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.expect("a URL has at least one host").before_sending())
    }

    /// Where the map can be read: first where it was last, for others may be silent; at the hosts of the URL, and at known
    /// masters.
    fn members(&self) -> Vec<Host> {
        let known = self.known();
        let mut members: Vec<Host> = Vec::new();
        for host in known.told_by.iter().chain(&self.database.hosts).chain(known.masters.keys()) {
            if !members.contains(host) {
                members.push(host.clone());
            }
        }
        members
    }

    async fn read_map(&self, host: &Host, within: Duration) -> Result<Vec<Option<Arc<Host>>>, Failure> {
        let database = &self.database;
        let reading = async {
            let mut connection = server::connect(database, host).await?;
            let asked = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(&mut connection).await;
            asked.map_err(|error| match error.to_string() {
                text if text.contains("cluster support disabled") => Failure::refused(
                    ErrorKind::Misconfigured,
                    format!(
                        "Redis at {}: {host} is no member of a Redis Cluster; write {}://",
                        database.shown,
                        database.other_scheme()
                    ),
                ),
                _ => match error.code() {
                    Some("NOPERM" | "NOAUTH") => Failure::refused(
                        ErrorKind::Misconfigured,
                        format!(
                            "Redis at {}: {error}; grant the user what docs/engines.md lists",
                            database.shown
                        ),
                    ),
                    _ => Failure::lost(database, &error),
                },
            })
        };
        let slots =
            timeout(within, reading).await.unwrap_or_else(|_| Err(Failure::silent(database, within)))?;
        read_slots(&slots, host).ok_or_else(|| Failure::misunderstood(database))
    }

    fn refused(&self, what: &str) -> Failure {
        Failure::refused(ErrorKind::Unavailable, format!("Redis at {}: {what}", self.database.shown))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner of each slot, by what `CLUSTER SLOTS` of the member at `asked` answers.
fn read_slots(slots: &Value, asked: &Host) -> Option<Vec<Option<Arc<Host>>>> {
    let Value::Array(ranges) = slots else { return None };
    let mut owners = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else { return None };
        let [name, Value::Int(port), ..] = &master[..] else { return None };
        let name = match name {
            // The member does not know under which address it is reached: as it was reached here.
            Value::Nil => asked.name.clone(),
            Value::BulkString(name) if name.is_empty() => asked.name.clone(),
            Value::BulkString(name) => String::from_utf8(name.clone()).ok()?,
            _ => return None,
        };
        let owner = Arc::new(Host { name, port: u16::try_from(*port).ok()? });
        let range = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
        owners.get_mut(range)?.fill(Some(owner));
    }
    Some(owners)
}

/// Where a command has to be sent again that `asked` has not executed.
fn redirect(value: &Value, asked: &Host) -> Option<Redirect> {
    let error = error_of(value)?;
    if error.code() == "TRYAGAIN" {
        return Some(Redirect::TryAgain);
    }
    if !matches!(error.code(), "MOVED" | "ASK") {
        return None;
    }
    // `3999 127.0.0.1:6381`, or `3999 :6381` for the host that was asked.
    let (slot, address) = error.details()?.split_once(' ')?;
    let (name, port) = address.trim().rsplit_once(':')?;
    let name = if name.is_empty() { &asked.name } else { name };
    let host = Host { name: name.to_owned(), port: port.parse().ok()? };
    let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
    Some(if error.code() == "ASK" { Redirect::Ask(host) } else { Redirect::Moved(slot, host) })
}

/// The first key of a command of ours, where it has one.
pub(super) fn key_of(command: &Cmd) -> Option<&[u8]> {
    let mut words = command.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => &[],
    });
    match words.next()? {
        // A digest and the number of keys come first.
        b"EVALSHA" => words.nth(2),
        b"INFO" | b"CONFIG" => None,
        _ => words.next(),
    }
}

/// The slot of a key: that of what stands between its braces.
fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(crc, |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    /// By `CLUSTER KEYSLOT` of Redis 7.0.
    #[test]
    fn a_key_has_the_slot_that_redis_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3, "the check value of XMODEM");
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}bar"), 12_182);
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % SLOTS, "nothing stands between its braces");
        assert_eq!(slot_of(b"{onlyonce.ff}r{x}"), slot_of(b"{onlyonce.ff}d"));
    }

    #[test]
    fn a_command_is_sent_by_its_first_key() {
        assert_eq!(key_of(cmd("GET").arg("a")), Some(&b"a"[..]));
        assert_eq!(key_of(cmd("EVALSHA").arg("digest").arg(2).arg("a").arg("b").arg("x")), Some(&b"a"[..]));
        assert_eq!(key_of(&cmd("INFO")), None);
    }

    #[test]
    fn owners_are_read_by_slot() {
        let host = |name: &str, port| Value::Array(vec![Value::BulkString(name.into()), Value::Int(port)]);
        let range = |first, last, host| Value::Array(vec![Value::Int(first), Value::Int(last), host]);
        let slots = Value::Array(vec![range(0, 5, host("", 7_000)), range(7, 16_383, host("b", 7_001))]);
        let asked = Host { name: "a".to_owned(), port: 1 };
        let owners = read_slots(&slots, &asked).unwrap();
        let shown = |slot: usize| owners[slot].as_ref().map(ToString::to_string);
        assert_eq!(shown(5).as_deref(), Some("a:7000"), "as it was reached");
        assert_eq!((shown(6), shown(16_383).as_deref()), (None, Some("b:7001")));
        assert!(read_slots(&Value::Array(vec![range(0, 16_384, host("a", 1))]), &asked).is_none());
    }
}
