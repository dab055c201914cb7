// The embedded store's phases are closures on the writer's thread: `phase_blocking`.
async fn pay(attempt: onlyonce::Attempt, store: std::sync::Arc<onlyonce::store::sqlite::Sqlite>) {
    let _ = attempt.phase(&*store, "paid", async |_tx| Ok::<_, std::io::Error>(7)).await;
}

fn main() {}
