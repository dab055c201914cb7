//! The same handler behind our layer, with its default settings, on the memory engine.

use std::io;
use std::sync::Arc;

use onlyonce::Onlyonce;
use onlyonce::store::memory::Memory;

#[tokio::main]
async fn main() -> io::Result<()> {
    let onlyonce = Onlyonce::new(Arc::new(Memory::new()));
    bench_plain::serve(bench_plain::payments().layer(onlyonce.layer())).await
}
