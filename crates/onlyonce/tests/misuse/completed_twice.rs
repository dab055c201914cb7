// The attempt is taken away by its completion.
async fn transfer(
    attempt: onlyonce::OpenAttempt,
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
) -> Result<(), onlyonce::transaction::Error> {
    let response = http::Response::new("done");
    attempt.complete_in(&mut *tx, &response).await?;
    attempt.complete_in(&mut *tx, &response).await
}

fn main() {}
