//! `onlyonce store keys`: which encryption keys something stored needs.

use std::io::{self, Write};

use anyhow::Result;
use onlyonce::store::KeyUse;
use serde_json::{Value, json};

use crate::cli::StoreKeys;
use crate::{Ended, config, store};

pub(crate) async fn run(arguments: &StoreKeys) -> Result<Ended> {
    let sources = arguments.sources();
    let (url, keyring) = (config::store(&sources)?, config::encryption(&sources)?);
    let opened = url.open_for_reading(keyring.as_ref()).await?;
    let used = opened.keys_in_use().await;
    store::close(opened).await?;
    let used = used?;
    let first = keyring.as_ref().map(|keyring| keyring.first());
    let is_first = |used: &KeyUse| first == Some(used.id);
    let mut out = io::stdout().lock();
    if arguments.json {
        let keys: Vec<Value> = used
            .iter()
            .map(|used| {
                let (id, rows, known) = (used.id.to_string(), used.rows, used.is_known);
                json!({ "id": id, "rows": rows, "known": known, "first": is_first(used) })
            })
            .collect();
        writeln!(out, "{:#}", json!({ "keys": keys }))?;
    } else if used.is_empty() {
        writeln!(out, "nothing in store {url} is encrypted")?;
    } else {
        for used in &used {
            writeln!(out, "{}", line(used, is_first(used)))?;
        }
    }
    Ok(if used.iter().all(|used| used.is_known) { Ended::Yes } else { Ended::No })
}

fn line(used: &KeyUse, is_first: bool) -> String {
    let rows = match used.rows {
        1 => "1 row needs it".to_owned(),
        rows => format!("{rows} rows need it"),
    };
    let standing = match (used.is_known, is_first) {
        (true, true) => "the first of encryption.keys",
        (true, false) => "in encryption.keys",
        (false, _) => "MISSING in encryption.keys: requests for these records get 503",
    };
    format!("key {}: {rows}; {standing}", used.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onlyonce::store::seal::KeyId;

    #[test]
    fn a_line_says_whether_the_key_is_there() {
        let used = KeyUse { id: KeyId([0xab; 8]), rows: 1, is_known: true };
        assert_eq!(line(&used, true), "key abababababababab: 1 row needs it; the first of encryption.keys");
        let missing = KeyUse { rows: 2, is_known: false, ..used };
        assert!(line(&missing, false).starts_with("key abababababababab: 2 rows need it; MISSING"));
    }
}
