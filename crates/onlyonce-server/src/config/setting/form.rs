//! How a value is written: what the reference calls it, and its JSON Schema, for editors.
//!
//! A schema takes every value that its setting takes. Some that it takes are refused when they are read: a file that is not
//! there, a number that conflicts with another setting.

use serde_json::{Value, json};

/// What the reference calls it, and its schema.
#[derive(Clone, Copy)]
pub(super) struct Form(pub(super) &'static str, pub(super) fn() -> Value);

pub(super) const FLAG: Form = Form("`true`, `false`", || json!({"type": "boolean"}));
pub(super) const TEXT: Form = Form("text", text);
pub(super) const COUNT: Form = Form("number", || json!({"type": "integer", "minimum": 0}));
pub(super) const PART: Form = Form("number", || json!({"type": "number", "minimum": 0, "maximum": 1}));
pub(super) const SPAN: Form = Form("duration", || matching(r"^\s*[0-9]+\s*(ms|s|m|min|h|d)\s*$"));
pub(super) const BYTES: Form = Form("bytes", || {
    let written = matching(r"^\s*[0-9]+\s*(B|KiB|MiB|GiB|kB|KB|MB|GB)?\s*$");
    json!({"anyOf": [{"type": "integer", "minimum": 0}, written]})
});
pub(super) const ADDRESS: Form =
    Form("address and port", || matching(r"^([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+$"));
pub(super) const NETWORKS: Form =
    Form("addresses and networks", || matching(r"^[0-9A-Fa-f:.]+(/\+?[0-9]+)?$"));
pub(super) const URL: Form = Form("URL", || matching(r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+([/?][^#]*)?$"));
pub(super) const STORE: Form = Form("URL of a store", || {
    matching(
        r"^(memory:$|sqlite:.|(postgres|postgresql|mysql|mariadb|redis|rediss|redis\+cluster|rediss\+cluster|dynamodb):)",
    )
});
pub(super) const CACHE: Form =
    Form("URL of a Redis", || matching(r"^(redis|rediss|redis\+cluster|rediss\+cluster):"));
pub(super) const FILE: Form = Form("path of a file", || json!({"type": "string", "minLength": 1}));
pub(super) const SECRET: Form = Form("secret", secret);
pub(super) const SECRETS: Form = Form("list of secrets", || list(&secret()));
pub(super) const HEADER: Form = Form("name of a header", header);
pub(super) const HEADERS: Form = Form("headers", header);
pub(super) const HEADER_TABLE: Form = Form(
    "table of headers",
    || json!({"type": "object", "patternProperties": {TOKEN: text()}, "additionalProperties": false}),
);
pub(super) const HEADER_VALUE: Form = Form("value of a header", text);
pub(super) const POINTER: Form = Form("JSON Pointer", || matching(POINTERS));
pub(super) const POINTER_LIST: Form = Form("JSON Pointers", || matching(POINTERS));
pub(super) const METHODS: Form = Form("methods", method);
pub(super) const REQUIRED: Form =
    Form("`true`, `false`, list of methods", || json!({"anyOf": [{"type": "boolean"}, list(&method())]}));
pub(super) const PATTERN: Form = Form("method and path", || matching(r"^\s*(([A-Z-]+|\*)\s+)?/[^?#\s]*\s*$"));
pub(super) const STATUSES: Form = Form("HTTP statuses", || statuses_from(200));
pub(super) const FAILURES: Form = Form("HTTP statuses", || statuses_from(300));
pub(super) const ERROR: Form = Form("HTTP status", || statuses_from(400));
pub(super) const KEY_SOURCES: Form = Form("`header:NAME`, `json:/POINTER`, `query:NAME`", || {
    matching(r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|json:(/([^~/]|~[01])*)+$|query:.)")
});
pub(super) const SCOPE_SOURCES: Form =
    Form("`header:NAME`, `trusted:NAME`, `jwt:CLAIM`, `certificate`, `route`", || {
        matching(r"^(route$|certificate$|(header|trusted):[!#$%&'*+.^_`|~0-9A-Za-z-]+$|jwt:[^\s])")
    });
pub(super) const PROVIDER_ID: Form = Form("`header:NAME`, `json:/pointer`", || {
    matching(r"^$|^header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|^json:(/([^~/]|~[01])*)+$")
});
pub(super) const DIRECTIVES: Form = Form("directives", text);

const TOKEN: &str = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
const POINTERS: &str = r"^(/([^~/]|~[01])*)+$";

fn text() -> Value {
    json!({"type": "string"})
}

fn header() -> Value {
    matching(TOKEN)
}

fn method() -> Value {
    matching("^[A-Z-]+$")
}

fn secret() -> Value {
    matching("^(env:[A-Za-z0-9_]+$|file:.)")
}

fn statuses_from(least: u16) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": 599})
}

fn matching(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

pub(super) fn list(element: &Value) -> Value {
    json!({"type": "array", "items": element})
}

/// One of these words.
pub(super) fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({"enum": words.into_iter().collect::<Vec<_>>()})
}

/// A table with these names, each of which has such a value.
pub(super) fn table<'a>(names: impl IntoIterator<Item = &'a str>, value: &Value) -> Value {
    let members: serde_json::Map<_, _> =
        names.into_iter().map(|name| (name.to_owned(), value.clone())).collect();
    json!({"type": "object", "properties": members, "additionalProperties": false})
}
