//! The arguments of the operators' commands.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Settings;
use crate::admin::ACTIONS;
use crate::config::Sources;

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// List records
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Show one record: its state, what happened to it, and what can be done about it
    ///
    /// Takes a scope and a key, or the record= of a log line, which is the beginning of the record's id.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Show),
    /// Settle a record whose outcome is unknown
    #[command(after_help = VERDICT_EXAMPLES)]
    Verdict(Verdict),
    /// Delete a record, so that its key counts as never used
    ///
    /// A retry then runs the work again. So a running or unknown record is only forgotten with --force.
    #[command(after_help = FORGET_EXAMPLES)]
    Forget(Forget),
    /// Forget every record of a scope, and erase its archived records
    ///
    /// Running and unknown records are kept unless forced. The audit log still shows what was done, by whom and when, without the
    /// keys. If the command is interrupted, run it again to continue. Exits 0 even if some records were kept.
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
    /// The admin port of a gateway [default: admin in the settings, or http://127.0.0.1:8081]
    #[arg(long, value_name = "URL", conflicts_with = "store", help_heading = "Where")]
    pub(crate) admin: Option<String>,
    /// Where the admin token is, if the gateway needs one: env:NAME or file:PATH
    #[arg(long, value_name = "PLACE", conflicts_with = "store", help_heading = "Where")]
    pub(crate) token: Option<String>,
    /// The store, without a gateway: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(long, value_name = "URL", help_heading = "Where")]
    pub(crate) store: Option<String>,
    /// The gateway's settings file; only admin is used here, and encryption.keys with --store
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Where {
    /// The URL of an admin port that listens there.
    pub(crate) fn url_of(mut address: SocketAddr) -> String {
        if address.ip().is_unspecified() {
            // It listens everywhere, so also here.
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("http://{address}")
    }

    /// Where the admin address comes from unless it is named.
    pub(crate) fn sources(&self) -> Sources {
        Settings { config: self.config.clone(), ..Settings::default() }.sources()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// List messages
    #[command(after_help = LIST_MESSAGES_EXAMPLES)]
    List(ListMessages),
    /// Deliver dead letters again, with the same key
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive(Redrive),
    /// Delete messages, which are then not delivered any more
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(Discard),
}

impl Outbox {
    /// Where it is to be done.
    pub(crate) fn place(&self) -> &AdminPort {
        match self {
            Self::List(arguments) => &arguments.place,
            Self::Redrive(arguments) => &arguments.place,
            Self::Discard(arguments) => &arguments.place,
        }
    }
}

/// Which gateway, and for whom the answer is.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdminPort {
    /// The admin port of a gateway [default: admin in the settings, or http://127.0.0.1:8081]
    #[arg(long, value_name = "URL", help_heading = "Where")]
    pub(crate) admin: Option<String>,
    /// Where the admin token is, if the gateway needs one: env:NAME or file:PATH
    #[arg(long, value_name = "PLACE", help_heading = "Where")]
    pub(crate) token: Option<String>,
    /// The gateway's settings file; only admin is used here
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl AdminPort {
    /// The same, for what can also ask a store.
    pub(crate) fn place(&self) -> Where {
        let Self { admin, token, config, json } = self.clone();
        Where { admin, token, store: None, config, json }
    }
}

#[derive(Args, Debug)]
pub(crate) struct ListMessages {
    /// Only messages in this state
    #[arg(long, value_name = "STATE", value_parser = ["waiting", "claimed", "delivered", "dead"])]
    pub(crate) state: Option<String>,
    /// Only messages of this destination
    #[arg(long, value_name = "NAME")]
    pub(crate) destination: Option<String>,
    /// The maximum number to list; 0 for all
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) place: AdminPort,
}

/// Why messages are changed, and by whom.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChangeMessages {
    /// Why, for the audit log; at most 1,000 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Your name for the audit log, beside the token's name [default: the user name]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) claims: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Redrive {
    /// The numbers of the messages
    #[arg(value_name = "ID", required_unless_present = "destination")]
    pub(crate) ids: Vec<u64>,
    /// All dead letters of this destination
    #[arg(long, value_name = "NAME", conflicts_with = "ids", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) destination: Option<String>,
    #[command(flatten)]
    pub(crate) change: ChangeMessages,
    #[command(flatten)]
    pub(crate) place: AdminPort,
}

