// What is committed takes no completion.
async fn transfer(
    attempt: onlyonce::Attempt,
    mut tx: sqlx::Transaction<'_, sqlx::Postgres>,
) -> Result<(), Box<dyn std::error::Error>> {
    tx.commit().await?;
    attempt.complete_in(&mut tx, &http::Response::new("done")).await?;
    Ok(())
}

fn main() {}
