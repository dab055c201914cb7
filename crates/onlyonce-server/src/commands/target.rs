//! Where a command looks at records and changes them: a gateway, by its admin port, or a store itself.
//!
//! 1. One or the other, as the arguments say, and never one instead of the other.
//! 2. Both answer alike: with the JSON of the admin API, and with its codes where they refuse.
//! 3. Reading changes nothing. A store file is read as a guest, also while a gateway has it; it is changed only while nobody
//!    has it.

mod gateway;
mod http;
mod local;
mod token;

use anyhow::Context;
use bytes::Bytes;
use onlyonce::record::{Handle, Response};
use onlyonce::store::sqlite::{Expired, Holder};
use serde_json::{Map, Value};

use super::failure::Failure;
use super::text::Progress;
use crate::admin::AS_CHARS_MAX;
use crate::cli::{self, Where, Word};
use crate::config;
use crate::store::Url;
pub(crate) use gateway::{Gateway, published};
use local::Local;

/// The most that is asked for at once.
pub(crate) const PAGE: usize = 500;
/// How many pages are looked through to find out whose a beginning is.
const PAGES_MAX: usize = 10_000;
/// From so many hex digits on the beginning of a scope or of a record's id is taken.
const DIGITS_MIN: usize = 8;
/// How many hex digits a whole scope or id has.
const DIGITS: usize = 64;

/// Where records are.
pub(crate) enum Target {
    Gateway(Gateway),
    Store(Local),
}

/// What a target is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Reading,
    Changing,
    /// To be told what a change would do.
    DryRun,
}

impl Purpose {
    pub(crate) fn of(change: &cli::Change) -> Self {
        if change.dry_run { Self::DryRun } else { Self::Changing }
    }
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) state: Option<String>,
    /// The whole scope in hex.
    pub(crate) scope: Option<String>,
    pub(crate) route: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) dead: bool,
}

/// Which entries of the audit log to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFilter {
    pub(crate) who: Option<String>,
    pub(crate) action: Option<String>,
    /// The whole scope in hex.
    pub(crate) scope: Option<String>,
    pub(crate) key: Option<String>,
    /// From this moment on.
    pub(crate) after: Option<jiff::Timestamp>,
}

/// A record by its whole scope, in hex, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) scope: String,
    pub(crate) key: String,
}

/// Why something is changed, by whom, and how insistently.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) reason: String,
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
    /// What the person calls itself.
    pub(crate) claims: Option<String>,
}

impl Order {
    pub(crate) fn of(change: &cli::Change) -> Result<Self, Failure> {
        Ok(Self {
            reason: change.reason.clone(),
            force: change.force,
            dry_run: change.dry_run,
            claims: claims(change.claims.as_deref())?,
        })
    }
}

/// What the person calls itself: as it says, or else the name of the user.
pub(crate) fn claims(said: Option<&str>) -> Result<Option<String>, Failure> {
    let Some(name) = said.map(str::trim) else { return Ok(user().filter(|name| is_name(name))) };
    if is_name(name) {
        return Ok(Some(name.to_owned()));
    }
    Err(Failure::arguments(format!(
        "--as \"{name}\" is not a valid name; use 1 to {AS_CHARS_MAX} characters"
    )))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= AS_CHARS_MAX && !name.chars().any(char::is_control)
}

/// The name of whoever runs this.
fn user() -> Option<String> {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).or_else(listed_user)
}

/// The same, as the system's list of users has it.
fn listed_user() -> Option<String> {
    let number = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, listed, ..] if listed == number => Some(name.to_owned()),
        _ => None,
    })
}

/// What a person says became of the work.
#[derive(Clone, Debug)]
pub(crate) struct Saying {
    pub(crate) word: Word,
    pub(crate) never_will: bool,
    pub(crate) response: Option<Response>,
    pub(crate) ask: bool,
    /// The attempt that is meant.
    pub(crate) attempt: Option<Handle>,
}

