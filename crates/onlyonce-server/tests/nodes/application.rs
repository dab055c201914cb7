//! An application behind the gateways that completes its requests by SQL, in one transaction with its rows. It stops where the
//! test tells it to, and dies when it is told to: its connections break, to its clients and to the database.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use onlyonce_testkit::engines::postgres::Server;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_postgres::{Client, Config, NoTls};

use crate::client::until;

/// Where an attempt can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Its row and its message are written.
    Rows,
    /// `onlyonce_complete` has returned.
    Completed,
    /// The transaction is committed, and not answered.
    Committed,
}

/// An attempt, by its number, and where it is.
type Place = (u32, Step);

pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    work: Arc<Work>,
    /// None once it was killed. All that it does is done here, and ends with it.
    runtime: Option<Runtime>,
}

struct Work {
    database: Config,
    stops: watch::Sender<BTreeSet<Place>>,
    reached: watch::Sender<BTreeSet<Place>>,
    /// What became of each attempt: "committed", or a SQLSTATE.
    ends: Mutex<BTreeMap<u32, String>>,
}

impl Application {
    /// Its rows are in the table `payment` of this schema, where the functions are, too.
    pub(crate) fn start(server: &Server, schema: &str) -> Self {
        server.sql(&format!("CREATE TABLE {schema}.payment (attempt bigint NOT NULL)"));
        let mut database: Config = server.url("postgres").parse().unwrap();
        database.application_name(format!("app-{schema}")).options(format!("-c search_path={schema}"));
        let (stops, reached) = (watch::Sender::default(), watch::Sender::default());
        let work = Arc::new(Work { database, stops, reached, ends: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = Some(serve(listener, work.clone()));
        Self { address, work, runtime }
    }

    /// The attempt with this number stops here, and at no other step, until it may go on.
    pub(crate) fn stop(&self, attempt: u32, step: Step) {
        self.work.stops.send_modify(|stops| {
            stops.insert((attempt, step));
        });
    }

    pub(crate) fn go_on(&self) {
        self.work.stops.send_modify(BTreeSet::clear);
    }

    /// Until it has stopped there.
    pub(crate) async fn stopped(&self, attempt: u32, step: Step) {
        until(&format!("attempt {attempt} is at {step:?}"), async || {
            self.work.reached.borrow().contains(&(attempt, step))
        })
        .await;
    }

    /// What became of the transaction of an attempt: "committed", or its SQLSTATE.
    pub(crate) async fn end(&self, attempt: u32) -> String {
        let end = || self.work.ends.lock().unwrap().get(&attempt).cloned();
        until(&format!("attempt {attempt} ends"), async || end().is_some()).await;
        end().unwrap()
    }

    /// How many attempts have come as far as their rows.
    pub(crate) fn runs(&self) -> usize {
        self.work.reached.borrow().iter().filter(|(_, step)| *step == Step::Rows).count()
    }

    /// Ends it as `kill -9` does: nothing it was about to do is done.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts it again at its address, and nothing is stopped any more.
    pub(crate) async fn start_again(&mut self) {
        self.go_on();
        let mut listener = None;
        until("its port is free", async || {
            listener = TcpListener::bind(self.address).ok();
            listener.is_some()
        })
        .await;
        self.runtime = listener.map(|listener| serve(listener, self.work.clone()));
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(listener: TcpListener, work: Arc<Work>) -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    listener.set_nonblocking(true).unwrap();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, Router::new().route("/payments", post(answer)).with_state(work)).await
    });
    runtime
}

/// It goes on with what it has begun where its client, the gateway, is gone.
async fn answer(State(work): State<Arc<Work>>, headers: HeaderMap) -> (StatusCode, String) {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (handle, attempt) = (header("onlyonce-token"), header("onlyonce-attempt").parse().unwrap());
    tokio::spawn(async move {
        let done = work.pay(&handle, attempt).await;
        let (status, said, end) = match done {
            Ok(said) => (StatusCode::CREATED, said, "committed".to_owned()),
            Err(error) => {
                let end = error.code().map_or_else(|| "lost".to_owned(), |code| code.code().to_owned());
                (StatusCode::INTERNAL_SERVER_ERROR, end.clone(), end)
            }
        };
        work.ends.lock().unwrap().insert(attempt, end);
        (status, said)
    })
    .await
    .unwrap()
}

impl Work {
    /// The one rule: rows, message and completion in one transaction; commit; then answer.
    async fn pay(&self, handle: &str, attempt: u32) -> Result<String, tokio_postgres::Error> {
        let mut client = self.connect().await?;
        let transaction = client.transaction().await?;
        let said = format!("paid by attempt {attempt}");
        transaction.execute("INSERT INTO payment VALUES ($1)", &[&i64::from(attempt)]).await?;
        transaction.execute("SELECT onlyonce_send('receipts', '{}', handle => $1)", &[&handle]).await?;
        self.at(attempt, Step::Rows).await;
        let complete = r#"SELECT onlyonce_complete($1, 201, '{"content-type": "text/plain"}', $2)"#;
        transaction.execute(complete, &[&handle, &said.as_bytes()]).await?;
        self.at(attempt, Step::Completed).await;
        transaction.commit().await?;
        self.at(attempt, Step::Committed).await;
        Ok(said)
    }

    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.database.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn at(&self, attempt: u32, step: Step) {
        let place = (attempt, step);
        self.reached.send_modify(|reached| {
            reached.insert(place);
        });
        self.stops.subscribe().wait_for(|stops| !stops.contains(&place)).await.unwrap();
    }
}
