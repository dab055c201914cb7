//! Looking at records: lists, one record, its stored answer.

use std::time::{Duration, SystemTime};

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_SECURITY_POLICY, ETAG};
use http::{HeaderName, HeaderValue, StatusCode};
use onlyonce::machine;
use onlyonce::record::{Handle, Record, Revision, Seen, StateName, StateSet};
use onlyonce::store::{Order, Query, Search, Unreadable};
use onlyonce::time::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::audit;
use super::call::Call;
use super::cursor::List;
use super::parameter::Fault;
use super::refusal::{Code, Refusal};
use crate::view;

/// How long a page is filled: a filter that few records pass makes short pages, and each has a next.
const FILL_WITHIN: Duration = Duration::from_millis(40);
/// A stored answer may be a page with scripts, which would run as the admin page's own.
pub(super) const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

/// `GET /v1/keys`
pub(super) async fn list(mut call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let filter = Filter::of(&call);
    let list = list_of(&call).await?;
    let mut query = filter.query(call.query.limit());
    query.after = opened(&mut call, &list)?;
    if let Some(handle) = call.query.text("q").and_then(|text| text.parse::<Handle>().ok()) {
        if !filter.expired {
            let listed = match call.admin.engine.find(handle.id).await {
                Ok(seen) => seen.map(Listed::Readable),
                Err(error) => Some(Listed::Unreadable(error.unreadable().cloned().ok_or(error)?)),
            };
            let found: Vec<_> = listed.into_iter().filter(|listed| filter.passes(listed.record())).collect();
            return Ok(page(&items(&found), None));
        }
        query.search = Some(Search::new(handle.id.to_string()));
    }
    let (mut records, next) = filled(&call, &filter, query).await?;
    let search = filter.search;
    // The sort is stable: among those that fit as a whole, and among the others, the order stays.
    records.sort_by_key(|record| !search.as_ref().is_some_and(|search| search.is_exact(record.record())));
    let next = next.map(|next| list.seal(&next, SystemTime::now()));
    Ok(page(&items(&records), next.as_deref()))
}

/// A record of a list.
enum Listed {
    Readable(Seen),
    Unreadable(Unreadable),
}

impl Listed {
    fn record(&self) -> &Record {
        match self {
            Self::Readable(seen) => &seen.record,
            Self::Unreadable(unreadable) => &unreadable.record,
        }
    }

    fn item(&self) -> Map<String, Value> {
        match self {
            Self::Readable(seen) => view::item(&seen.record),
            Self::Unreadable(unreadable) => view::unreadable_item(unreadable),
        }
    }
}

/// Asks the store until the page is full, the list at its end, or the time over.
async fn filled(
    call: &Call,
    filter: &Filter,
    mut query: Query,
) -> Result<(Vec<Listed>, Option<onlyonce::store::Cursor>), Refusal> {
    let (began, limit) = (Instant::now(), query.limit);
    let mut records = Vec::new();
    loop {
        query.limit = limit - records.len();
        let page = match filter.expired {
            true => call.admin.engine.list_expired(query.clone()).await?,
            false => call.admin.engine.list(query.clone()).await?,
        };
        let readable = page.records.into_iter().map(|(_, seen)| Listed::Readable(seen));
        let all = readable.chain(page.unreadable.into_iter().map(Listed::Unreadable));
        records.extend(all.filter(|listed| filter.passes(listed.record())));
        query.after = page.next;
        if query.after.is_none() || records.len() == limit || began.elapsed() >= FILL_WITHIN {
            return Ok((records, query.after));
        }
    }
}

/// What is looked for.
struct Filter {
    state: Option<StateName>,
    order: Order,
    expired: bool,
    scope: Option<[u8; 32]>,
    route: Option<std::sync::Arc<str>>,
    dead_letter: Option<bool>,
    search: Option<Search>,
}

impl Filter {
    fn of(call: &Call) -> Self {
        let (state, dead_letter) = (call.query.word("state"), call.query.flag("dead_letter"));
        Self {
            state: state.and_then(StateName::named),
            order: view::order(state, dead_letter == Some(true)),
            expired: call.query.flag("expired") == Some(true),
            scope: call.query.scope(),
            route: call.query.text("route"),
            dead_letter,
            search: call.query.text("q").map(Search::new),
        }
    }

    fn query(&self, limit: usize) -> Query {
        let all = if self.expired { machine::EXPIRING } else { StateSet::ALL };
        Query {
            states: self.state.map_or(all, StateSet::from),
            scope: self.scope,
            route: self.route.clone(),
            dead_letter: self.dead_letter == Some(true),
            search: self.search.clone(),
            order: self.order,
            ..Query::all(limit)
        }
    }

