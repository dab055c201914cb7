//! A store without a gateway: what the admin API would do, done here by the same engine.
//!
//! Probes belong to a gateway's settings, so none is known here: nothing is asked.

use std::sync::Arc;

use onlyonce::machine::Refused;
use onlyonce::operate::{Forgotten, Judged, Operator, Refusal, entry_id};
use onlyonce::record::{Handle, Id, Seen, StateName, StateSet, Verdict};
use onlyonce::scope::Scope;
use onlyonce::store::{Cursor, Query, Search, Store, audit};
use onlyonce::time::Timestamp;
use onlyonce::{Engine, Force, key::Key, machine, operate};
use serde_json::{Value, json};

use super::{Failure, Filter, LogFilter, Name, Order, Saying, Stored, digest};
use crate::cli::Word;
use crate::{store, view};

/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 1_000;

/// A store, open.
pub(crate) struct Local {
    engine: Arc<Engine>,
}

impl Local {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { engine: Engine::new(store) }
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        let store = self.engine.store().clone();
        self.engine.idle().await;
        drop(self.engine);
        Ok(store::close(store).await?)
    }

    pub(super) async fn page(
        &self,
        filter: &Filter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        let page = self.engine.list(query(filter, cursor, limit)?).await?;
        let readable = page.records.iter().map(|(_, seen)| view::item(&seen.record));
        let items: Vec<_> = readable.chain(page.unreadable.iter().map(view::unreadable_item)).collect();
        Ok(json!({ "items": items, "next": page.next.map(shown) }))
    }

    pub(super) async fn log_page(
        &self,
        filter: &LogFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        let query = audit::Query {
            who: text(&filter.who),
            action: text(&filter.action),
            scope: filter.scope.as_deref().map(digest).transpose()?,
            key: text(&filter.key),
            from: filter.after.map(|after| Timestamp::from_micros(after.as_microsecond())),
            until: None,
            after: cursor.map(read).transpose()?,
            limit,
        };
        let page = self.engine.read_audit(query).await?;
        let items: Vec<_> =
            page.entries.iter().map(|written| view::audit(&written.entry, Some(written.at))).collect();
        Ok(json!({ "items": items, "next": page.next.map(shown) }))
    }

    pub(super) async fn show(&self, name: &Name) -> Result<Value, Failure> {
        match self.engine.find(id_of(name)?).await {
            Ok(seen) => Ok(view::record(&self.engine, &seen.ok_or_else(|| absent(name))?).into()),
            Err(error) => match error.unreadable() {
                Some(unreadable) => Ok(view::unreadable(&self.engine, unreadable).into()),
                None => Err(error.into()),
            },
        }
    }

    pub(super) async fn response(&self, name: &Name, claims: Option<&str>) -> Result<Stored, Failure> {
        let seen = self.find(name).await?;
        let record = &seen.record;
        let Some((response, _)) = machine::stored(record) else {
            let state = record.state.name();
            return Err(Failure::not_found(format!("the record is {state} and has no stored answer")));
        };
        let operator = operator(claims);
        // Written first: nobody looks without an entry.
        let entry = audit::Entry {
            id: entry_id(),
            who: operator.who,
            role: operator.role,
            claims: operator.claims,
            via: operator.via,
            action: "read_response".into(),
            scope: Some(*record.scope.digest()),
            scope_label: record.scope.label().map(Arc::from),
            key: Some(record.key.as_str().into()),
            record: Some(Id::of(&record.scope, &record.key)),
            after: Some(
                json!({ "status": response.status, "bytes": response.body.len() }).to_string().into(),
            ),
            result: "applied".into(),
            ..audit::Entry::default()
        };
        self.engine.write_audit(entry).await?;
        Ok(Stored { status: response.status, body: response.body.clone() })
    }

    pub(super) async fn verdict(
        &self,
        name: &Name,
        saying: &Saying,
        order: &Order,
    ) -> Result<Value, Failure> {
        let id = id_of(name)?;
        if saying.attempt.is_some_and(|attempt| attempt.id != id) {
            return Err(Failure::arguments(
                "--attempt is the token of another record; keys show prints the right one",
            ));
        }
        let verdict = match saying.word {
            Word::Happened => Verdict::Happened(saying.response.clone().map(Arc::new)),
            Word::DidNotHappen => Verdict::DidNotHappen { never_will: saying.never_will },
            Word::Unknown => Verdict::StillUnknown,
        };
        let said =
            operate::Saying { verdict, token: saying.attempt.map(|attempt| attempt.token), ask: false };
        let order = local_order(order)?;
        match self.engine.verdict(id, said, &order).await? {
            Judged::Applied(applied) => Ok(view::applied(&self.engine, "applied", &applied, &order)),
            Judged::Noted(applied) => Ok(view::applied(&self.engine, "noted", &applied, &order)),
            Judged::Refused(refusal) => Err(refused(name, &refusal)),
        }
    }

    pub(super) async fn forget(&self, name: &Name, order: &Order) -> Result<Value, Failure> {
        let order = local_order(order)?;
        match self.engine.forget(id_of(name)?, &order).await? {
            Forgotten::Done(applied) => Ok(view::forgotten(&applied, &order)),
            Forgotten::Refused(refusal) => Err(refused(name, &refusal)),
        }
    }

    pub(super) async fn purge(&self, scope: &str, order: &Order) -> Result<Value, Failure> {
        let order = local_order(order)?;
        Ok(view::purged(&self.engine.purge(digest(scope)?, &order).await?, &order))
    }

    async fn find(&self, name: &Name) -> Result<Seen, Failure> {
        self.engine.find(id_of(name)?).await?.ok_or_else(|| absent(name))
    }
}

