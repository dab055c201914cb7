//! A source of webhooks as settings have it.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use http_body_util::Full;

use super::Share;
use super::answer::Refusal;
use crate::config::{self, Sources, Webhook};

/// The one source of these settings.
pub(super) fn read(settings: &str, environment: &[(&str, &str)]) -> Webhook {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("onlyonce-webhook-{}-{number}.toml", std::process::id()));
    std::fs::write(&file, format!("upstream = 'http://127.0.0.1:3000'\n{settings}")).unwrap();
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let loaded = config::load(&Sources { file: Some(file.clone()), environment, ..Sources::default() });
    std::fs::remove_file(&file).unwrap();
    let [source] =
        loaded.unwrap_or_else(|faults| panic!("{faults}")).config.webhooks.try_into().expect("one source");
    source
}

/// A source with this setting beside its secret.
pub(super) fn source(setting: &str) -> Webhook {
    read(&format!("[webhooks.bank]\nsecrets = ['env:S']\n{setting}\n"), &[("S", "a secret of the tests")])
}

/// L06
#[tokio::test]
async fn what_all_webhooks_hold_together_is_bounded() {
    let held = AtomicU64::new(0);
    let share = || Share { held: &held, max: 3000, bytes: 0 };
    let body = || Full::new(Bytes::from(vec![b'x'; 2000]));
    let (mut first, mut second) = (share(), share());
    assert_eq!(super::read(body(), 2000, &mut first).await.unwrap().len(), 2000);
    assert_eq!(super::read(body(), 2000, &mut second).await, Err(Refusal::NoRoom));
    drop((first, second));
    assert!(super::read(body(), 2000, &mut share()).await.is_ok());
}
