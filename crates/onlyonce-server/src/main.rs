//! The program `onlyonce`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    use_small_pages();
    onlyonce_server::run().await
}

/// The allocator asks for huge pages, and of a huge page all is held where anything is used: of ten thousand connections
/// whose buffers are mostly empty, each would cost 29 KB instead of 16 (0021). Where the system refuses, it costs that.
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