/// A stored answer.
pub(crate) struct Stored {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Target {
    /// What the arguments name, ready to be asked.
    pub(crate) async fn open(place: &Where, purpose: Purpose) -> Result<Self, Failure> {
        let Some(store) = &place.store else {
            return Ok(Self::Gateway(Gateway::new(place)?));
        };
        let url: Url = store.parse().map_err(|error| Failure::arguments(format!("{error:#}")))?;
        if purpose != Purpose::Reading {
            refuse_held(&url, place)?;
        }
        let keyring = config::encryption(&place.sources()).map_err(anyhow::Error::from)?;
        let store = match purpose {
            Purpose::Reading | Purpose::DryRun => url.open_for_reading(keyring.as_ref()).await?,
            // No such change lets a record expire.
            Purpose::Changing => url.open_for_changes(Expired::Delete, keyring.as_ref()).await?,
        };
        Ok(Self::Store(Local::new(store)))
    }

    /// Lets go of what was opened: a store file is free for the next owner afterwards.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Gateway(_) => Ok(()),
            Self::Store(local) => local.close().await,
        }
    }

    /// A page of records: `{"items","next"}`.
    async fn page(&self, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.page(filter, cursor, limit).await,
            Self::Store(local) => local.page(filter, cursor, limit).await,
        }
    }

    /// A page of the audit log, newest first: `{"items","next"}`.
    async fn log_page(
        &self,
        filter: &LogFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.log_page(filter, cursor, limit).await,
            Self::Store(local) => local.log_page(filter, cursor, limit).await,
        }
    }

    /// One record with all that is known of it.
    pub(crate) async fn show(&self, name: &Name) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.show(name).await,
            Self::Store(local) => local.show(name).await,
        }
    }

    /// The stored answer of a record. That somebody looked is in the audit log.
    pub(crate) async fn response(&self, name: &Name, claims: Option<&str>) -> Result<Stored, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.response(name, claims).await,
            Self::Store(local) => local.response(name, claims).await,
        }
    }

    /// Says what became of a record's work.
    pub(crate) async fn verdict(
        &self,
        name: &Name,
        saying: &Saying,
        order: &Order,
    ) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.verdict(name, saying, order).await,
            Self::Store(local) => local.verdict(name, saying, order).await,
        }
    }

    /// Forgets a record.
    pub(crate) async fn forget(&self, name: &Name, order: &Order) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.forget(name, order).await,
            Self::Store(local) => local.forget(name, order).await,
        }
    }

    /// Forgets all records of a scope.
    pub(crate) async fn purge(&self, scope: &str, order: &Order) -> Result<Value, Failure> {
        match self {
            Self::Gateway(gateway) => gateway.purge(scope, order).await,
            Self::Store(local) => local.purge(scope, order).await,
        }
    }
}

/// A file that somebody has is not changed by anybody else.
fn refuse_held(url: &Url, place: &Where) -> Result<(), Failure> {
    match url.holder()? {
        Some(holder) => Err(held(url, &holder, &format!("use --admin {}", gateway::address(place)?))),
        None => Ok(()),
    }
}

/// A file that somebody has.
pub(crate) fn held(url: &Url, holder: &Holder, remedy: &str) -> Failure {
    let process = holder.process.map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
    let since = holder.since.and_then(|since| jiff::Timestamp::try_from(since).ok());
    let since = since.map_or_else(String::new, |since| format!(" since {since:.0}"));
    Failure::new("store_in_use", format!("store {url} belongs to {process}{since}; {remedy}"))
}

/// Some of a listing: `limit` of it, or all for 0.
pub(crate) struct Listing {
    pub(crate) items: Vec<Value>,
    /// Where to go on; null where this is all.
    pub(crate) next: Value,
}

impl Listing {
    /// As the API answers.
    pub(crate) fn into_json(self) -> Value {
        Map::from_iter([("items".to_owned(), self.items.into()), ("next".to_owned(), self.next)]).into()
    }
}

/// Up to `limit` messages of a gateway, 0 for all.
pub(crate) async fn messages(
    gateway: &Gateway,
    state: Option<&str>,
    destination: Option<&str>,
    limit: usize,
) -> Result<Listing, Failure> {
    let mut progress = Progress::new();
    let page = async |cursor: Option<String>, limit| {
        gateway.messages(state, destination, cursor.as_deref(), limit).await
    };
    gather(limit, page, |count| progress.tell(&format!("{count} messages"))).await
}

