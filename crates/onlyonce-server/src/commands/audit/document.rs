//! An OpenAPI 3 or Swagger 2 document: which operations change something, and what they declare.
//!
//! What cannot be followed is an error, never left out: an operation that is not seen would count as protected.

use std::path::Path;

use http::Method;
use serde_json::{Map, Value};

use super::super::failure::Failure;
use super::super::text::clean;

/// The largest document that is read.
const BYTES_MAX: u64 = 64 << 20;
/// The most nodes of a YAML document, aliases counted as often as they are used.
const NODES_MAX: usize = 4_000_000;
/// As deep as JSON may be.
const DEPTH_MAX: usize = 128;
/// How many references are followed from one to the next.
const REFERENCES_MAX: usize = 32;
/// The methods that are looked at.
const METHODS: [(&str, Method); 4] =
    [("post", Method::POST), ("put", Method::PUT), ("patch", Method::PATCH), ("delete", Method::DELETE)];

/// What is known of a document.
#[derive(Debug)]
pub(in crate::commands) struct Document {
    pub(super) title: Value,
    pub(super) version: Value,
    pub(in crate::commands) operations: Vec<Operation>,
}

/// A write.
#[derive(Debug)]
pub(in crate::commands) struct Operation {
    pub(in crate::commands) method: Method,
    /// As the document has it.
    pub(super) path: String,
    /// The same behind the base path: what clients send.
    pub(in crate::commands) whole: String,
    pub(super) operation_id: Option<String>,
    /// Headers that it lists as parameters.
    pub(in crate::commands) headers: Vec<String>,
}

impl Document {
    /// `base` stands in front of all paths instead of what the document says.
    pub(in crate::commands) fn open(file: &Path, base: Option<&str>) -> Result<Self, Failure> {
        let name = clean(&file.display().to_string());
        let failed = |told: String| Failure::new("document_unreadable", format!("\"{name}\" {told}"));
        let cannot = |error: std::io::Error| failed(format!("cannot be read: {error}"));
        let bytes = file.metadata().map_err(cannot)?.len();
        if bytes > BYTES_MAX {
            return Err(failed(format!("is larger than {} MiB", BYTES_MAX >> 20)));
        }
        let text = std::fs::read(file).map_err(cannot)?;
        let text = String::from_utf8(text).map_err(|_| failed("is not text in UTF-8".to_owned()))?;
        parsed(text.trim_start_matches('\u{feff}'), base).map_err(failed)
    }
}

fn parsed(text: &str, base: Option<&str>) -> Result<Document, String> {
    let document = tree(text)?;
    let is_version =
        |name: &str, begins: &str| shown(&document[name]).is_some_and(|version| version.starts_with(begins));
    let is_swagger = is_version("swagger", "2");
    if !is_swagger && !is_version("openapi", "3") {
        return Err(match (shown(&document["openapi"]), shown(&document["swagger"])) {
            (Some(version), _) | (None, Some(version)) => {
                format!("is of version \"{}\"; OpenAPI 3 and Swagger 2 can be read", clean(&version))
            }
            (None, None) => {
                "is not an OpenAPI document: it has neither \"openapi\" nor \"swagger\" with a version"
                    .to_owned()
            }
        });
    }
    let paths = document["paths"].as_object().ok_or("has no paths, so there is nothing to audit")?;
    let base = match (base, is_swagger) {
        (Some(base), _) => Some(trimmed(base)),
        (None, true) => Some(trimmed(document["basePath"].as_str().unwrap_or_default())),
        (None, false) => None,
    };
    let mut operations = Vec::new();
    for (path, item) in paths.iter().filter(|(path, _)| path.starts_with('/')) {
        let item = resolved(&document, item)
            .map_err(|told| format!("has a path \"{}\" that {told}", clean(path)))?;
        for (name, method) in METHODS {
            let Some(operation) = item.get(name) else { continue };
            let place = format!("{method} {}", clean(path));
            let operation =
                resolved(&document, operation).map_err(|told| format!("has {place}, which {told}"))?;
            let servers = [operation.get("servers"), item.get("servers"), document.get("servers")];
            let base = base.clone().unwrap_or_else(|| server_path(servers.into_iter().flatten().next()));
            let mut headers = declared(&document, item.get("parameters"))?;
            headers.extend(declared(&document, operation.get("parameters"))?);
            operations.push(Operation {
                method,
                path: path.clone(),
                whole: format!("{base}{path}"),
                operation_id: operation.get("operationId").and_then(shown),
                headers,
            });
        }
    }
    let info = &document["info"];
    let told = |name: &str| shown(&info[name]).map_or(Value::Null, Value::from);
    Ok(Document { title: told("title"), version: told("version"), operations })
}

