//! The suite can fail: each of these engines breaks one promise, and the case named for it catches it.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a fault spoils one thing and leaves all others as they are"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{self, Force, Forget};
use onlyonce_core::record::{Draft, Id, Record, Response, Revision, Seen, State, StateName, StateSet, Token};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::accepted::Request;
use onlyonce_store::audit::{self, Entry};
use onlyonce_store::memory::Memory;
use onlyonce_store::outbox::{
    self, Census, Changed, Claimed, Claims, Item, OnDead, Outbox, Payload, Settled, Wanted,
};
use onlyonce_store::promises::Expiry;
use onlyonce_store::result::Results;
use onlyonce_store::{
    Alive, Audit, Change, Count, Cursor, Epoch, EpochSeen, Error, Order, Page, Promises, Query, Store,
    Swapped,
};

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing: that the wrapper itself is no fault.
    None,
    InsertsOver,
    IgnoresRevision,
    InsertsWhatIsGone,
    WritesBeforeItCompares,
    LooksThenWrites,
    MintsRevisions,
    RevisionsAreSigned,
    ForgetsOwnRevision,
    LostShowsNothing,
    MixesUpAnswers,
    FoldsCase,
    IgnoresScope,
    PreparesAfresh,
    AppliesWithoutWriting,
    StampsTooEarly,
    ShowsAnotherClock,
    ClockRunsBackwards,
    RoundsToMillis,
    RestampsOnLook,
    LosesEvidence,
    LosesLabel,
    LosesResponses,
    KeepsCreatedAt,
    HeadersAreText,
    BodiesEndAt64KiB,
    ReapsNothing,
    /// No fault: its server deletes what has expired.
    DeletesByItself,
    ReapIgnoresExpiry,
    ReapIgnoresState,
    ReapIsDue,
    ReapIgnoresLimit,
    ReapMiscounts,
    ReapLooksThenDeletes,
    ScanIgnoresState,
    ScanKeepsTheFirstState,
    ScanIgnoresScope,
    ScanSkips,
    ScanRepeats,
    ScanNeverEnds,
    ScanPromisesMore,
    ScanIgnoresDue,
    ScanHidesDue,
    ScanIsOutOfOrder,
    ScanForgetsDeadlines,
    ScanIgnoresRoute,
    ScanTakesAnyCursor,
    CountsOneState,
    EpochNeverRises,
    EpochRisesOnce,
    EpochRisesByItself,
    EpochCounts,
    NameChanges,
    DropsMessages,
    SendsWhatWasLost,
    HasNoOutboxAndSaysNothing,
    ClaimsWhatIsClaimed,
    ClaimsLapseEarly,
    SettlesForAnybody,
    RefusesLateSettlement,
    AgainAtOnce,
    IgnoresDelay,
    ForgetsDelivered,
    DeliversTwice,
    KeepsTheLastError,
    RelaysShare,
    ClaimsAnyDestination,
    ClaimsTooMany,
    IgnoresGroups,
    ReversesGroups,
    NeverBlocks,
    AlwaysBlocks,
    CountsEveryFailure,
    RedrivesAnything,
    RedriveForgetsTheEntry,
    RedriveForgetsErrors,
    DiscardsNothing,
    MessagesIgnoreState,
    MessagesIgnoreDestination,
    OldestGrowsYounger,
    PruneIgnoresAge,
    PruneIgnoresLimit,
    LosesHistory,
    ScanIgnoresSearch,
    ScanIgnoresDeadLetters,
    SearchFoldsCase,
    SearchIsExact,
    SearchRepeatsIds,
    DropsAudit,
    AuditsWhatWasLost,
    AuditsEveryTime,
    AuditForgetsReason,
    AuditIsOldestFirst,
    AuditIgnoresFilters,
    AuditIgnoresTime,
    AuditPagesByNumber,
    AuditTakesAnyCursor,
    AuditIgnoresAge,
    AuditReapIgnoresLimit,
    AuditGoesWithRecords,
    EraseIgnoresScope,
    EraseIgnoresExpiry,
    EraseIgnoresLimit,
    EraseDeletesNothing,
    EraseLeavesLabels,
    EraseBlanksTooEarly,
    EraseLeavesTheArchive,
    AliveIgnoresScope,
    AliveIgnoresExpiry,
    AliveIgnoresLimit,
    CountingLosesRecords,
    LosesResults,
    KeepsResults,
    ResultsAreAnybodys,
    ResultsOfLostSwaps,
    LosesRequests,
    KeepsRequests,
    RequestsAreAnybodys,
    RequestsOfLostSwaps,
    RequestsAreNotCounted,
}

/// How long a cursor of the memory engine is: a moment and an id.
const CURSOR_BYTES: usize = 40;