impl Target {
    /// Up to `limit` records, 0 for all.
    pub(crate) async fn list(&self, filter: &Filter, limit: usize) -> Result<Listing, Failure> {
        let mut progress = Progress::new();
        let page = async |cursor: Option<String>, limit| self.page(filter, cursor.as_deref(), limit).await;
        gather(limit, page, |count| progress.tell(&format!("{count} records"))).await
    }

    /// The newest `limit` entries of the audit log, 0 for all, newest first.
    pub(crate) async fn log(&self, filter: &LogFilter, limit: usize) -> Result<Listing, Failure> {
        let mut progress = Progress::new();
        let page =
            async |cursor: Option<String>, limit| self.log_page(filter, cursor.as_deref(), limit).await;
        gather(limit, page, |count| progress.tell(&format!("{count} entries"))).await
    }

    /// The whole scope of which `text` is the whole or the beginning.
    pub(crate) async fn scope(&self, text: &str) -> Result<String, Failure> {
        let beginning = hex(text, "scope")?;
        if beginning.len() == DIGITS {
            return Ok(beginning);
        }
        let filter = Filter { query: Some(beginning.clone()), ..Filter::default() };
        self.only_scope(&filter, &beginning, |_| true).await
    }

    /// The record of a key in the scope of which `scope` is the whole or the beginning.
    pub(crate) async fn name(&self, scope: &str, key: &str) -> Result<Name, Failure> {
        let beginning = hex(scope, "scope")?;
        if beginning.len() == DIGITS {
            return Ok(Name { scope: beginning, key: key.to_owned() });
        }
        let filter = Filter { query: Some(key.to_owned()), ..Filter::default() };
        let scope = self.only_scope(&filter, &beginning, |item| item["key"] == *key).await?;
        Ok(Name { scope, key: key.to_owned() })
    }

    /// The record whose id begins so, as log lines show it.
    pub(crate) async fn by_id(&self, text: &str) -> Result<Name, Failure> {
        // A whole Onlyonce-Token begins with the id.
        let text = text.parse::<Handle>().map_or_else(|_| text.to_owned(), |handle| handle.id.to_string());
        let beginning = hex(&text, "record")?;
        let filter = Filter { query: Some(beginning.clone()), ..Filter::default() };
        let is_meant = |item: &Value| item["id"].as_str().is_some_and(|id| id.starts_with(&beginning));
        let mut found: Option<(String, Name)> = None;
        self.every(&filter, |item| {
            if !is_meant(item) {
                return Ok(());
            }
            let id = item["id"].as_str().unwrap_or_default().to_owned();
            match &found {
                Some((other, _)) if *other != id => Err(ambiguous("record", &beginning, other, &id)),
                Some(_) | None => {
                    found = Some((id, name_of(item)));
                    Ok(())
                }
            }
        })
        .await?;
        let (_, name) = found.ok_or_else(|| {
            Failure::not_found(format!(
                "there is no record whose id begins with \"{beginning}\"; it may have expired or been forgotten. To show a record \
                 by scope and key, give SCOPE and KEY"
            ))
        })?;
        Ok(name)
    }

    /// The one scope that begins so, among the records that are meant.
    async fn only_scope(
        &self,
        filter: &Filter,
        beginning: &str,
        is_meant: impl Fn(&Value) -> bool,
    ) -> Result<String, Failure> {
        let mut found: Option<String> = None;
        self.every(filter, |item| {
            let scope = item["scope"].as_str().unwrap_or_default();
            if !scope.starts_with(beginning) || !is_meant(item) {
                return Ok(());
            }
            match &found {
                Some(other) if other != scope => Err(ambiguous("scope", beginning, other, scope)),
                Some(_) | None => {
                    found = Some(scope.to_owned());
                    Ok(())
                }
            }
        })
        .await?;
        found.ok_or_else(|| {
            Failure::not_found(format!(
                "there is no such record in a scope that begins with \"{beginning}\"; onlyonce keys list shows all records"
            ))
        })
    }

    /// Looks at every record of a listing, page by page, however many there are.
    pub(crate) async fn each(
        &self,
        filter: &Filter,
        mut look: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut progress = Progress::new();
        let mut cursor: Option<String> = None;
        let mut count = 0;
        loop {
            let page = self.page(filter, cursor.as_deref(), PAGE).await?;
            items(&page).iter().try_for_each(&mut look)?;
            count += items(&page).len();
            progress.tell(&format!("{count} records"));
            let next = page["next"].as_str().map(str::to_owned);
            if next.is_none() {
                return Ok(());
            }
            if next == cursor {
                return Err(Failure::new(
                    "gateway_unknown",
                    "the listing does not go on: its cursor stays the same",
                ));
            }
            cursor = next;
        }
    }

