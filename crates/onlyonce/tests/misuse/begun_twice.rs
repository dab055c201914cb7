// What asks whether the request may run is taken away by asking.
async fn transfer(
    key: onlyonce::InTransaction,
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
) -> Result<(), onlyonce::transaction::Error> {
    let _first = key.begin(&mut *tx).await?;
    let _second = key.begin(&mut *tx).await?;
    Ok(())
}

fn main() {}
