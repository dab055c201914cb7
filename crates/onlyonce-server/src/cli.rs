//! What can be asked of the program. A wrong flag ends it with 2, as every error does.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{Sources, page};

mod conform;
mod operate;
mod tools;

pub(crate) use self::conform::{Conform, Field, Form};
pub(crate) use self::operate::{
    Change, ChangeMessages, Discard, Epoch, Forget, Keys, List, ListMessages, Log, Outbox, Purge, RaiseEpoch,
    Reap, Redrive, Relay, Show, Sweep, Verdict, Where, Word, Work,
};
pub(crate) use self::tools::{Allowed, Audit, Doctor, Ledger};

/// Makes any HTTP write safe to retry.
#[derive(Debug, Parser)]
#[command(
    name = "onlyonce",
    version,
    after_help = "Exit codes: 0 success; 1 not found, refused or check failed; 2 error."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway in front of a service, which makes its writes safe to retry
    ///
    /// SIGTERM stops the gateway after running requests have finished. SIGHUP reloads the settings. Exits 0 after a stop.
    Serve(Serve),
    /// Run a sample payments service behind the gateway, to try with curl; with --tour, play its failures
    ///
    /// The service, the gateway and a store in one file run in one process. In the tour, clients retry, send one key many times
    /// at once and hang up, the service dies and the gateway is killed with SIGKILL. After each act the tour shows how often the
    /// card was really charged.
    Demo(Demo),
    /// Check the settings that serve would use: report every fault, and warn of risky settings
    ///
    /// Takes the same flags as serve and starts nothing. Exits 0 without a fault, 1 with a fault.
    Check(CheckSettings),
    /// Print every setting with its default, as a settings file to start from
    Settings(PrintSettings),
    /// Upgrade the schema of a store to this release, and show what is applied
    ///
    /// serve does the same at its start, if its database role may. If you migrate with a separate role, the role of serve only
    /// needs to read and write rows. Exits 0 if the schema is up to date; with --dry-run also if migrations are missing.
    Migrate(Migrate),
    /// Show records, settle unknown outcomes, and forget keys
    ///
    /// Through the admin port of a running gateway (--admin), or directly in a store (--store).
    #[command(subcommand)]
    Keys(Keys),
    /// Show messages, deliver dead letters again, and discard messages
    ///
    /// Through the admin port of a running gateway (--admin), so that roles and the audit log apply.
    #[command(subcommand)]
    Outbox(Outbox),
    /// Show the audit log: who changed what, when and why
    Log(Log),
    /// Settle records whose attempt was lost, without a gateway
    Sweep(Sweep),
    /// Delete expired records, without a gateway
    Reap(Reap),
    /// Deliver the messages of the outbox, without a gateway
    Relay(Relay),
    /// Have every node drop its copies of completed records, after a backup was restored
    #[command(subcommand)]
    Epoch(Epoch),
    /// Compare records with a provider's export: find work that was done twice or differs, and verdicts for unknown outcomes
    Ledger(Ledger),
    /// List the writes of an OpenAPI document that are not protected
    Audit(Audit),
    /// Test from outside whether an API, ours or not, is safe to retry
    Conform(Conform),
    /// Report problems of the settings, the store, the services and the running gateway
    Doctor(Doctor),
    /// Back up or check an embedded store, and list the encryption keys that a store needs
    #[command(subcommand)]
    Store(Store),
    /// Print completions for a shell
    #[command(after_help = operate::COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = operate::MAN_EXAMPLES)]
    Man(Man),
}

