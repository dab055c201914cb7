//! Random input that can be repeated: it all follows from the seed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::{Entry, History, Said, What};
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Accepted, Asking, Calling, Draft, Effects, Evidence, Progress, Reason, Record, Response, Source, State,
    Terms, Token, TraceId, Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};

/// Longest text, most headers and most bytes of a random record: enough for lengths of more than one byte.
const TEXT_CHARS_MAX: u64 = 200;
const HEADERS_MAX: u64 = 5;
const BODY_BYTES_MAX: u64 = 700;
/// Most entries and tokens of a random history.
const ENTRIES_MAX: u64 = 5;
const TOKENS_MAX: u64 = 4;

/// A random number generator (SplitMix64), and records made with it.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let index = usize::try_from(self.below(from.len() as u64)).expect("an index of a slice");
        from[index].clone()
    }

    /// True in one of `times` cases.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random draft that can be stored; its moments may be anywhere.
    pub fn draft(&mut self) -> Box<Draft> {
        let mut draft = Box::new(Record {
            scope: Scope::stored(self.array(), self.option(Self::text)),
            key: Key::stored(&format!("k{}", self.text())),
            route: self.option(Self::text),
            fingerprint: self.fingerprint(),
            terms: self.terms(),
            attempt: self.u32(),
            token: Token(self.array()),
            relies_on_memory: self.one_in(2),
            created_at: self.stamp(),
            began_at: self.stamp(),
            written_at: When::WRITE,
            progress: self.progress(),
            evidence: None,
            accepted: None,
            history: self.history(),
            trace: self.option(|random| TraceId(random.array())),
            state: self.state(),
        });
        // Neither evidence of a running attempt nor an acceptance is kept once the record is completed.
        if !matches!(draft.state, State::Completed { .. }) {
            draft.evidence = self.option(Self::evidence);
            draft.accepted = self.option(|random| Accepted {
                until: Timestamp::from_micros(1_700_000_000_000_000 + i64::from(random.u32())),
                pause_max: random.span(),
            });
        }
        draft
    }

    fn fingerprint(&mut self) -> Fingerprint {
        Fingerprint { version: self.byte(), raw: self.array(), canonical: self.option(Self::array) }
    }

    fn terms(&mut self) -> Terms {
        Terms {
            effects: self.effects(),
            lease: self.span(),
            deadline: self.span(),
            horizon: self.span(),
            retention: self.span(),
            downstream_retention: self.span(),
            reconcile_first: self.option(Self::span),
        }
    }

    fn progress(&mut self) -> Progress {
        Progress {
            recovery_point: self.option(Self::text),
            calling: self.option(|random| Calling { phase: random.text(), effects: random.effects() }),
            found: self.option(Self::response),
        }
    }

    fn evidence(&mut self) -> Box<Evidence> {
        let verdict = match self.below(3) {
            0 => Verdict::Happened(self.option(Self::response)),
            1 => Verdict::DidNotHappen { never_will: self.one_in(2) },
            _ => Verdict::StillUnknown,
        };
        Box::new(Evidence {
            verdict,
            by: self.source(),
            at: self.timestamp(),
            attempt: self.u32(),
            source: self.option(Self::text),
        })
    }

    /// Empty for every second record, as for nearly all in practice.
    fn history(&mut self) -> History {
        if self.one_in(2) {
            return History::default();
        }
        let (entries, tokens) = (self.below(ENTRIES_MAX), self.below(TOKENS_MAX));
        History {
            entries: (0..entries).map(|_| self.entry()).collect(),
            left_out: self.u32(),
            tokens: (0..tokens).map(|_| Token(self.array())).collect(),
        }
    }

    fn entry(&mut self) -> Entry {
        Entry {
            at: self.timestamp(),
            attempt: self.u32(),
            what: self.pick(What::ALL),
            by: self.source(),
            said: self.option(|random| random.pick(Said::ALL)),
            contradicts: self.one_in(2),
            who: self.option(Self::text),
            source: self.option(Self::text),
            detail: self.option(Self::text),
        }
    }

    fn asking(&mut self) -> Asking {
        Asking { answers: self.u32(), failures: self.u32(), anew_at: self.option(Self::timestamp) }
    }

    fn state(&mut self) -> State<When> {
        match self.below(5) {
            0 => State::Pending { expires_at: self.moment() },
            1 => State::Running { lapses_at: self.moment() },
            2 => State::Completed {
                response: self.option(Self::response),
                by: self.source(),
                expires_at: self.moment(),
            },
            3 => State::Retryable {
                retry_after: self.option(Self::span),
                expires_at: self.moment(),
                stuck_since: self.option(Self::stamp),
            },
            _ => State::Unknown {
                reason: self.reason(),
                since: self.stamp(),
                asking: self.asking(),
                ask_at: self.option(Self::moment),
                dead_letter: self.one_in(2),
            },
        }
    }

    fn response(&mut self) -> Arc<Response> {
        let headers = self.below(HEADERS_MAX);
        Arc::new(Response {
            status: u16::try_from(self.below(900) + 100).expect("below 1000"),
            headers: (0..headers).map(|_| self.header()).collect(),
            body: self.bytes(BODY_BYTES_MAX),
        })
    }

    fn header(&mut self) -> (HeaderName, HeaderValue) {
        let name = self.pick(&["content-type", "x-request-id", "etag", "x"]);
        // Everything but control characters: header values need not be text.
        let value: Vec<u8> =
            self.bytes(40).iter().map(|byte| if is_control(*byte) { b'\t' } else { *byte }).collect();
        (HeaderName::from_static(name), HeaderValue::from_bytes(&value).expect("no control characters"))
    }

    fn effects(&mut self) -> Effects {
        self.pick(&[Effects::Local, Effects::Keyed, Effects::Queryable, Effects::Opaque])
    }

    fn source(&mut self) -> Source {
        self.pick(&[Source::Attempt, Source::Probe, Source::Webhook, Source::Operator, Source::Sweeper])
    }

    fn reason(&mut self) -> Reason {
        let status = Reason::Status(u16::try_from(self.below(65_536)).expect("16 bits"));
        self.pick(&[
            Reason::Lapsed,
            Reason::Deadline,
            Reason::Panicked,
            Reason::ConnectionLost,
            Reason::AnswerBroken,
            status,
            Reason::Said,
            Reason::Stopped,
            Reason::DownstreamForgot,
            Reason::Changed,
        ])
    }

    /// The moment of the write, or an earlier one.
    fn stamp(&mut self) -> When {
        match self.moment() {
            When::At(at) => When::At(at),
            When::AfterWrite(_) => When::WRITE,
        }
    }

    /// Before, around or long after today; or a span after the write.
    fn moment(&mut self) -> When {
        match self.below(4) {
            0 => When::WRITE,
            1 => When::AfterWrite(self.span()),
            2 => When::At(Timestamp::from_micros(1_700_000_000_000_000 + i64::from(self.u32()))),
            _ => When::At(Timestamp::from_micros(i64::from(self.u32().cast_signed()))),
        }
    }

    fn timestamp(&mut self) -> Timestamp {
        self.moment().stamp(Timestamp::from_micros(1_700_000_000_000_000))
    }

    /// In microseconds: no store promises a finer clock.
    fn span(&mut self) -> Duration {
        match self.below(3) {
            0 => Duration::from_micros(self.below(2_000_000)),
            1 => Duration::from_secs(self.below(100_000)),
            _ => Duration::from_secs(self.below(100) * 366 * 24 * 3600),
        }
    }

    fn text(&mut self) -> Arc<str> {
        let length = self.below(TEXT_CHARS_MAX);
        let characters = ['a', 'Z', '9', '-', '\'', '\\', '%', '_', 'é', '猫', '🔑', ' '];
        (0..length).map(|_| self.pick(&characters)).collect::<String>().into()
    }

    fn bytes(&mut self, end: u64) -> Bytes {
        let length = self.below(end);
        (0..length).map(|_| self.byte()).collect()
    }

    fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(2).then(|| some(self))
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }

    fn u32(&mut self) -> u32 {
        let bits = self.below(32);
        u32::try_from(self.number() >> 32 >> bits).expect("32 bits")
    }
}

fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}
