//! A source of webhooks as settings have it.

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
