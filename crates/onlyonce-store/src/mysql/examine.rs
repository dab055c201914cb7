//! Findings about a server's settings, and refusal of those that break a promise.

use mysql_async::Row;

use super::failure::Failure;
use super::pool::Pool;
use super::row::column;
use super::url::Database;
use crate::seal::Keyring;
use crate::{Error, ErrorKind, Finding, KeyUse, Level, sql};

/// Settings that the promises depend on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    flush_log_at_trx_commit: i64,
    has_binlog: bool,
    binlog_format: String,
    sync_binlog: i64,
    max_allowed_packet: i64,
    /// How many nodes its Galera cluster has; none where it is in no cluster.
    galera: Option<String>,
    /// Whether a commit is to wait for a replica, and whether it does; none where it is not to.
    waits_for_replica: Option<bool>,
    /// How many replicas are connected.
    replicas: u32,
}

/// An answer of the usual size, twice, and some room: a smaller packet would refuse records that every other store takes.
const PACKET_BYTES_MIN: i64 = 4 << 20;

impl Settings {
    pub(super) async fn read(pool: &Pool) -> Result<Self, Error> {
        const SQL: &str = "
            SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@binlog_format, @@sync_binlog, @@max_allowed_packet";
        let rows = pool.query(SQL, Vec::new()).await?;
        let row = super::only(&rows)?;
        // Each server knows some of them.
        let named = pool.query(NAMED_VARIABLES, Vec::new()).await?;
        let states = pool.query(NAMED_STATES, Vec::new()).await?;
        let is_on = |rows: &[Row], names: &[&str]| Ok::<_, Error>(told(rows, names)? == Some("ON"));
        let is_galera = is_on(&named, &["wsrep_on"])?;
        let size = told(&states, &["wsrep_cluster_size"])?.unwrap_or("?").to_owned();
        let is_to_wait = is_on(&named, &["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"])?;
        let waits = is_on(&states, &["Rpl_semi_sync_master_status", "Rpl_semi_sync_source_status"])?;
        let replicas = told(&states, &["Slaves_connected"])?.and_then(|count| count.parse().ok());
        Ok(Self {
            flush_log_at_trx_commit: column(row, 0)?,
            has_binlog: column(row, 1)?,
            binlog_format: column::<&str>(row, 2)?.to_owned(),
            sync_binlog: column(row, 3)?,
            max_allowed_packet: column(row, 4)?,
            galera: is_galera.then_some(size),
            waits_for_replica: is_to_wait.then_some(waits),
            replicas: replicas.unwrap_or(0),
        })
    }

    /// Refuses what no write would survive.
    pub(super) fn refuse(&self, database: &Database) -> Result<(), Failure> {
        match self.findings().into_iter().find(|finding| finding.level == Level::Error) {
            None => Ok(()),
            Some(Finding { says, remedy, .. }) => {
                let message = format!("MySQL at {}: {says}; {remedy}", database.shown);
                Err(Failure::refused(ErrorKind::Misconfigured, message))
            }
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |level, code, says: String, remedy: &str| {
            findings.push(Finding { level, code, says, remedy: remedy.to_owned() });
        };
        if self.has_binlog && self.binlog_format == "STATEMENT" {
            add(
                Level::Error,
                "mysql.binlog_format",
                "the server logs by statement (binlog_format = STATEMENT): it refuses every write of ours, which are made at \
                 READ COMMITTED"
                    .to_owned(),
                "set binlog_format = ROW on the server, and restart it",
            );
        }
        if self.max_allowed_packet < PACKET_BYTES_MIN {
            add(
                Level::Error,
                "mysql.max_allowed_packet",
                format!(
                    "max_allowed_packet is {}: an answer of the usual size cannot be stored",
                    self.max_allowed_packet
                ),
                "set max_allowed_packet = 16M on the server, or twice the largest answer where that is more",
            );
        }
        if self.flush_log_at_trx_commit != 1 {
            add(
                Level::Warning,
                "mysql.innodb_flush_log_at_trx_commit",
                format!(
                    "the server runs with innodb_flush_log_at_trx_commit = {}: a crash of its machine loses answers that were \
                     acknowledged",
                    self.flush_log_at_trx_commit
                ),
                "set innodb_flush_log_at_trx_commit = 1 on the server",
            );
        }
        if self.has_binlog && self.sync_binlog != 1 {
            add(
                Level::Warning,
                "mysql.sync_binlog",
                format!(
                    "the server has a binary log and runs with sync_binlog = {}: a crash of its machine loses the log's end, and \
                     recovery rolls back what is not in it, although it was acknowledged",
                    self.sync_binlog
                ),
                "set sync_binlog = 1 on the server",
            );
        }
        if self.waits_for_replica == Some(false) {
            add(
                Level::Warning,
                "mysql.semi_sync",
                "semi-synchronous replication is enabled and off: no replica confirms in time, and commits no longer wait for \
                 one, so a failover loses answers that were acknowledged"
                    .to_owned(),
                "see why replicas do not confirm within rpl_semi_sync_master_timeout",
            );
        }
        if let Some(size) = &self.galera {
            add(
                Level::Note,
                "mysql.galera",
                format!(
                    "the server is a node of a Galera cluster of {size}; what was answered is on every node of it"
                ),
                "list all of its nodes in the URL",
            );
        }
        if self.replicas > 0 && self.waits_for_replica.is_none() {
            add(
                Level::Note,
                "mysql.asynchronous_replicas",
                format!(
                    "{} asynchronous replicas are connected: a failover to one loses what it has not received",
                    self.replicas
                ),
                "enable semi-synchronous replication with AFTER_SYNC where that must not happen",
            );
        }
        findings
    }
}

const NAMED_VARIABLES: &str = "
    SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')";
const NAMED_STATES: &str = "
    SHOW GLOBAL STATUS WHERE Variable_name IN
        ('wsrep_cluster_size', 'Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status', 'Slaves_connected')";

/// The value of the first of these that a server knows.
fn told<'a>(rows: &'a [Row], names: &[&str]) -> Result<Option<&'a str>, Error> {
    for row in rows {
        if names.iter().any(|name| column::<&str>(row, 0).is_ok_and(|told| told.eq_ignore_ascii_case(name))) {
            return column(row, 1).map(Some);
        }
    }
    Ok(None)
}

