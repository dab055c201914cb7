//! A standby that confirms every commit, and takes over.

use std::fs;
use std::thread::sleep;
use std::time::Instant;

use super::{LOOK_EVERY, Owned, STARTS_WITHIN, Server, USER, as_user, give_away, own_folder};

/// What the primary knows its standby by.
const NAME: &str = "standby";

impl Server {
    /// A standby of this server. From now on a commit is only answered once it is on the standby's disk too.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start_standby(&self) -> Result<Owned, String> {
        let standby = Self::in_folder(own_folder()?)?;
        let data = standby.folder.join("data");
        fs::create_dir_all(&standby.folder).map_err(|error| format!("{}: {error}", data.display()))?;
        give_away(&standby.folder, USER)?;
        let port = self.port.to_string();
        let mut copy = as_user(USER, &self.binaries.join("pg_basebackup"));
        copy.args(["--host", "127.0.0.1", "--port", &port, "--username", USER]);
        copy.args(["--wal-method=stream", "-c", "fast", "--no-sync", "--write-recovery-conf", "--pgdata"]);
        let output = copy.arg(&data).current_dir("/").output();
        let output = output.map_err(|error| format!("pg_basebackup: {error}"))?;
        if !output.status.success() {
            return Err(format!("pg_basebackup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let primary = format!("host=127.0.0.1 port={port} user={USER} application_name={NAME}");
        let standby = standby.launched(&[("primary_conninfo", &primary)])?;
        let standby = Owned(standby.watched_by(std::process::id())?);
        self.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{NAME}'"));
        self.sql("SELECT pg_reload_conf()");
        let began = Instant::now();
        while began.elapsed() < STARTS_WITHIN {
            if self.sql("SELECT sync_state FROM pg_stat_replication") == "sync" {
                return Ok(standby);
            }
            sleep(LOOK_EVERY);
        }
        Err(format!("the standby does not follow: {}", standby.log()))
    }

    /// The standby takes over: from now on it is a server that takes writes, and waits for no other.
    ///
    /// # Panics
    ///
    /// Where it does not.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t", "{}", self.log());
        self.sql("ALTER SYSTEM RESET synchronous_standby_names");
        self.sql("SELECT pg_reload_conf()");
    }
}
