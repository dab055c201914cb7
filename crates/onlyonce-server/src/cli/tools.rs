//! The arguments of the commands that compare: records with an export, routes with a document, a node with what it should be.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Settings, Where};
use crate::config::Sources;

/// Finds work that was done twice, what a retry would run again, and what settles an unknown outcome.
///
/// The export is CSV (a first line of names; comma, semicolon or tab) or JSON Lines. A column is a name in CSV and a JSON
/// Pointer, such as /metadata/key, in JSON Lines. Nothing is changed.
#[derive(Args, Debug)]
#[command(after_help = LEDGER_EXAMPLES)]
pub(crate) struct Ledger {
    /// The provider's export
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The column with the Onlyonce-Token that the service was sent
    #[arg(
        long,
        value_name = "COLUMN",
        conflicts_with_all = ["scope_column", "key_column"],
        required_unless_present = "key_column"
    )]
    pub(crate) token_column: Option<String>,
    /// The column with the scope, as Onlyonce-Scope has it
    #[arg(long, value_name = "COLUMN", requires = "key_column")]
    pub(crate) scope_column: Option<String>,
    /// The column with the key
    #[arg(long, value_name = "COLUMN", requires = "scope_column")]
    pub(crate) key_column: Option<String>,
    /// The column with the provider's own id, which is shown
    #[arg(long, value_name = "COLUMN")]
    pub(crate) id: Option<String>,
    /// The column that says what became of a row; without it every row happened
    #[arg(long, value_name = "COLUMN", requires = "happened")]
    pub(crate) outcome: Option<String>,
    /// Values of --outcome that mean that it happened, separated by commas
    #[arg(long, value_name = "VALUES", value_delimiter = ',', requires = "outcome")]
    pub(crate) happened: Vec<String>,
    /// Values of --outcome that mean that it was declined, separated by commas
    #[arg(long, value_name = "VALUES", value_delimiter = ',', requires = "outcome")]
    pub(crate) declined: Vec<String>,
    /// The column with the time of a row: RFC 3339 or unix seconds
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: Option<String>,
    /// Records are missed in the export from this moment on, in RFC 3339 [default: the first --time]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) from: Option<jiff::Timestamp>,
    /// Records are missed in the export up to this moment, in RFC 3339 [default: the last --time]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) to: Option<jiff::Timestamp>,
    /// Only records of this route, by its match, are missed in the export
    #[arg(long, value_name = "MATCH")]
    pub(crate) route: Option<String>,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// Protection that is not to count as a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allowed {
    /// The key may be missing
    Optional,
    /// Only counted, not enforced
    Observed,
}

/// Reads OpenAPI 3 or Swagger 2, in JSON or YAML, and says for each POST, PUT, PATCH and DELETE what protects it.
///
/// The routes are those of the settings that serve would use, or of a running gateway (--gateway).
#[derive(Args, Debug)]
#[command(after_help = AUDIT_EXAMPLES)]
pub(crate) struct Audit {
    /// The OpenAPI document
    #[arg(value_name = "DOCUMENT")]
    pub(crate) document: PathBuf,
    /// A running gateway, of which the published policy is read: http://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "set"])]
    pub(crate) gateway: Option<String>,
    /// The settings file, as serve reads it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One setting, as serve reads it; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// The path in front of the document's paths, instead of that of its servers or basePath
    #[arg(long, value_name = "PATH")]
    pub(crate) base: Option<String>,
    /// Protection that is not to count as a finding, separated by commas
    #[arg(long, value_name = "PROTECTION", value_delimiter = ',')]
    pub(crate) allow: Vec<Allowed>,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Audit {
    /// Where the settings come from.
    pub(crate) fn sources(&self) -> Sources {
        Settings { config: self.config.clone(), set: self.set.clone(), ..Settings::default() }.sources()
    }
}

/// Takes the settings that serve takes, looks at the store, the services, the probes and the running gateway, and says what is wrong
/// and what to do about it. Nothing is changed, and nothing is sent to services and probes: they are connected to and left.
#[derive(Args, Debug)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct Doctor {
    /// The service behind the gateway: http://HOST:PORT or https://…
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Where records are kept: sqlite:PATH, postgres://…, mysql://…, redis://…, dynamodb://… or memory: [default: sqlite:onlyonce.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The settings file, as serve reads it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One setting, as serve reads it; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// The admin port of the running gateway [default: admin of the settings, http://127.0.0.1:8081]
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// Where the token for it is, if it has any: env:NAME or file:PATH
    #[arg(long, value_name = "PLACE")]
    pub(crate) token: Option<String>,
    /// Print the result as JSON; errors too, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl Doctor {
    /// Where the settings come from.
    pub(crate) fn sources(&self) -> Sources {
        self.settings().sources()
    }

    fn settings(&self) -> Settings {
        Settings {
            upstream: self.upstream.clone(),
            store: self.store.clone(),
            config: self.config.clone(),
            set: self.set.clone(),
            ..Settings::default()
        }
    }
}

const LEDGER_EXAMPLES: &str = "\
Examples:
  onlyonce ledger charges.csv --token-column onlyonce_token --id id
  onlyonce ledger charges.csv --scope-column scope --key-column key --outcome status --happened paid --declined failed --time created
  onlyonce ledger events.jsonl --token-column /metadata/token --id /id --store sqlite:onlyonce.db --json

Exits 0 if both sides agree, 1 if they differ anywhere, 2 if the file or a column does not exist.";

const AUDIT_EXAMPLES: &str = "\
Examples:
  onlyonce audit openapi.yaml --config onlyonce.toml
  onlyonce audit openapi.json --gateway http://127.0.0.1:8080 --allow optional
  onlyonce audit openapi.yaml --set policy.required=true --base /v2 --json

Exits 0 without a finding, 1 with one, 2 if the document does not exist or cannot be read.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  onlyonce doctor --config onlyonce.toml
  onlyonce doctor --config onlyonce.toml --admin http://10.0.0.5:8081 --token env:ADMIN_TOKEN --json

Exits 0 if no check fails, 1 if one fails, 2 if the checks could not start.";