impl Command {
    /// Whether errors are told to a machine.
    pub(crate) fn has_json_errors(&self) -> bool {
        match self {
            Self::Keys(verb) => verb.place().json,
            Self::Outbox(verb) => verb.place().json,
            Self::Log(log) => log.place.json,
            Self::Sweep(sweep) => sweep.work.json,
            Self::Reap(reap) => reap.work.json,
            Self::Relay(relay) => relay.json,
            Self::Epoch(Epoch::Raise(raise)) => raise.json,
            Self::Ledger(ledger) => ledger.place.json,
            Self::Audit(audit) => audit.json,
            Self::Conform(conform) => conform.form() == Form::Json,
            Self::Doctor(doctor) => doctor.json,
            Self::Serve(_)
            | Self::Demo(_)
            | Self::Check(_)
            | Self::Settings(_)
            | Self::Migrate(_)
            | Self::Store(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Write a page for every command into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Copy a store into a new file, even while a gateway uses it
    ///
    /// The copy is consistent as of one moment. The file appears under its name once it is complete and synced to disk. The gateway
    /// is not blocked. An existing file is never overwritten.
    Backup(Backup),
    /// Read a whole store and report whether it is damaged, even while a gateway uses it
    ///
    /// Exits 0 if nothing is wrong, 1 if the file is damaged, 2 if it cannot be read or is not a store.
    Check(Check),
    /// List the encryption keys that stored rows need, and whether the settings have them
    ///
    /// Reads every row, even while a gateway uses the store. A key that no row needs can be removed from encryption.keys. Exits 0
    /// if the settings have every key that is needed, 1 if a key is missing.
    Keys(StoreKeys),
}

#[derive(Args, Debug)]
pub(crate) struct StoreKeys {
    /// The store: postgres://USER:PASSWORD@HOST/DATABASE?schema=NAME, or sqlite:PATH [default: sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file; only store and encryption.keys are used here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl StoreKeys {
    /// Where the store and the keys come from.
    pub(crate) fn sources(&self) -> Sources {
        Settings { store: self.store.clone(), config: self.config.clone(), ..Settings::default() }.sources()
    }
}

#[derive(Args, Debug)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The file to create
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Which store, and for whom the answer is.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// The store: sqlite:PATH
    #[arg(long, value_name = "URL", default_value = "sqlite:onlyonce.db")]
    pub(crate) store: String,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Migrate {
    /// The store: postgres://USER:PASSWORD@HOST/DATABASE?schema=NAME, or sqlite:PATH [default: sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file; only store is used here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Show what would be applied, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the GRANT statements for application and reporting roles, and do nothing
    #[arg(long, value_name = "app=ROLE,reports=ROLE", conflicts_with_all = ["dry_run", "json"])]
    pub(crate) grants: Option<Grants>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Roles that are granted something: `app=ROLE,reports=ROLE`, each as often as there are roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// May complete requests and send messages.
    pub(crate) app: Vec<String>,
    /// May read the views.
    pub(crate) reports: Vec<String>,
}

impl FromStr for Grants {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut grants = Self::default();
        for part in text.split(',') {
            match part.trim().split_once('=') {
                Some((_, "")) => return Err(format!("\"{part}\" has no role; write app=ROLE")),
                Some(("app", role)) => grants.app.push(role.to_owned()),
                Some(("reports", role)) => grants.reports.push(role.to_owned()),
                Some(_) | None => {
                    return Err(format!(
                        "\"{part}\" is neither app=ROLE nor reports=ROLE; write --grants app=ROLE,reports=ROLE"
                    ));
                }
            }
        }
        Ok(grants)
    }
}

impl Migrate {
    /// Where its one setting comes from.
    pub(crate) fn sources(&self) -> Sources {
        let settings =
            Settings { store: self.store.clone(), config: self.config.clone(), ..Settings::default() };
        settings.sources()
    }
}

#[derive(Args, Debug)]
#[command(after_long_help = page::help())]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Debug)]
#[command(after_long_help = page::help())]
pub(crate) struct CheckSettings {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Print all settings in effect, as TOML, each with its source; secrets are never printed
    #[arg(long, conflicts_with = "json")]
    pub(crate) print: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PrintSettings {
    /// Print tables in Markdown instead
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Print a JSON Schema of the settings file instead, for editors
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) schema: bool,
}

/// Where settings come from: flags, `--set`, the environment, a file. They are texts here, so that what is wrong with
/// a flag is told together with what is wrong in the file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The service behind the gateway: http://HOST:PORT or https://…
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// The address for clients; port 0 picks a free port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// The address of the admin port; port 0 picks a free port [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
    /// Where records are stored: sqlite:PATH, postgres://…, mysql://…, redis://…, dynamodb://… or memory: [default: sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file, in TOML; without this flag no file is read, not even an onlyonce.toml in this folder
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One setting, such as policy.lease=5s or 'policy.release=[401, 403]'; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
}

impl Settings {
    /// All sources, with the environment as it is now.
    pub(crate) fn sources(&self) -> Sources {
        let flags = [
            ("--upstream", "upstream", &self.upstream),
            ("--listen", "listen", &self.listen),
            ("--admin", "admin", &self.admin),
            ("--store", "store", &self.store),
        ];
        let flags = flags.into_iter().filter_map(|(flag, name, text)| Some((flag, name, text.clone()?)));
        let text = |text: OsString| text.to_string_lossy().into_owned();
        Sources {
            file: self.config.clone(),
            environment: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
            sets: self.set.clone(),
            flags: flags.collect(),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Play the tour on free ports and exit: 0 if every promise held, 1 if one did not
    #[arg(long, conflicts_with_all = ["listen", "admin", "service"])]
    pub(crate) tour: bool,
    /// The address of the gateway; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The address of the admin port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub(crate) admin: SocketAddr,
    /// The address of the sample service
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082")]
    pub(crate) service: SocketAddr,
    /// Where records are stored: sqlite:PATH, postgres://…, mysql://…, redis://…, dynamodb://… or memory: [default: a new file, removed afterwards]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Print the results of the tour as JSON
    #[arg(long, requires = "tour")]
    pub(crate) json: bool,
}