/// How many rows each key is needed for.
pub(super) async fn keys_in_use(pool: &Pool, keyring: Option<&Keyring>) -> Result<Vec<KeyUse>, Error> {
    let rows = pool.query(&sql::KEYS_IN_USE.replace("{schema}.", ""), Vec::new()).await?;
    let used = |row: &Row| Ok(sql::key_use(column(row, 0)?, column(row, 1)?, keyring));
    let used = rows.iter().map(used).collect::<Result<Vec<_>, Error>>()?;
    Ok(used.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(settings: &Settings) -> Vec<&'static str> {
        settings.findings().iter().map(|finding| finding.code).collect()
    }

    const SAFE: Settings = Settings {
        flush_log_at_trx_commit: 1,
        has_binlog: true,
        binlog_format: String::new(),
        sync_binlog: 1,
        max_allowed_packet: 16 << 20,
        galera: None,
        waits_for_replica: None,
        replicas: 0,
    };

    #[test]
    fn settings_that_lose_writes_are_found() {
        assert_eq!(codes(&SAFE), Vec::<&str>::new());
        let relaxed = Settings { flush_log_at_trx_commit: 2, sync_binlog: 0, ..SAFE };
        assert_eq!(codes(&relaxed), ["mysql.innodb_flush_log_at_trx_commit", "mysql.sync_binlog"]);
        let without_binlog = Settings { has_binlog: false, binlog_format: "STATEMENT".to_owned(), ..relaxed };
        assert_eq!(codes(&without_binlog), ["mysql.innodb_flush_log_at_trx_commit"]);
    }

    /// E07: what a failover does is told, and is no reason to refuse.
    #[test]
    fn what_replicas_and_clusters_promise_is_noted() {
        let galera = Settings { galera: Some("3".to_owned()), ..SAFE };
        assert_eq!(codes(&galera), ["mysql.galera"]);
        let asynchronous = Settings { replicas: 2, ..SAFE };
        assert_eq!(codes(&asynchronous), ["mysql.asynchronous_replicas"]);
        let waits = Settings { replicas: 2, waits_for_replica: Some(true), ..SAFE };
        assert_eq!(codes(&waits), Vec::<&str>::new());
        let degraded = Settings { waits_for_replica: Some(false), ..waits };
        assert_eq!(codes(&degraded), ["mysql.semi_sync"]);
        let notes = [&galera, &asynchronous].map(|settings| settings.findings()[0].level);
        assert_eq!(notes, [Level::Note, Level::Note]);
    }

    #[test]
    fn settings_under_which_no_write_succeeds_are_refused_by_name() {
        let database = Database::parse("mysql://ann:s3cret@localhost/pay").unwrap();
        let by_statement = Settings { binlog_format: "STATEMENT".to_owned(), ..SAFE };
        let small = Settings { max_allowed_packet: 1 << 20, ..SAFE };
        for (settings, told) in
            [(by_statement, "set binlog_format = ROW"), (small, "max_allowed_packet is 1048576")]
        {
            let message = settings.refuse(&database).unwrap_err().to_string();
            assert!(message.contains(told) && !message.contains("s3cret"), "{message}");
        }
        assert!(SAFE.refuse(&database).is_ok());
    }
}
