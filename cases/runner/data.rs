//! The cases as data. `cases/README.md` documents each word; an unknown word is an error, so that a typo cannot disable an
//! expectation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Table;

use super::payload::Payload;
use super::store::Engine;

/// Where the data lives.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../cases")
}

/// Every case of every file, in the order of the file names.
pub(crate) fn all() -> Vec<Case> {
    let entries = std::fs::read_dir(folder()).expect("the folder of the cases is part of the repository");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths.iter().flat_map(parse).collect()
}

fn parse(path: &PathBuf) -> Vec<Case> {
    let text = std::fs::read_to_string(path).expect("a file of the repository is readable");
    let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.case
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) id: String,
    /// One sentence; it becomes part of the test's name.
    pub(crate) what: String,
    /// Ids of `docs/requirements.md`.
    #[serde(default)]
    pub(crate) proves: Vec<String>,
    pub(crate) on: Vec<Suite>,
    /// Why it is skipped everywhere.
    pub(crate) skip: Option<String>,
    /// Why it does not apply to an engine.
    #[serde(default, rename = "not-on")]
    pub(crate) not_on: BTreeMap<Engine, String>,
    /// Why it differs from the list it came from.
    pub(crate) differs: Option<String>,
    /// Settings by their names, over the defaults.
    #[serde(default)]
    pub(crate) setup: Table,
    /// The same of `[limits]`.
    #[serde(default)]
    pub(crate) limits: Table,
    /// The same for one path; over `setup`.
    #[serde(default)]
    pub(crate) routes: BTreeMap<String, Table>,
    #[serde(default = "one")]
    pub(crate) nodes: usize,
    #[serde(default, rename = "step")]
    pub(crate) steps: Vec<Step>,
}

/// Which suites a case is for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Suite {
    Layer,
    Gateway,
}

/// One step: a request, or another event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Step {
    pub(crate) name: Option<String>,
    pub(crate) send: Option<String>,
    pub(crate) key: Option<OneOrMany<String>>,
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(default)]
    pub(crate) pad_headers: usize,
    pub(crate) caller: Option<Caller>,
    pub(crate) body: Option<Payload>,
    #[serde(default)]
    pub(crate) chunked: bool,
    #[serde(default = "http1")]
    pub(crate) http: u8,
    #[serde(default)]
    pub(crate) node: Option<usize>,
    #[serde(default)]
    pub(crate) times: Option<usize>,
    #[serde(default)]
    pub(crate) parallel: bool,
    #[serde(default)]
    pub(crate) background: bool,
    pub(crate) hang_up: Option<HangUp>,
    pub(crate) again_while: Option<String>,
    #[serde(default)]
    pub(crate) upstream: Order,
    pub(crate) expect: Option<Expect>,

    pub(crate) raw: Option<String>,
    pub(crate) raw_pad: Option<usize>,
    pub(crate) vectors: Option<String>,
    pub(crate) advance: Option<String>,
    pub(crate) advance_node: Option<String>,
    pub(crate) open: Option<String>,
    pub(crate) until: Option<Until>,
    pub(crate) store: Option<StoreMode>,
    #[serde(default)]
    pub(crate) reap: bool,
    pub(crate) join: Option<String>,
    #[serde(default)]
    pub(crate) stop: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The caller. A1 and A2 are two credentials of one tenant.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) enum Caller {
    #[default]
    T1,
    T2,
    A1,
    A2,
    #[serde(rename = "none")]
    Nobody,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HangUp {
    MidBody,
    BeforeAnswer,
}

/// The store's mode from this step on.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreMode {
    #[default]
    Up,
    Down,
    Stall,
    LoseAnswers,
    Full,
    Stale,
    Flushed,
}

/// What the upstream does with the requests of this step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Order {
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(default)]
    pub(crate) pad_headers: usize,
    pub(crate) body: Option<Payload>,
    /// Answers once this gate is open.
    pub(crate) hold: Option<String>,
    #[serde(default)]
    pub(crate) panic: bool,
    /// The body ends early after this many bytes.
    pub(crate) break_after: Option<usize>,
    #[serde(default)]
    pub(crate) trailers: Vec<(String, String)>,
    /// Gateway only: 1xx answers first, no answer at all, or these raw bytes.
    #[serde(default)]
    pub(crate) interim: Vec<u16>,
    #[serde(default)]
    pub(crate) close: bool,
    #[serde(default)]
    pub(crate) unreachable: bool,
    pub(crate) raw: Option<String>,
}

impl Order {
    /// Whether it needs an upstream behind a socket.
    pub(crate) fn needs_a_wire(&self) -> bool {
        self.close || self.unreachable || self.raw.is_some() || !self.interim.is_empty()
    }
}

/// What to wait for before the step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Until {
    pub(crate) exec: Option<usize>,
    /// This many requests of the step `of` are sent or answered; of all background steps, if none is named.
    pub(crate) sent: Option<usize>,
    pub(crate) answered: Option<usize>,
    pub(crate) of: Option<String>,
    pub(crate) states: Option<BTreeMap<String, usize>>,
    pub(crate) store_calls: Option<usize>,
}

/// What must hold after the step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Expect {
    pub(crate) status: Option<OneOrMany<u16>>,
    pub(crate) code: Option<String>,
    pub(crate) replay_of: Option<String>,
    pub(crate) exec: Option<usize>,
    #[serde(default)]
    pub(crate) header: BTreeMap<String, OneOrMany<String>>,
    #[serde(default)]
    pub(crate) present: Vec<String>,
    #[serde(default)]
    pub(crate) absent: Vec<String>,
    pub(crate) body: Option<Payload>,
    #[serde(default)]
    pub(crate) contains: Vec<String>,
    pub(crate) no_answer: Option<bool>,
    pub(crate) interim: Option<Vec<u16>>,
    pub(crate) trailers: Option<Vec<(String, String)>>,
    pub(crate) tally: Option<BTreeMap<String, usize>>,
    pub(crate) marked: Option<usize>,
    pub(crate) records: Option<usize>,
    pub(crate) states: Option<BTreeMap<String, usize>>,
    pub(crate) store_calls: Option<usize>,
    pub(crate) expires_in: Option<String>,
    #[serde(default)]
    pub(crate) date_is_now: bool,
    pub(crate) within: Option<String>,
    #[serde(default)]
    pub(crate) saw: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) saw_not: Vec<String>,
    pub(crate) saw_body: Option<Payload>,
    #[serde(default)]
    pub(crate) never_stored: Vec<String>,
}

fn one() -> usize {
    1
}

fn http1() -> u8 {
    1
}