#[derive(Args, Debug)]
pub(crate) struct Discard {
    /// The numbers of the messages
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<u64>,
    #[command(flatten)]
    pub(crate) change: ChangeMessages,
    #[command(flatten)]
    pub(crate) place: AdminPort,
}

/// Why something is changed, by whom, and how insistently.
#[derive(Args, Clone, Debug)]
pub(crate) struct Change {
    /// Why, for the audit log; at most 1,000 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Override a refusal: see below
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Your name for the audit log, beside the token's name [default: the user name]
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) claims: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only records in this state
    #[arg(long, value_name = "STATE", value_parser = ["pending", "running", "completed", "retryable", "unknown"])]
    pub(crate) state: Option<String>,
    /// Only records of this scope, in hex; its first 8 or more digits are enough
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only records of this route, by its match text
    #[arg(long, value_name = "MATCH")]
    pub(crate) route: Option<String>,
    /// A key or its beginning, a token, a label, the beginning of a scope or of a record's id
    #[arg(long, value_name = "TEXT")]
    pub(crate) query: Option<String>,
    /// Only dead letters: unknown outcomes whose probe is no longer called
    #[arg(long)]
    pub(crate) dead: bool,
    /// The maximum number to list; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The scope in hex, or its first 8 or more digits; or, without KEY, the record= of a log line
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// The client's key
    #[arg(value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Write the stored answer's body to this file, or - for stdout; this is written to the audit log
    #[arg(long, value_name = "FILE")]
    pub(crate) response: Option<PathBuf>,
    /// Your name for the audit log, beside the token's name [default: the user name]
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
    /// It is not known yet: the probe is called at once
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
    /// The scope in hex, or its first 8 or more digits
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
    /// did-not-happen: the work will never happen, so there is no need to wait
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
    /// happened: call the probe for the answer first
    #[arg(long, conflicts_with_all = ["status", "store"])]
    pub(crate) ask: bool,
    /// The Onlyonce-Token of the attempt; needed for a retryable record
    #[arg(long, value_name = "TOKEN")]
    pub(crate) attempt: Option<String>,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
pub(crate) struct Forget {
    /// The scope in hex, or its first 8 or more digits
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
    /// The scope in hex, or its first 8 or more digits
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) change: Change,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}