#[derive(Debug)]
struct Broken {
    inner: Memory,
    fault: Fault,
    count: AtomicU64,
    /// What the fault needs to remember.
    ids: Mutex<HashMap<Id, Id>>,
    first_states: Mutex<HashMap<Id, StateName>>,
    claimed: Mutex<Vec<Claimed>>,
    archive: Mutex<Vec<(Id, Record)>>,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        Self {
            inner: Memory::new(),
            fault,
            count: AtomicU64::new(0),
            ids: Mutex::default(),
            first_states: Mutex::default(),
            claimed: Mutex::default(),
            archive: Mutex::default(),
        }
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst)
    }

    async fn current(&self, id: Id) -> Option<Revision> {
        self.inner.load(id).await.unwrap().map(|seen| seen.revision)
    }

    /// What this engine writes where it is asked for `change`.
    async fn spoil(&self, id: Id, change: &mut Change) {
        let current = self.current(id).await;
        let is_over = change.expected.is_none() && current.is_some();
        match self.fault {
            Fault::InsertsOver if is_over => change.expected = current,
            Fault::IgnoresRevision if current.is_some() => change.expected = current,
            Fault::InsertsWhatIsGone if current.is_none() => change.expected = None,
            Fault::LooksThenWrites if current == change.expected => {
                on_the_way().await;
                change.expected = self.current(id).await;
            }
            Fault::MintsRevisions => change.revision = Revision(self.next()),
            Fault::RevisionsAreSigned => change.revision.0 &= u64::MAX >> 1,
            Fault::DropsMessages | Fault::HasNoOutboxAndSaysNothing => change.with.messages.clear(),
            Fault::IgnoresGroups => change.with.messages.iter_mut().for_each(|message| message.group = None),
            Fault::ReversesGroups => change.with.messages.reverse(),
            Fault::IgnoresDelay => {
                for message in &mut change.with.messages {
                    message.delay = Duration::ZERO;
                }
            }
            Fault::LosesEvidence => change.next.evidence = None,
            Fault::LosesHistory => change.next.history = History::default(),
            Fault::DropsAudit => change.with.audit = None,
            Fault::LosesResults => change.with.results = Results::Keep,
            Fault::KeepsResults if change.with.results == Results::Drop => {
                change.with.results = Results::Keep;
            }
            Fault::LosesRequests => change.with.request = Request::Keep,
            Fault::KeepsRequests if change.with.request == Request::Drop => {
                change.with.request = Request::Keep;
            }
            Fault::RequestsOfLostSwaps if change.with.request != Request::Keep => change.expected = current,
            Fault::ResultsOfLostSwaps if change.with.results != Results::Keep => change.expected = current,
            Fault::AuditForgetsReason => {
                if let Some(entry) = &mut change.with.audit {
                    entry.reason = None;
                }
            }
            Fault::LosesResponses => {
                if let State::Completed { response, .. } = &mut change.next.state {
                    *response = None;
                }
            }
            Fault::KeepsCreatedAt => {
                let seen = self.inner.load(id).await.unwrap();
                let kept = seen.map(|seen| When::At(seen.record.created_at));
                change.next.created_at = kept.unwrap_or(change.next.created_at);
            }
            Fault::LosesLabel => change.next.scope = Scope::stored(*change.next.scope.digest(), None),
            Fault::HeadersAreText => edit(&mut change.next, |response| {
                for (_, value) in &mut response.headers {
                    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    *value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
                }
            }),
            Fault::BodiesEndAt64KiB => edit(&mut change.next, |response| response.body.truncate(65_535)),
            Fault::RoundsToMillis => {
                if let When::At(at) = change.next.created_at {
                    change.next.created_at = When::At(Timestamp::from_micros(at.as_micros() / 1_000 * 1_000));
                }
            }
            Fault::StampsTooEarly => change.next.began_at = earlier(change.next.began_at),
            _ => {}
        }
    }

    /// The row this engine keeps a record in.
    fn row(&self, id: Id, next: &Draft) -> Id {
        let row = match self.fault {
            Fault::FoldsCase => Id::of(&next.scope, &Key::stored(&next.key.as_str().to_lowercase())),
            Fault::IgnoresScope => Id::of(&Scope::stored([0; 32], None), &next.key),
            _ => id,
        };
        self.ids.lock().unwrap().insert(id, row);
        self.first_states.lock().unwrap().entry(id).or_insert(next.state.name());
        row
    }

    /// What this engine shows instead of what is there.
    fn show(&self, mut seen: Seen) -> Seen {
        match self.fault {
            Fault::ShowsAnotherClock => seen.now = seen.now.plus(Duration::from_secs(600)),
            Fault::ClockRunsBackwards if self.next() % 7 == 6 => {
                seen.now = Timestamp::from_micros(seen.now.as_micros() - 1_000_000);
            }
            _ => {}
        }
        seen
    }

    /// Deletes a record, expired or not.
    async fn wipe(&self, id: Id, is_to_go: impl Fn(&Seen) -> bool) -> usize {
        let Some(seen) = self.inner.load(id).await.unwrap() else { return 0 };
        if !is_to_go(&seen) {
            return 0;
        }
        // One that has expired is gone already, and only waits for the reaper.
        if let Forget::Write(next) = machine::forget(&seen, Token([0; 16]), Force::Yes) {
            let revision = Revision(u64::MAX - self.next());
            self.inner.swap(id, Change::new(Some(seen.revision), revision, next)).await.unwrap();
        }
        Store::reap(&self.inner, 1).await.unwrap()
    }

    async fn all(&self) -> Vec<(Id, Seen)> {
        self.inner.scan(Query::all(10_000)).await.unwrap().records
    }

    async fn wipe_all(&self, is_to_go: impl Fn(&Seen) -> bool) -> usize {
        let mut wiped = 0;
        for (id, _) in self.all().await {
            wiped += self.wipe(id, &is_to_go).await;
        }
        wiped
    }
}

/// What lies between two statements of an engine with a server; long enough for others also where the machine is busy.
async fn on_the_way() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Does this to every response in a draft.
fn edit(draft: &mut Draft, change: impl Fn(&mut Response)) {
    if let State::Completed { response: Some(response), .. } = &mut draft.state {
        change(Arc::make_mut(response));
    }
}

fn earlier(when: When) -> When {
    match when {
        When::At(at) => When::At(at),
        When::AfterWrite(_) => When::At(Timestamp::from_micros(1)),
    }
}

fn is_finished(seen: &Seen) -> bool {
    matches!(seen.record.state.name(), StateName::Completed | StateName::Retryable)
}

fn is_due(record: &Record, now: Timestamp) -> bool {
    record.draft().due().stamp(record.written_at).is_some_and(|due_at| due_at <= now)
}

