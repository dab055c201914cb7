//! The arguments of the operators' commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Settings;
use crate::config::Sources;

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// List records
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Show one record: how it stands, what happened to it, and what can be done about it
    ///
    /// Takes a scope and a key, or what a log line has as record=: the beginning of the record's id.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Show),
    /// Say what became of work whose outcome nobody knows
    #[command(after_help = VERDICT_EXAMPLES)]
    Verdict(Verdict),
    /// Make a key as if it had never been used
    ///
    /// A retry runs the work again. So a record that runs, or whose outcome is unknown, is only forgotten with --force.
    #[command(after_help = FORGET_EXAMPLES)]
    Forget(Forget),
    /// Forget every record of a scope, and erase what is left of them
    ///
    /// Records that run, or whose outcome is unknown, are kept unless forced. The audit log keeps that something was done, by whom
    /// and when, and loses the keys. Cut short, it is given again and goes on. Exits 0 also where something was kept.
    #[command(after_help = PURGE_EXAMPLES)]
    Purge(Purge),
}

impl Keys {
    /// Where it is to be done.
    pub(crate) fn place(&self) -> &Where {
        match self {
            Self::List(arguments) => &arguments.place,
            Self::Show(arguments) => &arguments.place,
            Self::Verdict(arguments) => &arguments.place,
            Self::Forget(arguments) => &arguments.place,
            Self::Purge(arguments) => &arguments.place,
        }
    }
}

/// Which gateway or which store, and for whom the answer is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Where {
    /// A gateway's admin port [default: admin of the settings, http://127.0.0.1:8081]
    #[arg(long, value_name = "URL", conflicts_with = "store", help_heading = "Where")]
    pub(crate) admin: Option<String>,
    /// Where the token for it is, if it has any: env:NAME or file:PATH
    #[arg(long, value_name = "PLACE", conflicts_with = "store", help_heading = "Where")]
    pub(crate) token: Option<String>,
    /// The store itself, without a gateway: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "URL", help_heading = "Where")]
    pub(crate) store: Option<String>,
    /// The gateway's settings file, of which only admin counts here
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Where {
    /// Where the admin address comes from unless it is named.
    pub(crate) fn sources(&self) -> Sources {
        Settings { config: self.config.clone(), ..Settings::default() }.sources()
    }
}

