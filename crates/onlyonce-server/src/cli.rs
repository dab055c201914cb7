//! What can be asked of the program. A wrong flag ends it with 2, as every error does.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

/// Makes any HTTP write safe to retry.
#[derive(Debug, Parser)]
#[command(name = "onlyonce", version, after_help = "Exit codes: 0 done, 1 no, 2 error.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play what goes wrong between clients and a payments service, and check every promise
    ///
    /// A sample service with the layer on the memory store, real sockets on a free port, and a ledger that counts how
    /// often the card was really charged. Exits 0 if every promise held, 1 if one did not.
    Demo(Demo),
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Play the story and exit: what happens without --serve
    #[arg(long, conflicts_with = "serve")]
    tour: bool,
    /// Keep the sample service listening, to be tried with curl, instead of playing the story
    #[arg(long, conflicts_with = "json")]
    serve: bool,
    /// Where --serve listens; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", requires = "serve")]
    pub(crate) listen: SocketAddr,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Demo {
    /// Whether the story is played.
    pub(crate) fn is_tour(&self) -> bool {
        self.tour || !self.serve
    }
}
