//! What can be asked of the program. A wrong flag ends it with 2, as every error does.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{Sources, page};

mod operate;

pub(crate) use self::operate::{
    Change, Forget, Keys, List, Log, Purge, Reap, Show, Sweep, Verdict, Where, Word, Work,
};

/// Makes any HTTP write safe to retry.
#[derive(Debug, Parser)]
#[command(name = "onlyonce", version, after_help = "Exit codes: 0 done, 1 no, 2 error.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the writes of a service safe to retry: the gateway in front of it
    ///
    /// SIGTERM stops it once what is under way has ended, SIGHUP reads the settings again. Exits 0 when it was stopped.
    Serve(Serve),
    /// A sample payments service behind the gateway, to be tried with curl; with --tour, what goes wrong, played
    ///
    /// The service, the gateway and a store in one file, in one process. The tour retries, storms, hangs up, lets the
    /// service die and kills the gateway with SIGKILL, and shows after each how often the card was really charged.
    Demo(Demo),
    /// Check the settings that serve would use: every fault at once, and what is legal but risky
    ///
    /// Takes what serve takes and starts nothing. Exits 0 without a fault, 1 with one.
    Check(CheckSettings),
    /// Print every setting with its default, as a file to begin with
    Settings(PrintSettings),
    /// Bring the schema of a store to this release's, and show what that takes
    ///
    /// serve does the same at its start, where its role may. With a role of its own for this, the role of serve needs only
    /// to read and write rows. Exits 0 once nothing is missing, and of --dry-run also where something is.
    Migrate(Migrate),
    /// Look at records, settle those whose outcome is unknown, and forget
    ///
    /// Of a running gateway by its admin port (--admin), or of a store (--store).
    #[command(subcommand)]
    Keys(Keys),
    /// Show what operators changed: who, when, what and why
    Log(Log),
    /// Settle records that nobody came back for, without a gateway
    Sweep(Sweep),
    /// Delete expired records, without a gateway
    Reap(Reap),
    /// Look after the file of an embedded store
    #[command(subcommand)]
    Store(Store),
    /// Print completions for a shell
    ///
    /// They are made from the definitions that the program itself reads its arguments by.
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
            Self::Log(log) => log.place.json,
            Self::Sweep(sweep) => sweep.work.json,
            Self::Reap(reap) => reap.work.json,
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
    /// Copy a store into a new file, also while its owner uses it
    ///
    /// The copy is of one moment, and appears under its name once it is whole and durable. Nobody waits for it. Nothing
    /// is ever overwritten.
    Backup(Backup),
    /// Read all of a store and say whether it is whole, also while its owner uses it
    ///
    /// Exits 0 if nothing is wrong, 1 if the file is damaged, 2 if it cannot be read or is not a store.
    Check(Check),
}

#[derive(Args, Debug)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The file to create
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    /// Say what would be done, and do nothing
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
    /// The settings file, of which only store counts here
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Show what would be applied, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Print all settings that hold, as TOML, each with where it came from; secrets never
    #[arg(long, conflicts_with = "json")]
    pub(crate) print: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PrintSettings {
    /// As tables in Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// Where settings come from: flags, `--set`, the environment, a file. They are texts here, so that what is wrong with
/// a flag is told together with what is wrong in the file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The service behind the gateway: http://HOST:PORT or https://…
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Where clients come in; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where operators come in; port 0 picks a free one [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
    /// Where records are kept: sqlite:PATH, postgres://… or memory: [default: sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file, in TOML; none is read unless it is named here, also not an onlyonce.toml in this folder
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
    /// Play the story on free ports and exit: 0 if every promise held, 1 if one did not
    #[arg(long, conflicts_with_all = ["listen", "admin", "service"])]
    pub(crate) tour: bool,
    /// Where the gateway listens; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// Where its admin port is
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub(crate) admin: SocketAddr,
    /// Where the sample service listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082")]
    pub(crate) service: SocketAddr,
    /// Where records are kept: sqlite:PATH, postgres://… or memory: [default: a new file, removed afterwards]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Print the results of the story as JSON
    #[arg(long, requires = "tour")]
    pub(crate) json: bool,
}
