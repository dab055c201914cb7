//! Secrets stand outside the settings: `env:NAME` or `file:PATH` says where.

use std::collections::BTreeMap;

use super::Secret;
use super::tree::Node;
use super::value::{self, Read, Wrong, text};

/// The variables that `env:NAME` refers to.
pub(super) type Environment<'a> = BTreeMap<&'a str, &'a str>;

const EXPECTED: &str = "write env:NAME for a variable or file:PATH for a file; the secret itself does not belong in the settings";

/// Reads the secret that `node` points to. Nothing of a value that is no such pointer is ever shown.
pub(super) fn read(node: &Node, environment: &Environment<'_>) -> Read<Secret> {
    let told = |remedy: String| Err(vec![Wrong { value: None, remedy }]);
    let Ok(source) = text(node) else { return told(format!("is not a string; {EXPECTED}")) };
    let bytes = match source.split_once(':') {
        Some(("env", name)) if is_name(name) => match environment.get(name) {
            Some(value) => value.as_bytes().to_vec(),
            None => return told(format!("variable {name} is not set; set it, or use another")),
        },
        Some(("file", path)) if !path.is_empty() => match std::fs::read(path) {
            Ok(bytes) => without_newline(bytes),
            Err(error) => {
                return told(format!(
                    "file \"{path}\" cannot be read: {error}; use a file that this user may read"
                ));
            }
        },
        _ => return told(format!("does not say where a secret is; {EXPECTED}")),
    };
    if bytes.is_empty() {
        return told(format!(
            "{source} is empty; put some random bytes there, such as the output of `openssl rand -base64 32`"
        ));
    }
    Ok(Secret { source, bytes })
}

/// The same, or a text that stands there itself and is never shown either.
pub(super) fn or_text(node: &Node, environment: &Environment<'_>) -> Read<Secret> {
    match text(node) {
        Ok(plain) if !is_place(&plain) => {
            Ok(Secret { source: "a text".to_owned(), bytes: plain.into_bytes() })
        }
        Ok(_) | Err(_) => read(node, environment),
    }
}

/// Whether a text says where a secret is.
pub(super) fn is_place(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("file:")
}

pub(super) fn list(node: &Node, environment: &Environment<'_>) -> Read<Vec<Secret>> {
    value::list(node, "[\"env:NAME\", \"file:PATH\"]", |node| read(node, environment))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Editors end a file with a newline that is no part of the secret.
fn without_newline(mut bytes: Vec<u8>) -> Vec<u8> {
    for end in [b'\n', b'\r'] {
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
    }
    bytes
}
