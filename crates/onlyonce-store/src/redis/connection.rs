//! How the engine reaches its store: one master, or the masters of a cluster.
//!
//! Commands of one caller are sent together, a *trip*, and each server executes its own in order; those of others may come
//! between them.

#![allow(clippy::wildcard_enum_match_arm, reason = "any other kind of answer is an error")]

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::time::Timestamp;
use redis::{Pipeline, Value};

use super::clock::Clock;
use super::cluster::Cluster;
use super::failure::Failure;
use super::master::{Ending, Master};
use super::url::Database;

/// The way to the store; see the module's documentation. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

struct Shared {
    database: Arc<Database>,
    way: Way,
}

enum Way {
    Master(Arc<Master>),
    Cluster(Cluster),
}

/// What was answered to a trip.
pub(super) struct Answers {
    database: Arc<Database>,
    values: std::vec::IntoIter<(Value, Timestamp)>,
    /// The store's now. In a cluster: by the clock of the server whose answer was read last.
    pub(super) now: Timestamp,
}

impl Link {
    /// For reads, and for writes that nobody is told of.
    pub(super) fn new(database: &Arc<Database>, clock: &Arc<Clock>, within: Duration) -> Self {
        Self::ending(database, clock, within, Ending::Role)
    }

    pub(super) fn ending(
        database: &Arc<Database>,
        clock: &Arc<Clock>,
        within: Duration,
        ending: Ending,
    ) -> Self {
        let way = if database.is_cluster {
            Way::Cluster(Cluster::new(database, clock, within, ending))
        } else {
            Way::Master(Arc::new(Master::new(database, clock, within, ending, None)))
        };
        Self(Arc::new(Shared { database: database.clone(), way }))
    }

    pub(super) fn database(&self) -> &Arc<Database> {
        &self.0.database
    }

    /// Sends commands together. Without commands, it asks every master for the time, and gives the earliest.
    pub(super) async fn ask(&self, trip: Pipeline) -> Result<Answers, Failure> {
        let database = &self.0.database;
        let (values, now) = match &self.0.way {
            Way::Cluster(cluster) => cluster.ask(&trip).await?,
            Way::Master(master) => {
                let reply = master.ask(database, trip, None, false).await?;
                let now = reply.now;
                (reply.values.into_iter().map(|value| (value, now)).collect(), now)
            }
        };
        Ok(Answers { database: database.clone(), values: values.into_iter(), now })
    }

    /// The stamp of a write of this key that is about to be sent; `floor` is the stamp that it must not be before.
    pub(super) async fn stamp(&self, key: &[u8], floor: Timestamp) -> Result<Timestamp, Failure> {
        match &self.0.way {
            Way::Master(master) => {
                if !master.clock.is_told() {
                    self.ask(Pipeline::new()).await?;
                }
                Ok(master.clock.stamp(floor))
            }
            Way::Cluster(cluster) => Ok(cluster.clock_of(key).await?.stamp(floor)),
        }
    }

    /// A way to each master, with the name of its host where there may be several.
    pub(super) async fn masters(&self) -> Result<Vec<(Option<String>, Self)>, Failure> {
        match &self.0.way {
            Way::Master(_) => Ok(vec![(None, self.clone())]),
            Way::Cluster(cluster) => {
                let link = |master| {
                    Self(Arc::new(Shared { database: self.0.database.clone(), way: Way::Master(master) }))
                };
                let masters = cluster.masters().await?;
                Ok(masters.into_iter().map(|(host, master)| (Some(host.to_string()), link(master))).collect())
            }
        }
    }
}

impl Answers {
    /// The answer to the next command.
    pub(super) fn value(&mut self) -> Result<Value, Failure> {
        let (value, now) = self.values.next().ok_or_else(|| self.misunderstood())?;
        self.now = now;
        match value {
            Value::ServerError(error) => Err(Failure::answered(&self.database, &error)),
            value => Ok(value),
        }
    }

    /// A value of bytes, where there is one.
    pub(super) fn bytes(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            _ => Err(self.misunderstood()),
        }
    }

    pub(super) fn integer(&mut self) -> Result<i64, Failure> {
        match self.value()? {
            Value::Int(integer) => Ok(integer),
            _ => Err(self.misunderstood()),
        }
    }

    /// The answer of a script with several keys; none where some of them have moved to another server and some not yet.
    pub(super) fn integer_unless_moving(&mut self) -> Result<Option<i64>, Failure> {
        if matches!(self.values.as_slice().first(), Some((Value::ServerError(error), _)) if error.code() == "TRYAGAIN")
        {
            self.values.next();
            return Ok(None);
        }
        self.integer().map(Some)
    }

    pub(super) fn array(&mut self) -> Result<Vec<Value>, Failure> {
        match self.value()? {
            Value::Array(values) => Ok(values),
            _ => Err(self.misunderstood()),
        }
    }

    /// An array of byte strings.
    pub(super) fn strings(&mut self) -> Result<Vec<Vec<u8>>, Failure> {
        let values = self.array()?;
        let string = |value| match value {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(self.misunderstood()),
        };
        values.into_iter().map(string).collect()
    }

    /// The answers to all commands that are left are none of an error.
    pub(super) fn finish(mut self) -> Result<Timestamp, Failure> {
        while !self.values.as_slice().is_empty() {
            self.value()?;
        }
        Ok(self.now)
    }

    pub(super) fn misunderstood(&self) -> Failure {
        Failure::misunderstood(&self.database)
    }
}