#[derive(Args, Debug)]
#[command(after_help = LOG_EXAMPLES)]
pub(crate) struct Log {
    /// Only changes by this operator: the name of a token, or local
    #[arg(long, value_name = "NAME")]
    pub(crate) who: Option<String>,
    /// Only this action
    #[arg(long, value_name = "ACTION", value_parser = ACTIONS)]
    pub(crate) action: Option<String>,
    /// Only about this scope, in hex; its first 8 or more digits are enough
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only about this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only entries of this last period: 15m, 24h, 7d
    #[arg(long, value_name = "SPAN")]
    pub(crate) since: Option<String>,
    /// Keep printing new entries until interrupted; with --json one line of JSON for each
    #[arg(long)]
    pub(crate) follow: bool,
    /// The number of newest entries; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// Work that a gateway does by itself.
#[derive(Args, Debug)]
pub(crate) struct Work {
    /// The store: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: store in the settings, or sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file; only store, expired and [background] are used here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Work until nothing is due, and exit; otherwise keep running until stopped
    #[arg(long)]
    pub(crate) once: bool,
    /// Print how many are due now, change nothing, and exit
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

/// Changes about copies of completed records.
#[derive(Debug, Subcommand)]
pub(crate) enum Epoch {
    /// Begin a new epoch: no node uses a copy of a completed record from before it
    ///
    /// Run it after a backup was restored, before the gateways are started: their cache may have copies of records that the backup
    /// does not have, or has in another state. Records are not changed. Takes some 3 s.
    Raise(RaiseEpoch),
}

#[derive(Args, Debug)]
#[command(after_help = RAISE_EXAMPLES)]
pub(crate) struct RaiseEpoch {
    /// The store: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: store in the settings, or sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file; only store is used here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the epoch, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl RaiseEpoch {
    /// Where its settings come from.
    pub(crate) fn sources(&self) -> Sources {
        Settings { store: self.store.clone(), config: self.config.clone(), ..Settings::default() }.sources()
    }
}

/// serve does this itself, every background.sweep_every. The command is for a store without a gateway, or to see what would be
/// done. Lost work becomes retryable or unknown, by its effects.
#[derive(Args, Debug)]
#[command(after_help = SWEEP_EXAMPLES)]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) work: Work,
}

/// serve does this itself, every background.reap_every. Audit entries that are older than audit_retention are deleted too, but
/// not counted.
#[derive(Args, Debug)]
#[command(after_help = REAP_EXAMPLES)]
pub(crate) struct Reap {
    #[command(flatten)]
    pub(crate) work: Work,
}

/// serve does this itself if its settings have [destinations]. SIGTERM stops the relay after running deliveries have finished.
#[derive(Args, Debug)]
#[command(after_help = RELAY_EXAMPLES)]
pub(crate) struct Relay {
    /// The store: sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: store in the settings, or sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file; only store, upstream_ca, stop_after, [destinations] and background.relay_every are used here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Work until nothing is due, and exit; otherwise keep running until stopped
    #[arg(long)]
    pub(crate) once: bool,
    /// Print how many messages are due now, deliver nothing, and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result of --once or --dry-run as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Relay {
    /// Where its settings come from.
    pub(crate) fn sources(&self) -> Sources {
        Settings { store: self.store.clone(), config: self.config.clone(), ..Settings::default() }.sources()
    }
}

const LIST_EXAMPLES: &str = "\
Examples:
  onlyonce keys list --state unknown
  onlyonce keys list --dead --limit 0 --json
  onlyonce keys list --query order-17
  onlyonce keys list --store sqlite:onlyonce.db --route 'POST /payments/*'

Exits 0, even if there are none.";

const LIST_MESSAGES_EXAMPLES: &str = "\
Examples:
  onlyonce outbox list --state dead
  onlyonce outbox list --destination receipts --limit 0 --json

Exits 0, even if there are none.";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  onlyonce outbox redrive 17 --reason 'receipts are back'
  onlyonce outbox redrive --destination receipts --reason 'receipts are back' --dry-run

Exits 0 on success, 1 if a message does not exist or is not a dead letter, 2 on an error.";

const DISCARD_EXAMPLES: &str = "\
Examples:
  onlyonce outbox discard 17 18 --reason 'sent by hand'

Exits 0 on success, 1 if a message does not exist or is being delivered, 2 on an error.";

const RAISE_EXAMPLES: &str = "\
Examples:
  onlyonce epoch raise --config onlyonce.toml
  onlyonce epoch raise --store postgres://onlyonce_user@HOST/DATABASE --dry-run

Exits 0 on success, 2 on an error.";

const RELAY_EXAMPLES: &str = "\
Examples:
  onlyonce relay --config onlyonce.toml
  onlyonce relay --config onlyonce.toml --once
  onlyonce relay --config onlyonce.toml --dry-run

Exits 0 after a stop, or with --once when nothing is due.";

const SHOW_EXAMPLES: &str = "\
Examples:
  onlyonce keys show 3f2a9c01 order-17
  onlyonce keys show 5b1d0c66a2f4                (record= of a log line)
  onlyonce keys show 3f2a9c01 order-17 --response answer.json
  onlyonce keys show 3f2a9c01 order-17 --store postgres://ann@db/payments --json

Exits 0, or 1 if there is no such record.";

const VERDICT_EXAMPLES: &str = "\
Examples:
  onlyonce keys verdict 3f2a9c01 order-17 happened --reason 'in the bank statement' \\
    --status 201 --header 'content-type: application/json' --body '{\"id\":\"ch_17\"}'
  onlyonce keys verdict 3f2a9c01 order-17 did-not-happen --reason 'the bank has no such order' --dry-run
  onlyonce keys verdict 3f2a9c01 order-17 unknown --reason 'the bank answers again'

--force allows did-not-happen before the time that keys show prints, and any verdict while the attempt is still running: the
attempt's answer is then not stored.
Exits 0 on success, or 1 if the verdict is refused.";

const FORGET_EXAMPLES: &str = "\
Examples:
  onlyonce keys forget 3f2a9c01 order-17 --reason 'test data'
  onlyonce keys forget 3f2a9c01 order-17 --reason 'test data' --dry-run

--force also forgets a running or unknown record: a retry then runs the work again, perhaps a second time.
Exits 0 once no node replays the answer any more, or 1 if there is no such record or it is refused.";

const PURGE_EXAMPLES: &str = "\
Examples:
  onlyonce keys purge 3f2a9c01 --reason 'request 4711 to be erased' --dry-run
  onlyonce keys purge 3f2a9c01 --reason 'request 4711 to be erased' --yes

--force also forgets running and unknown records: a retry then runs their work again.";

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
