//! What happened to a record that is out of the ordinary: doubt, questions, statements, decisions of people.
//!
//! An ordinary record has none of it. Entries are made by the rules ([`crate::machine`]) and written in the swap of the
//! transition they tell of, so each is there if and only if that transition is. They are kept as long as the record.

use std::sync::Arc;

use crate::record::{Source, Token, Verdict};
use crate::time::Timestamp;

/// How many of the first entries are kept.
pub const FIRST_KEPT: usize = 8;
/// How many of the last entries are kept.
pub const LAST_KEPT: usize = 56;
/// How many tokens of earlier attempts are kept.
pub const TOKENS_KEPT: usize = 16;
/// The longest text of an entry, in characters.
pub const TEXT_CHARS_MAX: usize = 1_000;

/// The history of one use of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The first [`FIRST_KEPT`] and the last [`LAST_KEPT`] entries, and among them that of the completion.
    pub entries: Vec<Entry>,
    /// How many entries between them were left out.
    pub left_out: u32,
    /// The tokens of earlier attempts, so that a statement about one is told from a statement about an earlier use of the
    /// key. The last [`TOKENS_KEPT`].
    pub tokens: Vec<Token>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, by the store's clock at the look on which it was decided.
    pub at: Timestamp,
    /// Which attempt it is about.
    pub attempt: u32,
    /// What it was.
    pub what: What,
    /// Who brought it about.
    pub by: Source,
    /// What was said, where somebody said something.
    pub said: Option<Said>,
    /// It says otherwise than the record, or than what was believed before.
    pub contradicts: bool,
    /// The operator's name.
    pub who: Option<Arc<str>>,
    /// The webhook's name in the settings.
    pub source: Option<Arc<str>>,
    /// More about it, for people.
    pub detail: Option<Arc<str>>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, in the order in which they are numbered in stored records.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word, as the API has it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// What an entry tells of.
    What {
        /// An attempt was reserved.
        Attempt = "attempt",
        /// Nobody came back for the attempt in time.
        Lapsed = "lapsed",
        /// It became unknown whether the work ran.
        Unknown = "unknown",
        /// A probe was asked.
        Probe = "probe",
        /// A webhook came.
        Webhook = "webhook",
        /// An operator gave a verdict.
        Verdict = "verdict",
        /// The reconciler gave up asking.
        DeadLetter = "dead_letter",
        /// The work is done.
        Completed = "completed",
        /// The work may be tried again.
        Retryable = "retryable",
        /// An attempt was overruled while it ran.
        Superseded = "superseded",
        /// An operator insisted.
        Forced = "forced",
    }
}

words! {
    /// What was said about the work.
    Said {
        /// It happened.
        Happened = "happened",
        /// It did not happen.
        DidNotHappen = "did-not-happen",
        /// It did not happen and never will.
        DidNotHappenFinally = "did-not-happen-final",
        /// Nobody can say yet.
        Unknown = "unknown",
        /// Nothing that counts here.
        Ignored = "ignored",
        /// The probe gave no usable answer.
        Failed = "failed",
    }
}

impl From<&Verdict> for Said {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Happened(_) => Self::Happened,
            Verdict::DidNotHappen { never_will: false } => Self::DidNotHappen,
            Verdict::DidNotHappen { never_will: true } => Self::DidNotHappenFinally,
            Verdict::StillUnknown => Self::Unknown,
        }
    }
}

impl Entry {
    /// An entry without words.
    pub fn new(at: Timestamp, attempt: u32, what: What, by: Source) -> Self {
        Self { at, attempt, what, by, said: None, contradicts: false, who: None, source: None, detail: None }
    }

    /// The same, with more about it.
    #[must_use]
    pub fn with_detail(mut self, detail: &str) -> Self {
        self.detail = Some(shortened(detail));
        self
    }
}

/// Text of somebody else's, no longer than a record has room for.
pub fn shortened(text: &str) -> Arc<str> {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => text[..end].into(),
        None => text.into(),
    }
}

impl History {
    /// Whether nothing out of the ordinary has happened.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tokens.is_empty()
    }

    /// What was added since the record had this earlier history; of very much, only what was kept.
    pub fn since(&self, earlier: &Self) -> &[Entry] {
        let added = |history: &Self| history.entries.len() + history.left_out as usize;
        let new = added(self).saturating_sub(added(earlier)).min(self.entries.len());
        &self.entries[self.entries.len() - new..]
    }

    /// Adds an entry; of too many, one in the middle is left out. Never the one that tells when the work was done: a record
    /// without it was completed by the write that its columns tell of.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        if self.entries.len() > FIRST_KEPT + LAST_KEPT {
            let is_completion = self.entries[FIRST_KEPT].what == What::Completed;
            self.entries.remove(if is_completion { FIRST_KEPT + 1 } else { FIRST_KEPT });
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// Remembers the token of an attempt that another one follows.
    pub(crate) fn push_token(&mut self, token: Token) {
        self.tokens.push(token);
        if self.tokens.len() > TOKENS_KEPT {
            self.tokens.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(attempt: u32) -> Entry {
        Entry::new(Timestamp::from_micros(0), attempt, What::Probe, Source::Probe)
    }

    /// U09
    #[test]
    fn the_first_and_the_last_entries_are_kept_and_the_others_counted() {
        let mut history = History::default();
        (0..100).for_each(|attempt| history.push(entry(attempt)));
        let kept: Vec<u32> = history.entries.iter().map(|entry| entry.attempt).collect();
        let expected: Vec<u32> = (0..8).chain(44..100).collect();
        assert_eq!(kept, expected);
        assert_eq!(history.left_out, 36);
    }

    /// U09
    #[test]
    fn what_is_new_is_told_also_of_a_history_that_is_full() {
        let mut history = History::default();
        for number in 0..100 {
            let earlier = history.clone();
            assert_eq!(history.since(&earlier), []);
            history.push(entry(number));
            history.push(entry(number + 1));
            let new: Vec<u32> = history.since(&earlier).iter().map(|entry| entry.attempt).collect();
            assert_eq!(new, [number, number + 1]);
        }
    }

    #[test]
    fn the_last_tokens_are_kept() {
        let mut history = History::default();
        (0..20).for_each(|number| history.push_token(Token([number; 16])));
        assert_eq!(history.tokens.first(), Some(&Token([4; 16])));
        assert_eq!(history.tokens.len(), TOKENS_KEPT);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(TEXT_CHARS_MAX + 1);
        assert_eq!(shortened(&text).chars().count(), TEXT_CHARS_MAX);
        assert_eq!(&*shortened("short"), "short");
    }
}
