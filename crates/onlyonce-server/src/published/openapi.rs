//! The routes as an OpenAPI fragment: the key's header on every covered operation, and the gateway's own responses.

use http::Method;
use onlyonce::key::Source;
use onlyonce::policy::{Accept, Mode};
use onlyonce::refusal::Code;
use serde_json::{Map, Value, json};

use crate::config::{Config, Pattern, Route, Segment};

/// A path for all others.
const ANY_PATH: &str = "/{path}";

pub(super) fn document(config: &Config) -> Value {
    let mut paths = Map::new();
    for route in config.routes.iter().chain([&config.default]) {
        let (path, parameters) = route.pattern.as_ref().map_or_else(any_path, path);
        let item = paths.entry(path).or_insert_with(|| item(&parameters));
        for method in methods(route) {
            // The first matching route wins, here too.
            let name = method.as_str().to_ascii_lowercase();
            item.as_object_mut()
                .expect("an item was made an object")
                .entry(name)
                .or_insert_with(|| operation(route, method));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Idempotency",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The operations that take an idempotency key, and their answers. This is a fragment: merge it into your API's own description.",
        },
        "paths": paths,
        "components": { "schemas": { "Problem": problem() } },
    })
}

/// The covered methods of this route.
fn methods(route: &Route) -> Vec<&Method> {
    let only = route.pattern.as_ref().and_then(|pattern| pattern.method.as_ref());
    route.policy.methods.iter().filter(|method| only.is_none_or(|only| only == *method)).collect()
}

fn any_path() -> (String, Vec<String>) {
    (ANY_PATH.to_owned(), vec!["path".to_owned()])
}

/// `/payments/*` is `/payments/{p1}`.
fn path(pattern: &Pattern) -> (String, Vec<String>) {
    let mut parameters = Vec::new();
    let mut path = String::new();
    for segment in &pattern.segments {
        path.push('/');
        match segment {
            Segment::Text(text) => path.push_str(text),
            Segment::One | Segment::Rest => {
                let name = match segment {
                    Segment::Rest => "rest".to_owned(),
                    Segment::Text(_) | Segment::One => format!("p{}", parameters.len() + 1),
                };
                path.push_str(&format!("{{{name}}}"));
                parameters.push(name);
            }
        }
    }
    if path.is_empty() {
        path.push('/');
    }
    (path, parameters)
}

fn item(parameters: &[String]) -> Value {
    let parameters: Vec<_> = parameters
        .iter()
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    if parameters.is_empty() { json!({}) } else { json!({ "parameters": parameters }) }
}

fn operation(route: &Route, method: &Method) -> Value {
    let policy = &route.policy;
    let is_required = policy.required.contains(method) && policy.mode == Mode::Enforce;
    let retention = policy.retention.as_secs();
    let told = format!(
        "Created by the client: one for each operation, the same for every retry of it. A retry within {retention} s of the first answer gets that answer again."
    );
    let schema =
        json!({ "type": "string", "minLength": policy.key.chars_min, "maxLength": policy.key.chars_max });
    let parameter = |name: &str, place: &str| {
        json!({
            "name": name,
            "in": place,
            // Of several places, one is enough.
            "required": is_required && policy.key_from.len() == 1,
            "description": told,
            "schema": schema,
        })
    };
    let parameters = policy.key_from.iter().filter_map(|source| match source {
        Source::Header(name) => Some(parameter(name.as_str(), "header")),
        Source::Query(name) => Some(parameter(name, "query")),
        // A member of the body, which the API's own description has.
        Source::Json(_) => None,
    });
    json!({
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": responses(route),
        "x-onlyonce": {
            "match": &*route.name,
            "mode": super::mode(policy),
            "effects": super::effects(policy.effects),
            "key_from": policy.key_from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
    })
}

/// The gateway's own responses, by status.
fn responses(route: &Route) -> Value {
    let dialect = &route.policy.dialect;
    let mut by_status: Map<String, Value> = Map::new();
    if route.policy.mode == Mode::Observe {
        return json!({ "default": own(route) });
    }
    for code in Code::ALL {
        let status = dialect.status(code).to_string();
        let line = format!("{}: {}", dialect.code(code), code.title());
        let response = by_status.entry(status).or_insert_with(|| {
            json!({ "description": "", "content": { &*dialect.content_type: { "schema": schema(route) } } })
        });
        let told = response["description"].as_str().unwrap_or_default();
        let told = if told.is_empty() { line } else { format!("{told}; {line}") };
        response["description"] = json!(told);
    }
    if route.policy.accept != Accept::Never {
        let told = "Accepted: a worker runs the request. Location is the URL of its state and its answer.";
        by_status.insert("202".to_owned(), json!({ "description": told }));
    }
    by_status.insert("default".to_owned(), own(route));
    Value::Object(by_status)
}

/// The shape of a refusal: problem details, or whatever object the dialect makes of it.
fn schema(route: &Route) -> Value {
    match &*route.policy.dialect.content_type {
        "application/problem+json" => json!({ "$ref": "#/components/schemas/Problem" }),
        _ => json!({ "type": "object" }),
    }
}

/// The service's own answer.
fn own(route: &Route) -> Value {
    let text = json!({ "schema": { "type": "string" } });
    json!({
        "description": "The service's own answer, or a replay of it.",
        "headers": {
            route.policy.dialect.replayed.as_str(): text,
            "Idempotency-Key-Expires": text,
            "Idempotency-Stored": text,
        },
    })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "retryable"],
        "properties": {
            "type": { "type": "string", "format": "uri" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string", "enum": codes() },
            "retryable": { "type": "boolean" },
        },
    })
}

fn codes() -> Vec<&'static str> {
    let mut codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    codes.dedup();
    codes
}
