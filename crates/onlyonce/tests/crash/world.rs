//! One world for every scenario: a store, a ledger, and what its clients know so far.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::failpoints::{Engine, Left};
use crate::ledger::Ledger;
use crate::order::{Answer, Kind, Lost, Order, Wish, retry, send};
use crate::process::{Life, PATIENCE, Site, Started, Victim, start};

/// A pause between two looks at something that has no signal.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// As users have it.
const PAGE_BYTES: u32 = 4096;
/// The smallest there is: then a few megabytes are many pages.
pub(crate) const PAGE_BYTES_MIN: u32 = 512;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) engine: Engine,
    pub(crate) ledger: Arc<Ledger>,
    /// As settings name it.
    store: String,
    /// The page size of the store's file.
    pub(crate) page_bytes: u32,
    folder: Folder,
    orders: u32,
    /// Orders whose client has its answer.
    pub(crate) acknowledged: Vec<(Order, Answer)>,
    /// Orders whose client lost the connection; what is left of them, where the scenario knows.
    pub(crate) doubtful: Vec<(Order, Option<Left>)>,
    /// Orders whose record has expired.
    pub(crate) expired: Vec<Order>,
}

impl World {
    pub(crate) async fn new(kind: Kind) -> Self {
        Self::on(Engine::Sqlite, kind).await
    }

    pub(crate) async fn on(engine: Engine, kind: Kind) -> Self {
        let folder = Folder::new();
        let store = match engine {
            Engine::Sqlite => format!("sqlite:{}", folder.file().display()),
            Engine::Server(server) => server.shared().fresh_store(),
        };
        Self {
            kind,
            engine,
            ledger: Ledger::open().await,
            store,
            page_bytes: PAGE_BYTES,
            folder,
            orders: 0,
            acknowledged: Vec::new(),
            doubtful: Vec::new(),
            expired: Vec::new(),
        }
    }

    /// One whose scenario must fail: nobody wants to look at its files afterwards.
    pub(crate) async fn to_fail(kind: Kind) -> Self {
        eprintln!("a violation is planted, and a panic must follow");
        let mut world = Self::new(kind).await;
        world.folder.is_kept_on_failure = false;
        world
    }

    /// The store's file, where it is in one.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.file()
    }

    /// The store's write-ahead log.
    pub(crate) fn wal(&self) -> PathBuf {
        self.folder.path.join("onlyonce.db-wal")
    }

    pub(crate) async fn start(&self, life: Life) -> Started {
        let site = Site { store: &self.store, page_bytes: self.page_bytes, ledger: self.ledger.address };
        let life = match self.engine {
            Engine::Sqlite => life,
            Engine::Server(_) => life.with_leases_to_be_waited_for(),
        };
        start(&site, life).await
    }

    /// A victim that serves.
    pub(crate) async fn ready(&self, life: Life) -> Victim {
        match self.start(life).await {
            Started::Ready(victim) => victim,
            Started::Died => panic!("the victim died before it was ready: {life:?}"),
        }
    }

    /// An order that nobody has sent before.
    pub(crate) fn order(&mut self, wish: Wish) -> Order {
        self.orders += 1;
        Order { kind: self.kind, key: format!("{}-{}", self.kind.name(), self.orders), wish }
    }

    /// Sends an order whose answer must come: 201 with the ledger's receipt.
    pub(crate) async fn acknowledge(&mut self, victim: &Victim, wish: Wish) {
        let order = self.order(wish);
        let answer = retry(victim.address, &order).await.expect("nothing kills this victim yet");
        assert!(!answer.is_replay(), "{}: a first answer is no replay: {answer}", order.key);
        self.hear(order, answer);
    }

    /// A client has its answer. Where that says that it is not stored, nothing more was promised.
    pub(crate) fn hear(&mut self, order: Order, answer: Answer) {
        self.is_receipt(&order, &answer);
        if answer.is_stored() {
            self.acknowledged.push((order, answer));
        } else {
            self.doubtful.push((order, None));
        }
    }

    /// Sends an order that its process will not live to answer.
    pub(crate) async fn lose(&mut self, victim: &Victim, order: Order, left: Option<Left>) {
        match retry(victim.address, &order).await {
            Err(Lost) => self.doubtful.push((order, left)),
            Ok(answer) => panic!("{}: the failpoint was never reached: {answer}", order.key),
        }
    }

    /// Sends an order that the ledger books and never answers, and kills its process meanwhile.
    pub(crate) async fn kill_while_working(&mut self, victim: Victim) {
        let order = self.order(Wish::Held);
        let (address, request) = (victim.address, order.request());
        let client = tokio::spawn(async move { send(address, request).await });
        self.ledger.called(&order.key).await;
        victim.kill().await;
        assert!(client.await.expect("a client does not panic").is_err(), "nobody answers for a dead process");
        self.doubtful.push((order, Some(Left::Worked)));
    }

    /// Waits until the record of an order is no longer told of.
    pub(crate) async fn expires(&self, victim: &Victim, order: &Order) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let answer = send(victim.address, order.question()).await.expect("nothing kills this victim yet");
            if answer.status == 404 {
                return;
            }
            sleep(LOOK_EVERY).await;
        }
        panic!("{}: the record does not expire", order.key);
    }

    /// An answer of 201 passes on, byte for byte, what the ledger told one of the runs.
    pub(crate) fn is_receipt(&self, order: &Order, answer: &Answer) {
        assert_eq!(answer.status, 201, "{}: {answer}", order.key);
        let text = String::from_utf8_lossy(&answer.body);
        let calls = self.ledger.calls(&order.key);
        let is_known = calls.iter().any(|call| call.receipt == text.trim_end());
        assert!(is_known, "{}: the ledger never said {answer}", order.key);
    }
}

/// A folder of its own for each scenario, gone when it is over.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    is_kept_on_failure: bool,
}

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("onlyonce-crash-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Self { path, is_kept_on_failure: true }
    }

    fn file(&self) -> PathBuf {
        self.path.join("onlyonce.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Where the scenario failed, the file is what there is to look at.
        if std::thread::panicking() && self.is_kept_on_failure {
            eprintln!("the store is kept in {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