/// JSON where it begins as an object, else YAML, of which JSON is nearly a part.
fn tree(text: &str) -> Result<Value, String> {
    let begins = text.trim_start();
    if begins.is_empty() {
        return Err("is empty".to_owned());
    }
    let value: Value = if begins.starts_with(['{', '[']) {
        serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?
    } else {
        yaml(text)?
    };
    if value.is_object() {
        Ok(value)
    } else {
        Err("is not an OpenAPI document: it is not an object".to_owned())
    }
}

fn yaml(text: &str) -> Result<Value, String> {
    let told = |error: serde_saphyr::Error| {
        let told = error.to_string();
        format!("is not YAML: {}", clean(told.lines().next().unwrap_or_default()))
    };
    // The largest public documents have about a million nodes; the usual limits are for configuration files.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES_MAX, max_events: 4 * NODES_MAX, max_depth: DEPTH_MAX },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(told)
}

/// Text, or a number as text: `version: 1.0` is a number in YAML.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// An object, or what its `$ref` leads to.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    let mut value = value;
    for _ in 0..REFERENCES_MAX {
        let object = value.as_object().ok_or("is not an object")?;
        let Some(reference) = object.get("$ref") else { return Ok(object) };
        let reference = reference.as_str().ok_or("has a $ref that is not a string")?;
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(format!(
                "refers to another document, \"{}\"; bundle both into one first",
                clean(reference)
            ));
        };
        let pointer = unescaped(pointer);
        value = document
            .pointer(&pointer)
            .ok_or_else(|| format!("refers to \"{}\", which does not exist", clean(reference)))?;
    }
    Err("refers to itself".to_owned())
}

