// Without a transaction the rows and the completion would be two commits.
async fn complete(attempt: onlyonce::Attempt, mut pool: sqlx::PgPool) {
    let _ = attempt.complete_in(&mut pool, &http::Response::new("done"));
}

fn main() {}
