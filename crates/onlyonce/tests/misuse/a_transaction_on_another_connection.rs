// A transaction on a connection of one's own cannot commit with the record: `Sqlite::write` hands out the one that can.
fn complete(attempt: onlyonce::Attempt, tx: &rusqlite::Transaction<'_>) {
    let _ = attempt.complete_in(tx, &http::Response::new("done"));
}

fn main() {}
