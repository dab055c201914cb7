//! The baseline: the handler and nothing around it.

use std::io;

#[tokio::main]
async fn main() -> io::Result<()> {
    bench_plain::serve(bench_plain::payments().merge(bench_plain::uploads())).await
}
