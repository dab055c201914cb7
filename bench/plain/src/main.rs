//! The baseline: the handler and nothing around it. With an address as its argument it is a probe there instead.

use std::io;

#[tokio::main]
async fn main() -> io::Result<()> {
    match std::env::args().nth(1) {
        Some(address) => bench_plain::serve_at(&address, bench_plain::probe()).await,
        None => bench_plain::serve(bench_plain::payments().merge(bench_plain::uploads())).await,
    }
}
