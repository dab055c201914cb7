//! A Redis Cluster for tests: three masters, and a replica of each where a test wants them.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::sleep;
use std::time::Instant;

use super::{LOOK_EVERY, REDIS, STARTS_WITHIN, Server, fresh_prefix, place};
use crate::engines::system;

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// Members talk to each other on a port that is higher by this.
const BUS: u16 = 10_000;
/// Both ports lie below those that the system gives to anybody.
const PORTS: Range<u16> = 12_000..22_768;
/// A member that is silent for so many milliseconds is replaced.
const SETTINGS: [(&str, &str); 2] = [("cluster-enabled", "yes"), ("cluster-node-timeout", "1000")];

/// A cluster. The masters come first, then their replicas in the same order.
#[derive(Debug)]
pub struct Cluster {
    /// Its servers.
    pub members: Vec<Server>,
    /// Whether it is one test's, and ends with it.
    is_own: bool,
}

impl Cluster {
    /// The cluster of this test run: three masters, started by the first test that asks, and gone some moments after the run.
    ///
    /// # Panics
    ///
    /// With the reason, where there is none to be had.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED
            .get_or_init(|| shared().unwrap_or_else(|reason| panic!("no Redis Cluster to test on: {reason}")))
    }

    /// A cluster for one test, gone when it is dropped; with a replica of each master where `has_replicas`.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start(has_replicas: bool) -> Result<Self, String> {
        let count = if has_replicas { 2 * MASTERS } else { MASTERS };
        let name = format!("own-{}", system::fresh_name());
        let mut cluster = launched(&name, count, std::process::id())?;
        cluster.is_own = true;
        Ok(cluster)
    }

    /// The URL of all members, with the usual prefix.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("redis+cluster://{}/", hosts.join(","))
    }

    /// The URL of a prefix that nobody else has.
    pub fn fresh_prefix(&self) -> String {
        format!("{}?prefix={}", self.url(), fresh_prefix())
    }

    /// Makes a cluster of servers that know nothing of each other.
    fn meet(&self) -> Result<(), String> {
        let first = self.members[0].port.to_string();
        for (number, member) in self.members.iter().enumerate() {
            member.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < MASTERS {
                let slots = [number * SLOTS / MASTERS, (number + 1) * SLOTS / MASTERS - 1];
                let [from, to] = slots.map(|slot| slot.to_string());
                member.command(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]);
            }
            if number > 0 {
                member.command(&["CLUSTER", "MEET", "127.0.0.1", &first]);
            }
        }
        let known = format!("cluster_known_nodes:{}", self.members.len());
        self.wait_until(|member| {
            let info = member.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&known)
        })?;
        for (replica, master) in self.members.iter().skip(MASTERS).zip(&self.members) {
            replica.command(&["CLUSTER", "REPLICATE", &master.command(&["CLUSTER", "MYID"])]);
        }
        let has_replica = self.members.len() > MASTERS;
        self.wait_until(|member| {
            let info = member.command(&["INFO", "replication"]);
            info.contains("master_link_status:up")
                || (info.contains("role:master") && info.contains("connected_slaves:1") == has_replica)
        })
    }

    fn wait_until(&self, holds: impl Fn(&Server) -> bool) -> Result<(), String> {
        let began = Instant::now();
        for member in &self.members {
            while !holds(member) {
                if began.elapsed() > STARTS_WITHIN {
                    return Err(format!("the cluster does not come together: {}", member.log()));
                }
                sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        for member in &self.members {
            member.kill();
            let _ = fs::remove_dir_all(&member.folder);
        }
    }
}

/// Starts servers, each in a folder that begins with this name, and makes a cluster of them.
fn launched(name: &str, count: usize, watched: u32) -> Result<Cluster, String> {
    let place = place()?;
    let start = |number: usize| {
        let folder = place.join(format!("{name}-{number}"));
        Server::launched(PathBuf::from(REDIS), folder, &SETTINGS, free_port)?.watched_by(watched)
    };
    let members = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    let cluster = Cluster { members, is_own: false };
    cluster.meet()?;
    Ok(cluster)
}

/// The cluster of this run, or a new one: the first comer starts it while the others wait at the lock.
fn shared() -> Result<Cluster, String> {
    let (run, watched) = system::run();
    let place = place()?;
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    let lock = File::create(place.join(format!("{run}-cluster-0.lock"))).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let name = format!("{run}-cluster");
    let noted = place.join(format!("{name}-0")).join("ports");
    if let Ok(ports) = fs::read_to_string(&noted) {
        let ports = ports.split_whitespace().enumerate();
        let member = |(number, port): (usize, &str)| {
            let port = port.parse().map_err(|_| format!("{} holds no ports", noted.display()))?;
            let folder = place.join(format!("{name}-{number}"));
            let program = PathBuf::from(REDIS);
            Ok::<_, String>(Server { program, folder, port, settings: Vec::new(), process: Mutex::default() })
        };
        return Ok(Cluster { members: ports.map(member).collect::<Result<_, _>>()?, is_own: false });
    }
    let cluster = launched(&name, MASTERS, watched)?;
    let ports: Vec<_> = cluster.members.iter().map(|member| member.port.to_string()).collect();
    fs::write(noted, ports.join(" ")).map_err(failed)?;
    Ok(cluster)
}

/// A port that is free, and whose port for the other members is.
fn free_port() -> Result<u16, String> {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Other processes of this run begin elsewhere.
    let begin = u16::try_from(std::process::id() % 1_000).unwrap_or(0) * 10;
    for _ in 0..count {
        let port = PORTS.start + (begin + TRIED.fetch_add(1, Ordering::Relaxed) % count) % count;
        if [port, port + BUS].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(format!("no port from {} to {} is free", PORTS.start, PORTS.end))
}
