//! Keys, certificates and the folder of the store, tried by those who will use them: better told by `check` than at the first handshake.

use super::Config;
use super::reader::Section;
use crate::store::Url;
use crate::{caller, tls};

pub(super) fn check(config: &Config, top: &Section<'_>) {
    check_folder(config, top);
    let has_keys = config.jwt.as_ref().is_some_and(|jwt| !jwt.keys.is_empty());
    if has_keys && let Err(faults) = caller::Callers::new(config) {
        for fault in faults.0 {
            let (section, name) = placed(fault.path, top);
            section.fault(name, fault.value, fault.remedy);
        }
    }
    if let Some(tls) = &config.tls {
        if let Err(error) = tls::Acceptor::new(tls) {
            tell(&format!("{error:#}"), "tls.cert", top);
        }
        for warning in tls::warnings(tls) {
            let (path, remedy) = split(&warning, "tls.cert");
            let (section, name) = placed(path, top);
            section.warn(name, None, remedy);
        }
    }
    // The upstream's own text is faulty where it has no host, and has been told then.
    if config.default.upstream.uri.host().is_some()
        && let Err(error) = tls::Connector::new(config)
    {
        tell(&format!("{error:#}"), "upstream_ca", top);
    }
}

/// The file of a store is created where it is missing, its folder is not.
fn check_folder(config: &Config, top: &Section<'_>) {
    let Url::Sqlite(path) = &config.store else { return };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let remedy = format!(
            "is in the folder \"{}\", which does not exist; create it first, or use another",
            folder.display()
        );
        top.fault("store", config.store.to_string(), remedy);
    }
}

fn tell(error: &str, otherwise: &str, top: &Section<'_>) {
    let (path, remedy) = split(error, otherwise);
    let (section, name) = placed(path, top);
    section.fault(name, None, remedy);
}

/// `tls.key: …` begins with its setting.
fn split<'a>(text: &'a str, otherwise: &'a str) -> (&'a str, &'a str) {
    let named = text.split_once(": ").filter(|(path, _)| super::setting::of(path).is_some());
    named.unwrap_or((otherwise, text))
}

fn placed<'a, 'b>(path: &'b str, top: &Section<'a>) -> (Section<'a>, &'b str) {
    match path.split_once('.') {
        Some((table, name)) => (top.inner(table), name),
        None => (top.clone(), path),
    }
}
