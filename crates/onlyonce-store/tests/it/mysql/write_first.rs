//! The procedures that an application calls in its own transaction: the cases of every server, and what is MySQL's alone.

mod roles;
mod sessions;

use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use onlyonce_store::Store as _;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_testkit::engines::mariadb::Server;
use tokio::sync::Mutex;

use crate::write_first::{self, Answer, Application, Refused, Sent};

write_first::all_cases!(App);

type World = write_first::World<App>;

/// A connection as an application has it.
struct App(Mutex<Conn>);

impl Application for App {
    const NUL: &str = "22023";
    const DUPLICATE: &str = "23000";
    const KEY: &str = "`key`";
    const DUE_IN_SECONDS: &str =
        "SELECT max(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), due_at)) FROM onlyonce_messages";
    const READ_COMMITTED: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

    async fn world() -> World {
        let server = Server::shared();
        let place = server.fresh_database();
        let store = Mysql::open(&server.url(&place), Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        let app = Self::connect(&place).await;
        app.sql("CREATE TABLE payment (amount INT)").await.unwrap();
        World { store: Arc::new(store), place, app }
    }

    async fn connect(place: &str) -> Self {
        Self::open(&Server::shared().url(place)).await
    }

    async fn sql(&self, sql: &str) -> Result<(), Refused> {
        self.0.lock().await.query_drop(sql).await.map_err(refused)
    }

    async fn number(&self, sql: &str) -> i64 {
        self.0.lock().await.query_first(sql).await.unwrap().unwrap()
    }

    fn bytes(bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("X'{digits}'")
    }

    async fn hold(&self, handle: Option<&str>) -> Result<(), Refused> {
        self.0.lock().await.exec_drop("CALL onlyonce_hold(?)", (handle,)).await.map_err(refused)
    }

    async fn complete(&self, handle: Option<&str>, answer: &Answer) -> Result<(), Refused> {
        const SQL: &str = "CALL onlyonce_complete(?, ?, ?, ?, ? * 0.000001)";
        let Answer { status, headers, body, retention } = answer;
        self.0.lock().await.exec_drop(SQL, (handle, status, headers, body, retention)).await.map_err(refused)
    }

    async fn send(&self, sent: &Sent) -> Result<String, Refused> {
        const SQL: &str = "CALL onlyonce_send(?, ?, ?, ?, ? * 0.000001, ?, ?)";
        let Sent { destination, payload, key, group_key, delay, content_type, handle } = sent;
        let values = (destination, payload, key, group_key, delay, content_type, handle);
        let key: Option<String> = self.0.lock().await.exec_first(SQL, values).await.map_err(refused)?;
        Ok(key.expect("the key comes back as a row"))
    }

    async fn wait_shortly(&self) -> &'static str {
        self.sql("SET SESSION innodb_lock_wait_timeout = 0").await.unwrap();
        "HY000"
    }

    fn waiting(place: &str) -> String {
        Server::shared().sql(
            "",
            &format!(
                "SELECT count(*) FROM information_schema.innodb_trx AS trx
                     JOIN information_schema.processlist AS session ON session.id = trx.trx_mysql_thread_id
                 WHERE trx.trx_state = 'LOCK WAIT' AND session.db = '{place}'"
            ),
        )
    }
}

impl App {
    async fn open(url: &str) -> Self {
        Self(Mutex::new(Conn::new(Opts::from_url(url).unwrap()).await.unwrap()))
    }

    /// The one text that a statement returns.
    async fn text(&self, sql: &str) -> String {
        self.0.lock().await.query_first(sql).await.unwrap().unwrap()
    }
}

fn refused(error: Error) -> Refused {
    let whole = format!("{error:?}");
    let Error::Server(error) = error else { panic!("{whole}") };
    Refused { state: error.state, message: error.message, whole }
}
