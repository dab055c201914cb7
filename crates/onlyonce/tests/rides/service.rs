//! The service as a process, its store, and a hand-written client: no library that could retry on its own.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onlyonce::store::failpoint;
use onlyonce_testkit::engines::postgres::Server;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::SERVES;

/// How long anything may take before the test is over: a bound, never a pause.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a client comes back that is told to.
const TRIES_MAX: usize = 60;

/// Where the services of one test keep rows and records, one after the other.
#[derive(Debug)]
pub(crate) enum Store {
    /// In a file, whose next owner knows that the last one is dead.
    Sqlite(PathBuf),
    /// In a schema. A dead service is only missed when its lease lapses.
    Postgres { url: String, schema: String },
}

impl Store {
    pub(crate) fn new(engine: &str) -> Self {
        if engine == "postgres" {
            let url = Server::shared().fresh_schema();
            let schema = url.split_once("schema=").unwrap().1.to_owned();
            return Self::Postgres { url, schema };
        }
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("onlyonce-rides-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self::Sqlite(folder)
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.join("rides.db").display()),
            Self::Postgres { url, .. } => url.clone(),
        }
    }

    pub(crate) fn rides(&self) -> usize {
        self.number("SELECT count(*) FROM ride")
    }

    pub(crate) fn ride(&self) -> usize {
        self.number("SELECT id FROM ride")
    }

    pub(crate) fn paid(&self) -> usize {
        self.number("SELECT count(*) FROM ride WHERE charge = 'ch_1'")
    }

    pub(crate) fn receipts(&self) -> usize {
        self.number("SELECT count(*) FROM onlyonce_outbox WHERE destination = 'receipts' AND group_key = '7'")
    }

    pub(crate) fn tips(&self) -> usize {
        self.number("SELECT count(*) FROM tip")
    }

    pub(crate) fn tips_told(&self) -> usize {
        self.number("SELECT count(*) FROM onlyonce_outbox WHERE destination = 'tips'")
    }

    pub(crate) fn records(&self) -> usize {
        self.number("SELECT count(*) FROM onlyonce_record")
    }

    fn number(&self, sql: &str) -> usize {
        match self {
            Self::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.join("rides.db")).unwrap();
                connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
            }
            Self::Postgres { schema, .. } => {
                let told = Server::shared().sql(&format!("SET search_path = {schema}; {sql}"));
                told.lines().last().unwrap().trim().parse().unwrap()
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Self::Sqlite(folder) = self {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A living service. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Service {
    address: String,
    process: Child,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) is_replay: bool,
    pub(crate) is_stored: bool,
    pub(crate) body: String,
}

impl Service {
    pub(crate) async fn start(store: &Store, bank: &str, kind: &str, failpoint: Option<&str>) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--listen", "127.0.0.1:0", "--store", &store.url(), "--bank", bank])
            .args(["--effects", kind, "--lease-seconds", "2"])
            .env(SERVES, "1")
            .env_remove(failpoint::VARIABLE)
            .envs(failpoint.map(|name| (failpoint::VARIABLE, name)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("it gets ready").unwrap();
        let ready = ready.expect("it lives until it is ready");
        let address = ready.strip_prefix("ready: rides http://");
        let address = address.unwrap_or_else(|| panic!("it said {ready:?}")).to_owned();
        Self { address, process }
    }

    pub(crate) async fn kill(mut self) {
        self.process.start_kill().unwrap();
        self.died().await;
    }

    /// Waits until it has died by SIGKILL: one that ends in any other way has failed.
    pub(crate) async fn died(mut self) {
        let status = timeout(PATIENCE, self.process.wait()).await.expect("it dies").unwrap();
        assert_eq!(status.signal(), Some(9), "it was not killed but ended with {status}");
    }

    /// Orders a ride; none where the connection broke.
    pub(crate) async fn order(&self, customer: u32) -> Option<Answer> {
        let body = format!(r#"{{"customer":{customer},"origin":"Aachen","target":"Bonn","amount":1200}}"#);
        self.post("/rides", &format!("k-{customer}"), &body).await
    }

    /// Gives a tip; none where the connection broke.
    pub(crate) async fn tip(&self) -> Option<Answer> {
        self.post("/tips", "tip", r#"{"customer":7,"amount":200}"#).await
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Option<Answer> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann\r\nIdempotency-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answered = String::new();
        stream.read_to_string(&mut answered).await.ok()?;
        let (head, body) = answered.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        Some(Answer {
            status: head.split(' ').nth(1)?.parse().ok()?,
            is_replay: head.contains("idempotent-replayed: true"),
            is_stored: !head.contains("idempotency-stored: false"),
            body: body.to_owned(),
        })
    }

    /// As a client does it: the same key, while it is told to come back.
    pub(crate) async fn retry(&self, customer: u32) -> Answer {
        for _ in 0..TRIES_MAX {
            let answer = self.order(customer).await.expect("nothing kills this service");
            let is_to_wait = answer.status == 503 || answer.body.contains("idempotency_key_in_progress");
            if !is_to_wait {
                return answer;
            }
            sleep(Duration::from_millis(500)).await;
        }
        panic!("no answer after {TRIES_MAX} tries")
    }
}
