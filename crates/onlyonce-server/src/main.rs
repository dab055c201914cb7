//! The program `onlyonce`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    onlyonce_server::run().await
}