/// Why something is changed, by whom, and how insistently.
#[derive(Args, Clone, Debug)]
pub(crate) struct Change {
    /// Why, for the audit log; at most 1,000 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Insist, where it would be refused: see below
    #[arg(long)]
    pub(crate) force: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Your name for the audit log, beside that of the token [default: the user's name]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) claims: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only records in this state
    #[arg(long, value_name = "STATE", value_parser = ["pending", "running", "completed", "retryable", "unknown"])]
    pub(crate) state: Option<String>,
    /// Only records of this scope, in hex, or the beginning of one from 8 digits
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only records of this route, by its match text
    #[arg(long, value_name = "MATCH")]
    pub(crate) route: Option<String>,
    /// A key or its beginning, a token, a label, the beginning of a scope or of a record's id
    #[arg(long, value_name = "TEXT")]
    pub(crate) query: Option<String>,
    /// Only dead letters: unknown outcomes that the probe was asked about for long enough
    #[arg(long)]
    pub(crate) dead: bool,
    /// At most so many; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The scope in hex, or its beginning from 8 digits; or alone, what a log line has as record=
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// The client's key
    #[arg(value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Write the stored answer's body to this file, or - for stdout alone; it is in the audit log who did
    #[arg(long, value_name = "FILE")]
    pub(crate) response: Option<PathBuf>,
    /// Your name for the audit log, beside that of the token [default: the user's name]
    #[arg(long = "as", value_name = "NAME", requires = "response")]
    pub(crate) claims: Option<String>,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// What a person says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Word {
    /// The work is done: retries get the answer that is given here, and nothing runs again
    Happened,
    /// The work was not done: the next retry runs it
    DidNotHappen,
    /// Nobody can say yet: the probe is asked at once
    Unknown,
}

impl Word {
    /// As the API has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Happened => "happened",
            Self::DidNotHappen => "did-not-happen",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Verdict {
    /// The scope in hex, or its beginning from 8 digits
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// The client's key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// What became of the work
    #[arg(value_name = "VERDICT")]
    pub(crate) word: Word,
    #[command(flatten)]
    pub(crate) change: Change,
    /// did-not-happen: it never will either, so nobody has to wait until that can be believed
    #[arg(long = "final")]
    pub(crate) never_will: bool,
    /// happened: the status of the answer that retries get
    #[arg(long, value_name = "N")]
    pub(crate) status: Option<u16>,
    /// happened: a header of that answer, 'name: value'; may be repeated
    #[arg(long = "header", value_name = "HEADER", requires = "status")]
    pub(crate) headers: Vec<String>,
    /// happened: the body of that answer
    #[arg(long, value_name = "TEXT", requires = "status", conflicts_with = "body_file")]
    pub(crate) body: Option<String>,
    /// happened: the body of that answer, from a file, or - for stdin
    #[arg(long, value_name = "FILE", requires = "status")]
    pub(crate) body_file: Option<PathBuf>,
    /// happened: ask the probe for the answer first
    #[arg(long, conflicts_with_all = ["status", "store"])]
    pub(crate) ask: bool,
    /// The Onlyonce-Token of the attempt that is meant; a retryable record needs it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) attempt: Option<String>,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
pub(crate) struct Forget {
    /// The scope in hex, or its beginning from 8 digits
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// The client's key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
pub(crate) struct Purge {
    /// The scope in hex, or its beginning from 8 digits
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) change: Change,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
#[command(after_help = LOG_EXAMPLES)]
pub(crate) struct Log {
    /// Only by this operator: the name of a token, or local
    #[arg(long, value_name = "NAME")]
    pub(crate) who: Option<String>,
    /// Only this action
    #[arg(long, value_name = "ACTION", value_parser = ACTIONS)]
    pub(crate) action: Option<String>,
    /// Only about this scope, in hex, or the beginning of one from 8 digits
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only about this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only of the last so long: 15m, 24h, 7d
    #[arg(long, value_name = "SPAN")]
    pub(crate) since: Option<String>,
    /// Go on with what comes, until it is interrupted; with --json a line of JSON for each
    #[arg(long)]
    pub(crate) follow: bool,
    /// The newest so many; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// Work that a gateway does by itself.
#[derive(Args, Debug)]
pub(crate) struct Work {
    /// The store: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: store of the settings, sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file, of which only store, expired and [background] count here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Until nothing is due, and exit; otherwise again and again, until it is stopped
    #[arg(long)]
    pub(crate) once: bool,
    /// Say how many it would be now, change nothing, and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Work {
    /// Where its settings come from.
    pub(crate) fn sources(&self) -> Sources {
        Settings { store: self.store.clone(), config: self.config.clone(), ..Settings::default() }.sources()
    }
}

/// serve does this by itself, every background.sweep_every. It is for a store at rest, or to see what would be done. Work that
/// was lost becomes retryable or unknown, by what it touches.
#[derive(Args, Debug)]
#[command(after_help = SWEEP_EXAMPLES)]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) work: Work,
}

/// serve does this by itself, every background.reap_every. Audit entries that are older than background.audit_retention are
/// deleted too, and not counted.
#[derive(Args, Debug)]
#[command(after_help = REAP_EXAMPLES)]
pub(crate) struct Reap {
    #[command(flatten)]
    pub(crate) work: Work,
}

/// What the audit log tells of.
const ACTIONS: [&str; 8] =
    ["verdict", "forget", "purge", "redrive", "discard", "read_response", "read_payload", "reload"];

const LIST_EXAMPLES: &str = "\
Examples:
  onlyonce keys list --state unknown
  onlyonce keys list --dead --limit 0 --json
  onlyonce keys list --query order-17
  onlyonce keys list --store sqlite:onlyonce.db --route 'POST /payments/*'

Exits 0, also where there is none.";

const SHOW_EXAMPLES: &str = "\
Examples:
  onlyonce keys show 3f2a9c01 order-17
  onlyonce keys show 5b1d0c66a2f4                (record= of a log line)
  onlyonce keys show 3f2a9c01 order-17 --response answer.json
  onlyonce keys show 3f2a9c01 order-17 --store postgres://ann@db/payments --json

Exits 0, or 1 where there is no such record.";

const VERDICT_EXAMPLES: &str = "\
Examples:
  onlyonce keys verdict 3f2a9c01 order-17 happened --reason 'in the bank statement' \\
    --status 201 --header 'content-type: application/json' --body '{\"id\":\"ch_17\"}'
  onlyonce keys verdict 3f2a9c01 order-17 did-not-happen --reason 'the bank has no such order' --dry-run
  onlyonce keys verdict 3f2a9c01 order-17 unknown --reason 'the bank answers again'

--force insists on did-not-happen before that can be believed, and on a verdict while the attempt still runs: what the attempt
answers is then no longer stored.
Exits 0 once it is done, or 1 where it is refused.";

const FORGET_EXAMPLES: &str = "\
Examples:
  onlyonce keys forget 3f2a9c01 order-17 --reason 'test data'
  onlyonce keys forget 3f2a9c01 order-17 --reason 'test data' --dry-run

--force insists while the attempt still runs, or while its outcome is unknown: a retry runs the work again, perhaps twice.
Exits 0 once no node replays it any more, or 1 where there is none or it is refused.";

const PURGE_EXAMPLES: &str = "\
Examples:
  onlyonce keys purge 3f2a9c01 --reason 'request 4711 to be erased' --dry-run
  onlyonce keys purge 3f2a9c01 --reason 'request 4711 to be erased' --yes

--force also forgets records that run or whose outcome is unknown: a retry runs their work again.";

const LOG_EXAMPLES: &str = "\
Examples:
  onlyonce log --since 24h
  onlyonce log --action verdict --who on-call
  onlyonce log --follow --json | jq .reason";

const SWEEP_EXAMPLES: &str = "\
Examples:
  onlyonce sweep --once --dry-run --store sqlite:onlyonce.db
  onlyonce sweep --once --store postgres://ann@db/payments";

const REAP_EXAMPLES: &str = "\
Examples:
  onlyonce reap --once --dry-run --store sqlite:onlyonce.db
  onlyonce reap --once --config onlyonce.toml";

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  onlyonce completions bash > /etc/bash_completion.d/onlyonce
  onlyonce completions zsh > \"${fpath[1]}/_onlyonce\"
  onlyonce completions fish > ~/.config/fish/completions/onlyonce.fish";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  onlyonce man | man -l -
  onlyonce man --dir /usr/local/share/man/man1";