#[async_trait]
impl Store for Broken {
    async fn prepare(&self) -> Result<(), Error> {
        if self.fault == Fault::PreparesAfresh {
            self.wipe_all(|_| true).await;
        }
        self.inner.prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let row = self.ids.lock().unwrap().get(&id).copied().unwrap_or(id);
        let seen = self.inner.load(row).await?.map(|seen| self.show(seen));
        Ok(seen.map(|mut seen| {
            if self.fault == Fault::RestampsOnLook {
                seen.record = Arc::new(seen.record.draft().stamp(seen.now));
            }
            seen
        }))
    }

    async fn swap(&self, id: Id, mut change: Change) -> Result<Swapped, Error> {
        let id = self.row(id, &change.next);
        self.spoil(id, &mut change).await;
        let revision = change.revision;
        let seen = self.inner.load(id).await?.filter(|seen| Some(seen.revision) == change.expected);
        if let (Some(Seen { now, .. }), Fault::AppliesWithoutWriting) = (seen, self.fault)
            && self.next() % 20 == 19
        {
            return Ok(Swapped::Applied(Seen { record: Arc::new(change.next.stamp(now)), revision, now }));
        }
        let again = change.clone();
        let swapped = self.inner.swap(id, change).await?;
        match (swapped, self.fault) {
            (Swapped::Lost(Some(_)), Fault::LostShowsNothing) => Ok(Swapped::Lost(None)),
            (Swapped::Lost(Some(seen)), Fault::WritesBeforeItCompares) => {
                self.inner.swap(id, Change { expected: Some(seen.revision), ..again }).await?;
                Ok(Swapped::Lost(Some(seen)))
            }
            (Swapped::Lost(Some(mut seen)), Fault::ForgetsOwnRevision) if seen.revision == revision => {
                seen.revision = Revision(0);
                Ok(Swapped::Lost(Some(seen)))
            }
            (Swapped::Lost(Some(seen)), Fault::SendsWhatWasLost) => {
                let next = seen.record.draft();
                let revision = Revision(self.next());
                let messages = again.with.messages;
                let id = Id([0xee; 32]);
                let expected = self.current(id).await;
                let change = Change::new(expected, revision, next).with_messages(messages);
                self.inner.swap(id, change).await?;
                Ok(Swapped::Lost(Some(seen)))
            }
            (Swapped::Lost(seen), Fault::AuditsWhatWasLost) => {
                if let Some(entry) = again.with.audit {
                    self.inner.audit().write(entry).await?;
                }
                Ok(Swapped::Lost(seen))
            }
            (Swapped::Applied(mut seen), Fault::MixesUpAnswers) if self.next() % 2 == 1 => {
                seen.record = self.all().await.remove(0).1.record;
                Ok(Swapped::Applied(seen))
            }
            (Swapped::Applied(seen), _) => Ok(Swapped::Applied(self.show(seen))),
            (Swapped::Lost(seen), _) => Ok(Swapped::Lost(seen.map(|seen| self.show(seen)))),
        }
    }

    async fn scan(&self, mut query: Query) -> Result<Page, Error> {
        let search = query.search.clone();
        match self.fault {
            Fault::ScanIgnoresState => query.states = StateSet::ALL,
            Fault::ScanIgnoresScope => query.scope = None,
            Fault::ScanIgnoresRoute => query.route = None,
            Fault::ScanIgnoresSearch | Fault::SearchFoldsCase => query.search = None,
            Fault::ScanIgnoresDeadLetters => query.dead_letter = false,
            Fault::ScanIgnoresDue => query.order = Order::Any,
            Fault::ScanNeverEnds => query.after = None,
            Fault::ScanTakesAnyCursor => {
                query.after = query.after.filter(|Cursor(bytes)| bytes.len() == CURSOR_BYTES);
            }
            _ => {}
        }
        let (states, order) = (query.states, query.order);
        if self.fault == Fault::ScanKeepsTheFirstState {
            query.states = StateSet::ALL;
        }
        let mut page = self.inner.scan(query).await?;
        match self.fault {
            Fault::ScanKeepsTheFirstState => {
                let first = self.first_states.lock().unwrap();
                page.records.retain(|(id, _)| states.contains(first[id]));
            }
            Fault::SearchFoldsCase => page.records.retain(|(_, seen)| {
                let key = seen.record.key.as_str().to_lowercase();
                search.as_ref().is_none_or(|search| key.starts_with(&search.text().to_lowercase()))
            }),
            Fault::SearchIsExact => {
                page.records
                    .retain(|(_, seen)| search.as_ref().is_none_or(|search| search.is_exact(&seen.record)));
            }
            Fault::SearchRepeatsIds if search.is_some_and(|search| search.hex_prefix().is_some()) => {
                let again = page.records.first().cloned().filter(|_| page.records.len() > 1);
                page.records.extend(again);
            }
            Fault::ScanSkips if page.next.is_some() => drop(page.records.remove(0)),
            Fault::ScanRepeats if page.next.is_some() && page.records.len() > 1 => {
                let Cursor(bytes) = page.next.as_mut().unwrap();
                bytes[CURSOR_BYTES - 32..].copy_from_slice(&page.records[page.records.len() - 2].0.0);
            }
            Fault::ScanPromisesMore if page.records.is_empty() => {
                page.next = Some(Cursor(Box::new([0; CURSOR_BYTES])));
            }
            Fault::ScanIsOutOfOrder if order != Order::Any => page.records.reverse(),
            Fault::ScanHidesDue if order == Order::Due => page.records.retain(|(_, seen)| is_finished(seen)),
            Fault::ScanForgetsDeadlines if order == Order::Due => {
                page.records.retain(|(_, seen)| match &seen.record.state {
                    State::Running { lapses_at } => *lapses_at <= seen.now,
                    _ => true,
                });
            }
            _ => {}
        }
        Ok(page)
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        match self.fault {
            Fault::ReapsNothing => Ok(0),
            Fault::ReapIgnoresExpiry => Ok(self.wipe_all(is_finished).await),
            Fault::ReapIgnoresState => Ok(self.wipe_all(|seen| is_due(&seen.record, seen.now)).await),
            Fault::ReapIsDue => {
                Ok(self.wipe_all(|seen| is_finished(seen) && is_due(&seen.record, seen.now)).await)
            }
            Fault::ReapIgnoresLimit => Store::reap(&self.inner, usize::MAX).await,
            Fault::ReapMiscounts => Store::reap(&self.inner, limit).await.map(|count| count.min(1)),
            Fault::ReapLooksThenDeletes => {
                let mut reaped = 0;
                for (id, seen) in self.all().await {
                    if machine::may_reap(&seen.record, seen.now) {
                        on_the_way().await;
                        reaped += self.wipe(id, |_| true).await;
                    }
                }
                Ok(reaped)
            }
            Fault::EraseLeavesTheArchive => {
                let expired = self
                    .all()
                    .await
                    .into_iter()
                    .filter(|(_, seen)| machine::may_reap(&seen.record, seen.now));
                let expired = expired.map(|(id, seen)| (id, Record::clone(&seen.record)));
                self.archive.lock().unwrap().extend(expired);
                Store::reap(&self.inner, limit).await
            }
            _ => Store::reap(&self.inner, limit).await,
        }
    }