    /// Whether a record passes, apart from the search.
    fn passes(&self, record: &Record) -> bool {
        let is_dead = || machine::facts(record).dead_letter;
        self.state.is_none_or(|state| record.state.name() == state)
            && self.scope.is_none_or(|scope| *record.scope.digest() == scope)
            && self.route.as_ref().is_none_or(|route| record.route.as_ref() == Some(route))
            && self.dead_letter.is_none_or(|dead_letter| is_dead() == dead_letter)
    }
}

fn items(records: &[Listed]) -> Vec<Map<String, Value>> {
    records.iter().map(Listed::item).collect()
}

/// A page of a list.
pub(super) fn page(items: &[Map<String, Value>], next: Option<&str>) -> Response {
    Json(json!({ "items": items, "next": next })).into_response()
}

/// What the cursors of a list belong to.
pub(super) async fn list_of(call: &Call) -> Result<List, Refusal> {
    let store = call.admin.store_name().await?;
    Ok(List { store, path: call.endpoint.path, filters: call.query.filters() })
}

/// Where a list goes on.
pub(super) fn opened(call: &mut Call, list: &List) -> Result<Option<onlyonce::store::Cursor>, Refusal> {
    let Some(text) = call.query.text("cursor") else { return Ok(None) };
    match list.open(&text, SystemTime::now()) {
        Ok(cursor) => Ok(Some(cursor)),
        Err(unusable) => {
            call.blame(vec![Fault::new("query.cursor", unusable.says())]);
            call.check().map(|()| None)
        }
    }
}

/// `GET /v1/keys/{scope}/{key}`
pub(super) async fn show(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let engine = &call.admin.engine;
    let (told, revision) = match engine.find(call.id()).await {
        Ok(seen) => {
            let seen = seen.ok_or_else(|| not_found(&call))?;
            (view::record(engine, &seen), seen.revision)
        }
        Err(error) => {
            let unreadable = error.unreadable().cloned().ok_or(error)?;
            (view::unreadable(engine, &unreadable), unreadable.revision)
        }
    };
    let mut response = Json(Value::Object(told)).into_response();
    response.headers_mut().insert(ETAG, revision_tag(revision));
    Ok(response)
}

/// The revision as a header's value.
pub(super) fn revision(seen: &Seen) -> HeaderValue {
    revision_tag(seen.revision)
}

fn revision_tag(revision: Revision) -> HeaderValue {
    HeaderValue::try_from(format!("\"{}\"", view::revision_text(revision)))
        .expect("hex digits are a header's value")
}

/// The same for a key that never was, one that was forgotten, and one of another scope.
pub(super) fn not_found(call: &Call) -> Refusal {
    let detail = format!(
        "there is no record of {}: it never existed, has expired, or was forgotten; GET /v1/keys?q=KEY finds a key in every scope",
        call.record_name()
    );
    Refusal::new(Code::RecordNotFound, detail)
}

/// `GET /v1/keys/{scope}/{key}/response`: that somebody looks is in the audit log before anything is sent.
pub(super) async fn response(call: Call) -> Result<Response, Refusal> {
    call.check()?;
    let seen = call.admin.engine.find(call.id()).await?.ok_or_else(|| not_found(&call))?;
    let Some((stored, expires_at)) = machine::stored(&seen.record) else {
        let detail = format!("the record of {} has no stored answer", call.record_name());
        return Err(Refusal::new(Code::RecordNotFound, detail));
    };
    let looked = json!({ "status": stored.status, "bytes": stored.body.len() });
    call.admin.engine.write_audit(audit::looked(&call, &seen.record, &looked)).await?;
    let mut response = Response::new(Body::from(stored.body.clone()));
    // What is stored was a status once, and a verdict's is checked.
    *response.status_mut() = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    for (name, value) in &stored.headers {
        headers.append(name, value.clone());
    }
    headers.insert(HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));
    headers.insert(HeaderName::from_static("idempotency-key-created"), http_date(seen.record.created_at));
    headers.insert(HeaderName::from_static("idempotency-key-expires"), http_date(expires_at));
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    Ok(response)
}

/// An HTTP-date.
fn http_date(at: Timestamp) -> HeaderValue {
    let at = jiff::Timestamp::from_second(at.as_secs_ceil().max(0)).unwrap_or(jiff::Timestamp::MAX);
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    let date = date.ok().and_then(|date| HeaderValue::try_from(date).ok());
    date.unwrap_or(HeaderValue::from_static("Thu, 30 Dec 9999 22:00:00 GMT"))
}
