//! The program `onlyonce`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    use_small_pages();
    onlyonce_server::run().await
}

/// The allocator asks for huge pages, which stay resident as a whole if any part is used: ten thousand connections with
/// mostly empty buffers would take 29 KB each instead of 16 (0021). If the system refuses, they do.
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