    async fn archived(&self, id: Id, _limit: usize) -> Result<Option<Vec<Record>>, Error> {
        let archive = self.archive.lock().unwrap();
        let kept = archive.iter().filter(|(kept, _)| *kept == id).map(|(_, record)| record.clone());
        Ok((self.fault == Fault::EraseLeavesTheArchive).then(|| kept.collect()))
    }

    async fn count_alive(&self, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
        match self.fault {
            Fault::AliveIgnoresScope => self.inner.count_alive(None, limit).await,
            Fault::AliveIgnoresLimit => self.inner.count_alive(scope, u64::MAX).await,
            Fault::AliveIgnoresExpiry => {
                let all = self.all().await;
                let of_scope = |seen: &Seen| scope.is_none_or(|scope| *seen.record.scope.digest() == scope);
                let count = all.iter().filter(|(_, seen)| of_scope(seen)).count() as u64;
                Ok(Alive { count: count.min(limit), next_expiry: None })
            }
            _ => self.inner.count_alive(scope, limit).await,
        }
    }

    async fn prepare_counting(&self) -> Result<(), Error> {
        if self.fault == Fault::CountingLosesRecords {
            self.wipe_all(|_| true).await;
        }
        self.inner.prepare_counting().await
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        let is_of_scope = |seen: &Seen| *seen.record.scope.digest() == scope;
        let may_go = |seen: &Seen| machine::may_reap(&seen.record, seen.now);
        match self.fault {
            Fault::EraseIgnoresScope => Ok(self.wipe_all(may_go).await),
            Fault::EraseIgnoresExpiry => Ok(self.wipe_all(is_of_scope).await),
            Fault::EraseIgnoresLimit => self.inner.erase(scope, usize::MAX).await,
            Fault::EraseDeletesNothing => Ok(0),
            Fault::EraseLeavesLabels => Ok(self.wipe_all(|seen| is_of_scope(seen) && may_go(seen)).await),
            Fault::EraseBlanksTooEarly => {
                let erased = self.inner.erase(scope, limit).await?;
                Ok(erased + self.inner.erase(scope, 1).await?)
            }
            _ => self.inner.erase(scope, limit).await,
        }
    }

    async fn results(
        &self,
        id: Id,
        used_at: Timestamp,
    ) -> Result<Vec<onlyonce_store::result::PhaseResult>, Error> {
        let seen = self.inner.load(id).await?.filter(|_| self.fault == Fault::ResultsAreAnybodys);
        let used_at = seen.map_or(used_at, |seen| seen.record.created_at);
        self.inner.results(id, used_at).await
    }

    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<bytes::Bytes>, Error> {
        let seen = self.inner.load(id).await?.filter(|_| self.fault == Fault::RequestsAreAnybodys);
        let used_at = seen.map_or(used_at, |seen| seen.record.created_at);
        self.inner.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        if self.fault == Fault::RequestsAreNotCounted {
            return Ok(0);
        }
        self.inner.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        let mut counts = self.inner.count().await?;
        if self.fault == Fault::CountsOneState {
            counts.truncate(1);
        }
        Ok(counts)
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        let mut seen = self.inner.epoch().await?;
        match self.fault {
            Fault::EpochRisesByItself => seen.epoch = Epoch(self.next()),
            Fault::EpochCounts => seen.epoch = Epoch(self.count.load(Ordering::SeqCst)),
            Fault::NameChanges => seen.store = [u8::try_from(self.next()).unwrap(); 16],
            _ => {}
        }
        Ok(seen)
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        match self.fault {
            Fault::EpochNeverRises => Ok(()),
            Fault::EpochRisesOnce if self.next() > 0 => Ok(()),
            Fault::EpochCounts => {
                self.next();
                Ok(())
            }
            _ => self.inner.raise_epoch().await,
        }
    }

