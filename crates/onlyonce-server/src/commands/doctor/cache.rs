//! What can be seen of the cache in front of the store.

use onlyonce::store::seal::Keyring;

use super::{Told, or_well, parted};
use crate::store::Cache;

pub(super) async fn look(cache: &Cache, encryption: Option<&Keyring>) -> Vec<Told> {
    let found = match cache.open(encryption).await {
        Ok(opened) => opened.examine().await.map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    match found {
        Ok(findings) => or_well(
            findings.into_iter().map(|finding| Told::warn(finding.says, finding.remedy)).collect(),
            format!("{cache} answers"),
        ),
        Err(error) => {
            let message = format!("{error:#}");
            let (wrong, remedy) = parted(&message);
            vec![Told::fail(wrong, if remedy.is_empty() { "correct cache, or unset it" } else { remedy })]
        }
    }
}