/// A pointer in a fragment may be percent-encoded.
fn unescaped(pointer: &str) -> String {
    use onlyonce::percent::{Piece, pieces};
    let bytes = pieces(pointer.as_bytes()).map(|piece| match piece {
        Piece::Plain(byte) | Piece::Escaped(byte) => byte,
        Piece::Malformed => b'%',
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

fn declared(document: &Value, parameters: Option<&Value>) -> Result<Vec<String>, String> {
    let mut headers = Vec::new();
    for parameter in parameters.and_then(Value::as_array).into_iter().flatten() {
        let parameter =
            resolved(document, parameter).map_err(|told| format!("has a parameter that {told}"))?;
        if parameter.get("in").is_some_and(|place| place == "header") {
            headers.extend(parameter.get("name").and_then(Value::as_str).map(str::to_owned));
        }
    }
    Ok(headers)
}

/// The path of the first server, with the defaults of its variables.
fn server_path(servers: Option<&Value>) -> String {
    let Some(server) = servers.and_then(|servers| servers.get(0)) else { return String::new() };
    let mut url = server["url"].as_str().unwrap_or_default().to_owned();
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        if let Some(default) = shown(&variable["default"]) {
            url = url.replace(&format!("{{{name}}}"), &default);
        }
    }
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None if url.starts_with('/') => &url,
        // Relative to where the document is, which is not known here.
        None => "",
    };
    trimmed(path.split(['?', '#']).next().unwrap_or_default())
}

/// With a slash in front and none at the end; empty for the root.
fn trimmed(base: &str) -> String {
    let base = base.trim_matches('/');
    if base.is_empty() { String::new() } else { format!("/{base}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Vec<String> {
        let document = parsed(text, None).unwrap_or_else(|told| panic!("{told}: {text}"));
        document
            .operations
            .iter()
            .map(|operation| format!("{} {}", operation.method, operation.whole))
            .collect()
    }

    /// O08
    #[test]
    fn yaml_json_and_both_formats_are_read() {
        let yaml = "openapi: 3.1.0\ninfo: {title: Pay, version: 1.0}\npaths:\n  /a:\n    get: {}\n    post:\n      responses:\n        200: {description: ok}\n        default: {description: no}\n";
        assert_eq!(whole(yaml), ["POST /a"]);
        assert_eq!(parsed(yaml, None).unwrap().version, "1.0");
        assert_eq!(
            whole(r#"{"swagger":"2.0","basePath":"/v2/","paths":{"/a":{"put":{},"delete":{},"head":{}}}}"#),
            ["PUT /v2/a", "DELETE /v2/a"]
        );
        assert_eq!(whole("swagger: 2.0\npaths: {/a: {patch: {}}}\n"), ["PATCH /a"]);
    }

    /// O08
    #[test]
    fn the_base_is_that_of_the_nearest_server() {
        for (servers, expected) in [
            (r#"[{"url":"https://api.example.com/v1/"}]"#, "/v1/a"),
            (r#"[{"url":"https://api.example.com"}]"#, "/a"),
            (r#"[{"url":"/v1"},{"url":"/v2"}]"#, "/v1/a"),
            (
                r#"[{"url":"https://{host}/{version}","variables":{"host":{"default":"x.y"},"version":{"default":"v3"}}}]"#,
                "/v3/a",
            ),
            ("[]", "/a"),
        ] {
            let text =
                format!(r#"{{"openapi":"3.0.3","servers":{servers},"paths":{{"/a":{{"post":{{}}}}}}}}"#);
            assert_eq!(whole(&text), [format!("POST {expected}")], "{servers}");
            assert_eq!(parsed(&text, Some("b")).unwrap().operations[0].whole, "/b/a");
        }
        let own = r#"{"openapi":"3.0.3","servers":[{"url":"/v1"}],"paths":{"/a":{"servers":[{"url":"/v2"}],"post":{},"put":{"servers":[{"url":"/v3"}]}}}}"#;
        assert_eq!(whole(own), ["POST /v2/a", "PUT /v3/a"]);
    }

    /// O08
    #[test]
    fn references_are_followed_and_those_that_cannot_be_are_told() {
        let text = r##"{"openapi":"3.1.0","paths":{"/a":{"$ref":"#/components/pathItems/A"}},"components":{"pathItems":{"A":{
            "parameters":[{"$ref":"#/components/parameters/Key"}],"post":{"operationId":"make"}}},
            "parameters":{"Key":{"name":"Idempotency-Key","in":"header"}}}}"##;
        let document = parsed(text, None).unwrap();
        let operation = &document.operations[0];
        assert_eq!(operation.operation_id.as_deref(), Some("make"));
        assert_eq!(operation.headers, ["Idempotency-Key"]);
        for (item, told) in [
            (r##"{"$ref":"other.yaml#/a"}"##, "bundle both into one first"),
            (r##"{"$ref":"#/nowhere"}"##, "does not exist"),
            (r##"{"$ref":"#/paths/~1a"}"##, "refers to itself"),
            ("7", "is not an object"),
        ] {
            let text = format!(r#"{{"openapi":"3.1.0","paths":{{"/a":{item}}}}}"#);
            let error = parsed(&text, None).unwrap_err();
            assert!(error.contains(told), "{item}: {error}");
        }
    }

    /// O08
    #[test]
    fn what_is_no_document_is_told() {
        for (text, told) in [
            ("", "is empty"),
            ("  \n", "is empty"),
            ("hello", "is not an OpenAPI document"),
            ("- a\n- b\n", "is not an OpenAPI document"),
            ("[]", "is not an OpenAPI document"),
            ("{", "is not JSON"),
            ("a: [", "is not YAML"),
            ("a: 1\n", "neither \"openapi\" nor \"swagger\""),
            (r#"{"openapi":"4.0.0","paths":{}}"#, "is of version \"4.0.0\""),
            (r#"{"swagger":"1.2","paths":{}}"#, "is of version \"1.2\""),
            (r#"{"openapi":"3.1.0"}"#, "has no paths"),
            (r#"{"openapi":"3.1.0","paths":[]}"#, "has no paths"),
        ] {
            let error = parsed(text, None).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        let deep = format!("openapi: 3.0.0\npaths: {{/a: {}1{}}}\n", "{a: ".repeat(100), "}".repeat(100));
        assert_eq!(parsed(&deep, None).map(|document| document.operations.len()), Ok(0));
        let bottomless = format!("a: {}", "[".repeat(100_000));
        assert!(parsed(&bottomless, None).unwrap_err().contains("is not YAML"));
        let bomb: String = std::iter::once("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned())
            .chain((1..12).map(|n| {
                let before = vec![format!("*a{}", n - 1); 10].join(",");
                format!("a{n}: &a{n} [{before}]\n")
            }))
            .collect();
        assert!(parsed(&bomb, None).unwrap_err().contains("is not YAML"));
    }
}