    fn promises(&self) -> Promises {
        match self.fault {
            Fault::DeletesByItself => Promises { expiry: Expiry::Theirs, ..self.inner.promises() },
            _ => self.inner.promises(),
        }
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        (self.fault != Fault::HasNoOutboxAndSaysNothing).then_some(self)
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

#[async_trait]
impl Audit for Broken {
    async fn write(&self, mut entry: Entry) -> Result<(), Error> {
        if self.fault == Fault::AuditsEveryTime {
            entry.id = format!("{} {}", entry.id, self.next()).into();
        }
        self.inner.audit().write(entry).await
    }

    async fn list(&self, mut query: audit::Query) -> Result<audit::Page, Error> {
        match self.fault {
            Fault::AuditIgnoresFilters => {
                query = audit::Query { after: query.after, limit: query.limit, ..<_>::default() }
            }
            Fault::AuditIgnoresTime => (query.from, query.until) = (None, None),
            Fault::AuditTakesAnyCursor => query.after = query.after.filter(|Cursor(bytes)| bytes.len() == 8),
            Fault::AuditPagesByNumber => return self.page_by_number(query).await,
            _ => {}
        }
        let mut page = self.inner.audit().list(query).await?;
        match self.fault {
            Fault::AuditIsOldestFirst => page.entries.reverse(),
            Fault::AuditGoesWithRecords
                if self.all().await.iter().all(|(_, seen)| *seen.record.key.as_str() != *"k") =>
            {
                page.entries.clear();
            }
            _ => {}
        }
        Ok(page)
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        let (age, limit) = match self.fault {
            Fault::AuditIgnoresAge => (Duration::ZERO, limit),
            Fault::AuditReapIgnoresLimit => (age, usize::MAX),
            _ => (age, limit),
        };
        self.inner.audit().prune(age, limit).await
    }
}

impl Broken {
    /// A page that is counted from the newest entry, whatever has come since.
    async fn page_by_number(&self, query: audit::Query) -> Result<audit::Page, Error> {
        let shown = query.after.as_ref().map_or(0, |Cursor(bytes)| usize::from(bytes[0]));
        let limit = query.limit;
        let all = audit::Query { after: None, limit: usize::MAX, ..query };
        let entries = self.inner.audit().list(all).await?.entries;
        let next = u8::try_from(shown + limit).ok().filter(|_| shown + limit < entries.len());
        let entries = entries.into_iter().skip(shown).take(limit).collect();
        Ok(audit::Page { entries, next: next.map(|next| Cursor(Box::new([next]))) })
    }
}

#[async_trait]
impl Outbox for Broken {
    async fn claim(&self, token: Token, wanted: &[Wanted]) -> Result<Claims, Error> {
        let mut wanted = wanted.to_vec();
        for wanted in &mut wanted {
            match self.fault {
                Fault::ClaimsWhatIsClaimed => wanted.lease = Duration::ZERO,
                Fault::ClaimsLapseEarly => wanted.lease /= 10,
                Fault::ClaimsTooMany => wanted.limit += 1,
                Fault::NeverBlocks => wanted.on_dead = OnDead::Skip,
                Fault::AlwaysBlocks => wanted.on_dead = OnDead::Block,
                _ => {}
            }
        }
        if self.fault == Fault::ClaimsAnyDestination
            && let Some(first) = wanted.first().cloned()
        {
            wanted.push(Wanted { destination: "nobody".into(), ..first });
        }
        let limit = wanted.iter().map(|wanted| wanted.limit).sum();
        let mut claims = self.inner.outbox().unwrap().claim(token, &wanted).await?;
        let mut before = self.claimed.lock().unwrap();
        let again = match self.fault {
            Fault::RelaysShare if self.next() % 5 == 4 => before.last().cloned(),
            Fault::DeliversTwice if claims.claimed.is_empty() => before.pop(),
            _ => None,
        };
        before.extend(claims.claimed.iter().cloned());
        claims.claimed.extend(again);
        claims.claimed.truncate(limit);
        Ok(claims)
    }

    async fn settle(&self, claimed: &Claimed, mut settled: Settled) -> Result<bool, Error> {
        let outbox = self.inner.outbox().unwrap();
        match (&mut settled, self.fault) {
            (Settled::Again { after, .. }, Fault::AgainAtOnce) => *after = Duration::ZERO,
            (Settled::Again { counts, .. }, Fault::CountsEveryFailure) => *counts = true,
            (_, Fault::SettlesForAnybody) => {
                let is_same = |holder: &&Claimed| holder.number == claimed.number;
                let holder = self.claimed.lock().unwrap().iter().rev().find(is_same).cloned();
                return match holder {
                    Some(holder) => outbox.settle(&holder, settled).await,
                    None => Ok(false),
                };
            }
            (_, Fault::RefusesLateSettlement) => return Ok(false),
            _ => {}
        }
        outbox.settle(claimed, settled).await
    }

    async fn pass_dead(&self, destination: &str) -> Result<(), Error> {
        self.inner.outbox().unwrap().pass_dead(destination).await
    }

    async fn list(&self, mut query: outbox::Query) -> Result<outbox::Page, Error> {
        match self.fault {
            Fault::MessagesIgnoreState => query.state = None,
            Fault::MessagesIgnoreDestination => query.destination = None,
            _ => {}
        }
        let mut page = self.inner.outbox().unwrap().list(query).await?;
        if self.fault == Fault::KeepsTheLastError {
            for item in page.items.iter_mut().filter(|item| !item.errors.is_empty()) {
                let last = item.errors.len() - 1;
                item.errors.drain(..last);
            }
        }
        Ok(page)
    }

    async fn item(&self, number: u64) -> Result<Option<Item>, Error> {
        let found = self.inner.outbox().unwrap().item(number).await?;
        Ok(found.map(|mut item| {
            match self.fault {
                Fault::ForgetsDelivered => item.provider_id = None,
                Fault::RedriveForgetsErrors => item.errors.clear(),
                _ => {}
            }
            item
        }))
    }

    async fn payload(&self, number: u64) -> Result<Option<Payload>, Error> {
        self.inner.outbox().unwrap().payload(number).await
    }

    async fn redrive(&self, number: u64, mut entry: Entry) -> Result<Changed, Error> {
        if self.fault == Fault::RedriveForgetsTheEntry {
            entry.id = "another".into();
        }
        let changed = self.inner.outbox().unwrap().redrive(number, entry).await?;
        match (self.fault, changed) {
            (Fault::RedrivesAnything, Changed::Refused) => Ok(Changed::Applied),
            (_, changed) => Ok(changed),
        }
    }

    async fn discard(&self, number: u64, entry: Entry) -> Result<Changed, Error> {
        match self.fault {
            Fault::DiscardsNothing => Ok(Changed::Applied),
            _ => self.inner.outbox().unwrap().discard(number, entry).await,
        }
    }

    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error> {
        let (age, limit) = match self.fault {
            Fault::PruneIgnoresAge => (Duration::ZERO, limit),
            Fault::PruneIgnoresLimit => (age, usize::MAX),
            _ => (age, limit),
        };
        self.inner.outbox().unwrap().prune(age, limit).await
    }

    async fn census(&self) -> Result<Census, Error> {
        let mut census = self.inner.outbox().unwrap().census().await?;
        if let (Fault::OldestGrowsYounger, Some(oldest)) = (self.fault, &mut census.oldest) {
            oldest.since = oldest.since.plus(oldest.age);
        }
        Ok(census)
    }
}

/// The wrapper itself breaks nothing.
mod sound {
    use super::{Broken, Fault};

    onlyonce_store::conformance!(async { Broken::new(Fault::None) });
}

/// E07: what is left out must not be promised.
#[test]
#[should_panic(expected = "is left out, and Promises")]
fn a_case_of_what_is_promised_cannot_be_left_out() {
    onlyonce_store::conformance::leave_out(async { Broken::new(Fault::None) }, "reap");
}

/// E07: and what is not promised can be.
#[test]
fn a_case_of_what_is_not_promised_can_be_left_out() {
    onlyonce_store::conformance::leave_out(async { Broken::new(Fault::DeletesByItself) }, "reap");
}

/// Each is caught by the case it is named with.
macro_rules! caught {
    ($($test:ident: $fault:ident by $part:ident::$case:ident)*) => {
        $(
            /// E07
            #[test]
            #[should_panic]
            fn $test() {
                onlyonce_store::conformance::run(
                    async { Broken::new(Fault::$fault) },
                    onlyonce_store::conformance::$part::$case,
                );
            }
        )*
    };
}

caught! {
    inserts_over: InsertsOver by swap::an_insert_over_an_existing_record_is_lost_and_shows_it
    inserts_over_in_a_crowd: InsertsOver by swap::of_many_concurrent_inserts_exactly_one_applies
    inserts_over_its_own: InsertsOver by swap::a_swap_that_is_sent_twice_is_recognised_by_its_revision
    ignores_revision: IgnoresRevision by swap::a_swap_that_expects_an_old_revision_is_lost
    ignores_revision_in_a_crowd: IgnoresRevision by swap::of_many_concurrent_swaps_exactly_one_applies
    ignores_revision_of_writers: IgnoresRevision by swap::no_update_is_lost_among_concurrent_writers
    ignores_revision_of_the_superseded: IgnoresRevision by story::a_superseded_attempt_cannot_complete
    ignores_revision_after_a_renewal: IgnoresRevision by story::a_renewal_in_between_does_not_lose_the_completion
    ignores_revision_of_a_claim: IgnoresRevision by story::accepted_work_is_claimed_once
    ignores_revision_of_an_earlier_use: IgnoresRevision by reap::a_revision_never_comes_back
    inserts_what_is_gone: InsertsWhatIsGone by swap::a_swap_of_a_record_that_is_gone_is_lost
    writes_before_it_compares: WritesBeforeItCompares by swap::a_lost_swap_changes_nothing
    looks_then_writes: LooksThenWrites by swap::of_many_concurrent_swaps_exactly_one_applies
    looks_then_inserts: LooksThenWrites by swap::of_many_concurrent_inserts_exactly_one_applies
    mints_revisions: MintsRevisions by swap::the_revision_is_the_one_the_caller_minted
    revisions_are_signed: RevisionsAreSigned by swap::the_revision_is_the_one_the_caller_minted
    forgets_own_revision: ForgetsOwnRevision by swap::a_swap_that_is_sent_twice_is_recognised_by_its_revision
    lost_shows_nothing: LostShowsNothing by swap::an_insert_over_an_existing_record_is_lost_and_shows_it
    mixes_up_answers: MixesUpAnswers by swap::records_of_different_keys_do_not_disturb_each_other
    folds_case: FoldsCase by swap::keys_that_look_alike_stay_apart
    ignores_scope: IgnoresScope by swap::keys_of_another_scope_stay_apart
    prepares_afresh: PreparesAfresh by swap::preparing_again_and_at_once_changes_nothing
    loses_a_write: AppliesWithoutWriting by agreement::random_operations_agree_with_memory
    stamps_too_early: StampsTooEarly by swap::an_absent_record_is_inserted
    stamps_by_another_clock: StampsTooEarly by clock::moments_after_the_write_are_stamped_by_the_stores_clock
    shows_another_clock: ShowsAnotherClock by clock::moments_after_the_write_are_stamped_by_the_stores_clock
    clock_runs_backwards: ClockRunsBackwards by clock::now_never_runs_backwards
    rounds_to_millis: RoundsToMillis by clock::known_moments_are_kept_to_the_microsecond
    restamps_on_look: RestampsOnLook by clock::a_look_does_not_restamp
    loses_evidence: LosesEvidence by record::every_field_of_every_state_survives
    loses_label: LosesLabel by record::random_records_survive
    loses_responses: LosesResponses by story::a_completed_attempt_is_replayed
    loses_what_was_found: LosesResponses by story::a_verdict_settles_what_nobody_knew
    keeps_created_at: KeepsCreatedAt by story::an_expired_key_runs_anew
    headers_are_text: HeadersAreText by record::header_values_that_are_not_text_survive
    bodies_end: BodiesEndAt64KiB by record::bodies_of_any_size_survive
    reaps_nothing: ReapsNothing by reap::what_has_finished_and_expired_is_deleted
    reaps_nothing_forgotten: ReapsNothing by story::a_forgotten_record_is_gone_after_reaping
    reap_ignores_expiry: ReapIgnoresExpiry by reap::what_has_not_expired_is_kept
    reap_ignores_state: ReapIgnoresState by reap::running_pending_and_unknown_records_are_never_deleted
    reap_is_due: ReapIsDue by reap::a_retryable_record_that_is_due_but_not_expired_is_kept
    reap_ignores_limit: ReapIgnoresLimit by reap::no_more_than_the_limit_is_deleted
    reap_miscounts: ReapMiscounts by reap::no_more_than_the_limit_is_deleted
    reap_disagrees: ReapMiscounts by agreement::random_operations_agree_with_memory
    reap_looks_then_deletes: ReapLooksThenDeletes by reap::a_key_that_is_used_again_is_never_deleted
    scan_ignores_state: ScanIgnoresState by scan::a_listing_by_state_shows_that_state_only
    scan_keeps_the_first_state: ScanKeepsTheFirstState by scan::a_listing_by_state_shows_that_state_only
    scan_ignores_scope: ScanIgnoresScope by scan::a_listing_by_scope_shows_that_scope_only
    scan_skips: ScanSkips by scan::pages_show_each_record_once
    scan_skips_due: ScanSkips by scan::pages_of_what_is_due_show_each_record_once
    scan_repeats: ScanRepeats by scan::pages_show_each_record_once
    scan_never_ends: ScanNeverEnds by scan::pages_show_each_record_once
    scan_promises_more: ScanPromisesMore by scan::an_empty_store_has_one_empty_page
    scan_ignores_due: ScanIgnoresDue by scan::what_is_not_due_is_not_shown
    scan_hides_due: ScanHidesDue by story::the_sweeper_finds_a_lapsed_lease
    scan_hides_the_lost: ScanHidesDue by story::the_late_truth_counts
    scan_is_out_of_order: ScanIsOutOfOrder by scan::what_is_due_comes_in_the_order_it_fell_due
    scan_mixes_up_the_unknown: ScanIsOutOfOrder by scan::unknown_records_come_oldest_first
    scan_mixes_up_the_pending: ScanIsOutOfOrder by scan::pending_records_come_oldest_first
    scan_ignores_route: ScanIgnoresRoute by scan::a_listing_by_route_shows_that_route_only
    scan_takes_any_cursor: ScanTakesAnyCursor by scan::a_cursor_of_somebody_elses_is_refused
    counts_one_state: CountsOneState by scan::records_are_counted_by_their_state
    scan_forgets_deadlines: ScanForgetsDeadlines by scan::what_is_due_follows_the_last_write
    epoch_never_rises: EpochNeverRises by epoch::an_epoch_that_was_raised_is_seen_by_the_next_look
    epoch_rises_once: EpochRisesOnce by epoch::of_many_who_raise_it_each_sees_a_higher_one
    epoch_rises_by_itself: EpochRisesByItself by epoch::the_epoch_stays_until_it_is_raised
    epoch_counts: EpochCounts by epoch::an_epoch_is_never_behind_the_clock_it_was_raised_at
    name_changes: NameChanges by epoch::a_store_keeps_its_name
    drops_messages: DropsMessages by outbox::messages_are_stored_with_an_applied_swap
    sends_what_was_lost: SendsWhatWasLost by outbox::messages_of_a_lost_swap_are_not_stored
    has_no_outbox_and_says_nothing: HasNoOutboxAndSaysNothing by outbox::a_store_without_an_outbox_refuses_messages
    claims_what_is_claimed: ClaimsWhatIsClaimed by outbox::a_claimed_message_is_nobody_elses_until_the_claim_lapses
    claims_lapse_early: ClaimsLapseEarly by outbox::a_claimed_message_is_nobody_elses_until_the_claim_lapses
    settles_for_anybody: SettlesForAnybody by outbox::a_lapsed_claim_is_fenced
    settles_for_anybody_together: SettlesForAnybody by outbox::deliveries_that_end_together_are_each_settled
    refuses_late_settlement:
        RefusesLateSettlement by outbox::a_late_settlement_counts_while_nobody_else_has_the_message
    again_at_once: AgainAtOnce by outbox::a_failed_delivery_comes_again_after_its_pause
    ignores_delay: IgnoresDelay by outbox::a_message_with_a_delay_waits_for_it
    forgets_delivered: ForgetsDelivered by outbox::a_delivered_message_keeps_the_providers_id
    delivers_twice: DeliversTwice by outbox::a_delivered_message_never_comes_again
    keeps_the_last_error: KeepsTheLastError by outbox::dead_letters_keep_every_error
    relays_share: RelaysShare by outbox::concurrent_relays_never_share_a_message
    claims_any_destination: ClaimsAnyDestination by outbox::no_more_is_claimed_than_is_wanted_of_each_destination
    claims_too_many: ClaimsTooMany by outbox::no_more_is_claimed_than_is_wanted_of_each_destination
    ignores_groups: IgnoresGroups by outbox::of_a_group_one_is_claimed_at_a_time_in_the_order_of_numbers
    ignores_groups_that_wait: IgnoresGroups by outbox::a_message_holds_up_those_behind_it_and_nobody_else
    ignores_groups_in_a_crowd: IgnoresGroups by outbox::a_discarded_message_is_gone_and_frees_its_group
    reverses_groups: ReversesGroups by outbox::of_a_group_one_is_claimed_at_a_time_in_the_order_of_numbers
    never_blocks: NeverBlocks by outbox::a_dead_letter_blocks_its_group_or_is_passed
    always_blocks: AlwaysBlocks by outbox::a_dead_letter_blocks_its_group_or_is_passed
    counts_every_failure: CountsEveryFailure by outbox::only_failures_that_count_are_counted
    redrives_anything: RedrivesAnything by outbox::a_redriven_dead_letter_keeps_its_key_and_its_place
    redrive_forgets_the_entry: RedriveForgetsTheEntry by outbox::a_redriven_dead_letter_keeps_its_key_and_its_place
    redrive_forgets_errors: RedriveForgetsErrors by outbox::a_redriven_dead_letter_keeps_its_key_and_its_place
    discards_nothing: DiscardsNothing by outbox::a_discarded_message_is_gone_and_frees_its_group
    messages_ignore_state: MessagesIgnoreState by outbox::messages_are_listed_by_state_and_destination
    messages_ignore_destination: MessagesIgnoreDestination by outbox::messages_are_listed_by_state_and_destination
    oldest_grows_younger: OldestGrowsYounger by outbox::the_oldest_message_counts_from_when_it_was_first_due
    prune_ignores_age: PruneIgnoresAge by outbox::only_delivered_messages_are_pruned_and_by_age
    prune_ignores_limit: PruneIgnoresLimit by outbox::only_delivered_messages_are_pruned_and_by_age
    loses_history: LosesHistory by record::a_long_history_survives
    loses_what_was_said: LosesHistory by story::a_verdict_settles_what_nobody_knew
    scan_ignores_search: ScanIgnoresSearch by search::a_search_finds_a_key_and_the_beginning_of_one
    scan_ignores_search_for_a_label: ScanIgnoresSearch by search::a_search_finds_a_label
    scan_ignores_search_among_filters: ScanIgnoresSearch by search::a_search_goes_with_every_other_filter
    scan_ignores_odd_text: ScanIgnoresSearch by search::a_search_takes_its_text_as_it_is
    scan_ignores_dead_letters: ScanIgnoresDeadLetters by search::dead_letters_are_listed_alone
    search_folds_case: SearchFoldsCase by search::a_search_finds_a_key_and_the_beginning_of_one
    search_is_exact: SearchIsExact by search::a_search_finds_a_scope_in_hex
    search_repeats_ids: SearchRepeatsIds by search::a_search_finds_an_id_in_hex
    drops_audit: DropsAudit by audit::an_entry_is_written_with_its_change
    audits_what_was_lost: AuditsWhatWasLost by audit::an_entry_of_a_lost_swap_is_not_written
    audits_every_time: AuditsEveryTime by audit::an_entry_that_is_sent_twice_is_written_once
    audit_changes_ids: AuditsEveryTime by audit::an_entry_can_be_written_by_itself
    audit_forgets_reason: AuditForgetsReason by audit::an_entry_is_written_with_its_change
    audit_is_oldest_first: AuditIsOldestFirst by audit::the_log_comes_newest_first
    audit_ignores_filters: AuditIgnoresFilters by audit::the_log_is_narrowed_by_every_filter
    audit_ignores_time: AuditIgnoresTime by audit::the_log_is_narrowed_by_time
    audit_pages_by_number:
        AuditPagesByNumber by audit::pages_of_the_log_show_each_entry_once_while_more_are_written
    audit_takes_any_cursor: AuditTakesAnyCursor by audit::a_foreign_cursor_of_the_log_is_refused
    audit_ignores_age: AuditIgnoresAge by audit::entries_are_deleted_by_age
    audit_reap_ignores_limit: AuditReapIgnoresLimit by audit::entries_are_deleted_by_age
    audit_goes_with_records: AuditGoesWithRecords by audit::entries_outlive_their_records
    erase_ignores_scope: EraseIgnoresScope by erase::an_erased_scope_leaves_no_expired_record
    erase_deletes_nothing: EraseDeletesNothing by erase::an_erased_scope_leaves_no_expired_record
    erase_disagrees: EraseDeletesNothing by agreement::random_operations_agree_with_memory
    erase_ignores_expiry: EraseIgnoresExpiry by erase::erasing_leaves_what_has_not_expired
    erase_ignores_limit: EraseIgnoresLimit by erase::erasing_deletes_no_more_than_the_limit
    erase_leaves_labels: EraseLeavesLabels by erase::erasing_takes_keys_and_labels_out_of_the_log
    alive_ignores_scope: AliveIgnoresScope by alive::records_that_have_not_expired_are_counted_by_scope_and_in_all
    alive_ignores_expiry: AliveIgnoresExpiry by alive::a_record_that_expires_is_no_longer_counted
    alive_ignores_limit: AliveIgnoresLimit by alive::records_are_counted_up_to_the_limit
    counting_loses_records: CountingLosesRecords by alive::preparing_to_count_again_and_at_once_changes_nothing
    erase_leaves_the_archive: EraseLeavesTheArchive by erase::erasing_reaches_the_archive
    loses_results: LosesResults by results::a_result_is_written_with_its_recovery_point
    loses_results_with_a_record: LosesResults by results::results_go_with_their_record
    keeps_results: KeepsResults by results::results_belong_to_one_use_of_a_key
    results_are_anybodys: ResultsAreAnybodys by results::results_belong_to_one_use_of_a_key
    results_of_lost_swaps: ResultsOfLostSwaps by results::a_result_of_a_lost_swap_is_not_written
    loses_requests: LosesRequests by accepted::a_request_is_stored_with_its_record
    loses_requests_with_a_record: LosesRequests by accepted::a_request_goes_with_its_record
    keeps_requests: KeepsRequests by accepted::a_request_goes_with_the_write_that_ends_the_work
    requests_are_anybodys: RequestsAreAnybodys by accepted::a_request_belongs_to_one_use_of_a_key
    requests_of_lost_swaps: RequestsOfLostSwaps by accepted::a_request_of_a_lost_swap_is_not_stored
    requests_are_not_counted: RequestsAreNotCounted by accepted::a_request_is_stored_with_its_record
    reap_takes_half_done_work: ReapIgnoresExpiry by results::half_done_work_is_never_deleted
    erase_blanks_too_early: EraseBlanksTooEarly by erase::erasing_takes_keys_and_labels_out_of_the_log
}