    /// Looks at every record of a listing, page by page.
    async fn every(
        &self,
        filter: &Filter,
        mut look: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let page = self.page(filter, cursor.as_deref(), PAGE).await?;
            items(&page).iter().try_for_each(&mut look)?;
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(());
            }
        }
        Err(Failure::arguments(
            "there are too many records to find the scope by its beginning; give all 64 digits",
        ))
    }
}

/// Follows the pages of a listing until there are `limit`, or all for 0.
async fn gather(
    limit: usize,
    page: impl AsyncFn(Option<String>, usize) -> Result<Value, Failure>,
    mut tell: impl FnMut(usize),
) -> Result<Listing, Failure> {
    let mut all = Listing { items: Vec::new(), next: Value::Null };
    loop {
        let left = if limit == 0 { PAGE } else { (limit - all.items.len()).min(PAGE) };
        let found = page(all.next.as_str().map(str::to_owned), left).await?;
        all.items.extend_from_slice(items(&found));
        all.next = found["next"].clone();
        let is_enough = limit > 0 && all.items.len() >= limit;
        if is_enough || all.next.is_null() {
            return Ok(all);
        }
        tell(all.items.len());
    }
}

fn items(page: &Value) -> &[Value] {
    page["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name_of(item: &Value) -> Name {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    Name { scope: text("scope"), key: text("key") }
}

fn ambiguous(what: &str, beginning: &str, one: &str, other: &str) -> Failure {
    Failure::arguments(format!(
        "{what} \"{beginning}\" matches more than one, such as {one} and {other}; give more digits"
    ))
}

/// Hex digits in lower case: a whole digest, or enough of its beginning.
fn hex(text: &str, what: &str) -> Result<String, Failure> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex && (DIGITS_MIN..=DIGITS).contains(&text.len()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(Failure::arguments(format!(
        "{what} \"{text}\" is not in hex; give its {DIGITS} digits, or the first {DIGITS_MIN} or more"
    )))
}

/// A digest of 32 bytes.
pub(crate) fn digest(hex: &str) -> Result<[u8; 32], Failure> {
    let byte = |place: usize| u8::from_str_radix(hex.get(2 * place..2 * place + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..DIGITS / 2).map(byte).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok()).context("a scope has 64 hex digits")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_beginning_has_at_least_eight_hex_digits() {
        assert_eq!(hex("ABCDEF01", "scope").unwrap(), "abcdef01");
        assert_eq!(hex(&"5".repeat(64), "scope").unwrap(), "5".repeat(64));
        for text in ["", "abcdef0", "abcdefgh", "order-17", &"5".repeat(65), "é1234567"] {
            let told = hex(text, "scope").unwrap_err().to_string();
            assert!(told.contains(&format!("\"{text}\" is not in hex")), "{told}");
        }
    }

    #[tokio::test]
    async fn pages_are_followed_until_there_is_enough() {
        // Nine in all, in pages of at most four, one of them empty.
        let page = async |cursor: Option<String>, limit: usize| {
            let from: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
            if from == 4 {
                return Ok(json!({ "items": [], "next": "5" }));
            }
            let skipped = usize::from(from > 4);
            let count = limit.min(4).min(9 + skipped - from);
            let next = from + count;
            let items: Vec<_> = (from - skipped..next - skipped).collect();
            Ok(
                json!({ "items": items, "next": if next < 10 { json!(next.to_string()) } else { Value::Null } }),
            )
        };
        for (limit, expected, has_next) in
            [(0, 9, false), (3, 3, true), (4, 4, true), (6, 6, true), (9, 9, false), (99, 9, false)]
        {
            let all = gather(limit, page, |_| {}).await.unwrap();
            assert_eq!(all.items, (0..expected).map(Value::from).collect::<Vec<_>>(), "{limit}");
            assert_eq!(!all.next.is_null(), has_next, "{limit}");
        }
    }
}
