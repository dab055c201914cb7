//! A case's settings as a file for the gateway, and what its callers show.

use std::net::SocketAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use toml::{Table, Value};

use crate::runner::data::Case;
use crate::runner::store::Folder;

/// What tokens are signed with, where a scope names a claim.
const SECRET: &str = "a secret of the cases, 32 bytes and more";
/// The year 2100.
const EXPIRES: u64 = 4_102_444_800;

/// Writes the settings of a gateway before the service at `service`.
pub(crate) fn write(case: &Case, folder: &Folder, service: SocketAddr, store: &str) -> PathBuf {
    let mut policy = table([("required", true.into())]);
    policy.extend(case.setup.clone());
    let mut settings = table([
        ("listen", "127.0.0.1:0".into()),
        ("admin", "127.0.0.1:0".into()),
        ("upstream", format!("http://{service}").into()),
        ("store", store.into()),
        ("policy", policy.into()),
        ("limits", case.limits.clone().into()),
        ("log", table([("filter", LOGGED.into())]).into()),
    ]);
    let optional = [("/opt".to_owned(), table([("required", false.into())]))];
    let routes = optional.into_iter().chain(case.routes.clone());
    settings
        .insert("route".to_owned(), routes.map(|(path, own)| route(path, own)).collect::<Vec<_>>().into());
    if has_claim(case) {
        let key = format!("file:{}", written(folder, "key", SECRET).display());
        settings.insert("jwt".to_owned(), table([("keys", vec![key].into())]).into());
    }
    written(folder, "toml", &settings.to_string())
}

fn written(folder: &Folder, ending: &str, text: &str) -> PathBuf {
    let path = folder.new_file(ending);
    std::fs::write(&path, text).expect("a new file can be written");
    path
}

/// As the cases in this process are logged.
const LOGGED: &str = "info,onlyonce=trace,onlyonce_core=trace,onlyonce_server=trace,onlyonce_store=trace";

fn route(path: String, mut own: Table) -> Value {
    own.insert("match".to_owned(), path.into());
    own.into()
}

fn table<const N: usize>(settings: [(&str, Value); N]) -> Table {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The credential itself, or a signed token of the subject: one a credential, as if it had been refreshed.
pub(crate) fn token(case: &Case, credential: &str, subject: &str) -> String {
    if !has_claim(case) {
        return credential.to_owned();
    }
    let claims = serde_json::json!({ "sub": subject, "jti": credential, "exp": EXPIRES });
    let parts = [r#"{"alg":"HS256"}"#.to_owned(), claims.to_string()];
    let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Whether a scope of the case names a claim.
fn has_claim(case: &Case) -> bool {
    let scopes = case.routes.values().chain([&case.setup]).filter_map(|settings| settings.get("scope"));
    scopes
        .flat_map(|scope| scope.as_array().into_iter().flatten())
        .any(|source| source.as_str().is_some_and(|source| source.starts_with("jwt:")))
}