fn local_order(order: &Order) -> Result<operate::Order, Failure> {
    let reason = order.reason.trim();
    if reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX {
        let detail = format!("--reason must have 1 to {REASON_CHARS_MAX} characters");
        return Err(Failure::new("reason_missing", detail).with_status(400));
    }
    Ok(operate::Order {
        operator: operator(order.claims.as_deref()),
        reason: reason.into(),
        force: if order.force { Force::Yes } else { Force::No },
        expected: None,
        dry_run: order.dry_run,
    })
}

/// Whoever can open the store may do everything.
fn operator(claims: Option<&str>) -> Operator {
    Operator {
        who: "local".into(),
        role: "operate".into(),
        claims: claims.map(Arc::from),
        from: None,
        via: "store".into(),
    }
}

fn query(filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Query, Failure> {
    let state = filter.state.as_deref().and_then(StateName::named);
    Ok(Query {
        states: state.map_or(StateSet::ALL, |state| StateSet::of(&[state])),
        scope: filter.scope.as_deref().map(digest).transpose()?,
        route: filter.route.as_deref().map(Arc::from),
        dead_letter: filter.dead,
        search: filter.query.as_deref().map(search),
        order: view::order(filter.state.as_deref(), filter.dead),
        after: cursor.map(read).transpose()?,
        ..Query::all(limit)
    })
}

/// A whole token is a search for its record.
fn search(text: &str) -> Search {
    match text.parse::<Handle>() {
        Ok(handle) => Search::new(handle.id.to_string()),
        Err(_) => Search::new(text),
    }
}

/// A cursor as text.
fn shown(Cursor(bytes): Cursor) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A cursor that [`shown`] made.
fn read(text: &str) -> Result<Cursor, Failure> {
    let byte = |place: usize| u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len() / 2).map(byte).collect();
    bytes
        .map(|bytes| Cursor(bytes.into()))
        .ok_or_else(|| Failure::arguments("the cursor does not belong to this listing"))
}

fn id_of(name: &Name) -> Result<Id, Failure> {
    Ok(Id::of(&Scope::stored(digest(&name.scope)?, None), &Key::stored(&name.key)))
}

fn absent(name: &Name) -> Failure {
    Failure::not_found(format!(
        "there is no record of key \"{}\" in scope {}; it may have expired or been forgotten",
        name.key, name.scope
    ))
}

/// What the admin API says of a refused order.
fn refused(name: &Name, refusal: &Refusal) -> Failure {
    let (seen, why) = match refusal {
        Refusal::Absent => return absent(name),
        Refusal::Changed(_) => {
            return Failure::new(refusal.code(), "the record has changed meanwhile; show it again")
                .with_status(412);
        }
        Refusal::Refused(why, seen) => (seen, why),
    };
    let facts = machine::facts(&seen.record);
    let moment = |at: Option<Timestamp>| at.map(view::moment);
    let failure = |detail: String| Failure::new(refusal.code(), detail).with_status(409);
    match why {
        Refused::StillRunning => {
            let until = moment(facts.lapses_at).unwrap_or_default();
            failure(format!(
                "attempt {} is still running, and presumed alive until {until}; wait until then, or use --force",
                seen.record.attempt
            ))
            .with("lapses_at", moment(facts.lapses_at))
            .with("deadline_at", moment(facts.deadline_at))
        }
        Refused::TooEarly(earliest) => failure(format!(
            "the work may still happen, so did-not-happen is allowed from {} on; wait until then, add --final if it never \
             will, or use --force",
            view::moment(*earliest)
        ))
        .with("earliest", view::moment(*earliest)),
        Refused::Settled => {
            let state = seen.record.state.name();
            let by = facts.by.map(|by| by.as_str());
            failure(format!("the record is {state}, so there is nothing to settle; to run the work again, forget the key"))
                .with("state", state.as_str())
                .with("by", by)
        }
        Refused::Unknown => failure(
            "the work may have been done, fully or in part, and a retry would run it again; give the verdict happened or \
             did-not-happen, or use --force"
                .to_owned(),
        ),
        Refused::NothingToAsk => failure(
            "there is no probe here; use --admin to have the gateway call its probe, or give the verdict happened or did-not-happen"
                .to_owned(),
        ),
    }
}
