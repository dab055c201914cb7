//! The description of the admin API, made from the table of endpoints and the table of refusals.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::endpoint::{Access, Answer, Endpoint, Header, Name, at, paths};
use super::parameter::{Kind, Parameter};
use super::refusal::{Code, problem_type};
use super::schema;
use super::who::role_name;

/// The whole description.
pub(super) fn document() -> Value {
    let paths = paths().into_iter().map(|path| (path.to_owned(), item(path)));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Onlyonce admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The API for operators. Every answer has Cache-Control: no-store. HEAD is answered like GET. A path that is not listed is 404 admin_not_found, another method 405 admin_method. Parameters and members that are not listed are refused.",
        },
        "paths": Value::Object(paths.collect()),
        "components": {
            "schemas": Value::Object(schemas()),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An [[admin_token]] of the settings. If the settings have none, requests from the machine itself need no token.",
                },
            },
        },
    })
}

fn item(path: &str) -> Value {
    let mut item = Map::new();
    let parameters: Vec<_> = path.split('/').filter_map(path_parameter).collect();
    if !parameters.is_empty() {
        item.insert("parameters".to_owned(), parameters.into());
    }
    for endpoint in at(path) {
        item.insert(endpoint.method.as_str().to_ascii_lowercase(), operation(endpoint));
    }
    Value::Object(item)
}

fn path_parameter(segment: &str) -> Option<Value> {
    let (schema, says) = match segment {
        "{scope}" => (Kind::Scope.schema(), "The scope in hex, as in Onlyonce-Scope."),
        "{key}" => (json!({ "type": "string" }), "The client's key, percent-encoded; a slash too."),
        "{id}" => (json!({ "type": "integer" }), "The message's number."),
        _ => return None,
    };
    let name = segment.trim_matches(['{', '}']);
    Some(json!({ "name": name, "in": "path", "required": true, "description": says, "schema": schema }))
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), endpoint.name.as_str().into());
    operation.insert("summary".to_owned(), endpoint.summary.into());
    if !endpoint.description.is_empty() {
        operation.insert("description".to_owned(), endpoint.description.into());
    }
    let (security, role) = match endpoint.access {
        Access::Open | Access::Page => (json!([]), None),
        Access::Needs(role) => (json!([{ "token": [] }]), Some(role_name(role))),
    };
    operation.insert("security".to_owned(), security);
    operation.insert("x-role".to_owned(), role.into());
    let query = endpoint.query.iter().map(query_parameter);
    let parameters: Vec<_> = query.chain(endpoint.headers.iter().map(header_parameter)).collect();
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), parameters.into());
    }
    if let Some(body) = endpoint.body {
        let content = json!({ "application/json": { "schema": reference(body) } });
        operation.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    operation.insert("responses".to_owned(), responses(endpoint));
    Value::Object(operation)
}

fn query_parameter(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "required": matches!(parameter.kind, Kind::Reason),
        "description": parameter.says,
        "schema": parameter.kind.schema(),
    })
}

fn header_parameter(header: &Header) -> Value {
    json!({
        "name": header.name,
        "in": "header",
        "required": false,
        "description": header.says,
        "schema": { "type": "string" },
    })
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    match endpoint.answer {
        Answer::Json(schema) => {
            let content = json!({ "application/json": { "schema": reference(schema) } });
            responses.insert("200".to_owned(), json!({ "description": "Done.", "content": content }));
            if endpoint.name == Name::Readyz {
                let description = "Not ready.";
                responses.insert("503".to_owned(), json!({ "description": description, "content": content }));
            }
        }
        Answer::Text(media) => {
            let content = json!({ media: { "schema": { "type": "string" } } });
            responses.insert("200".to_owned(), json!({ "description": "Done.", "content": content }));
        }
        Answer::Payload => {
            let description = "The bytes of the message, with their media type.";
            let content = json!({ "*/*": { "schema": { "type": "string", "format": "binary" } } });
            responses.insert("200".to_owned(), json!({ "description": description, "content": content }));
        }
        Answer::Stored => {
            let description = "The stored answer with its own status, marked with Idempotent-Replayed: true.";
            responses.insert("default".to_owned(), json!({ "description": description }));
        }
    }
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in endpoint.codes() {
        by_status.entry(code.status().as_u16()).or_default().push(code);
    }
    for (status, codes) in by_status {
        responses.insert(status.to_string(), refused(&codes));
    }
    Value::Object(responses)
}

fn refused(codes: &[Code]) -> Value {
    let told: Vec<_> = codes.iter().map(|code| format!("`{}`: {}.", code.as_str(), code.title())).collect();
    let schemas: Vec<_> = codes.iter().map(|code| reference(code.as_str())).collect();
    json!({
        "description": told.join(" "),
        "content": { "application/problem+json": { "schema": { "oneOf": schemas } } },
    })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn schemas() -> Map<String, Value> {
    let mut schemas = schema::all();
    for code in Code::ALL {
        schemas.insert(code.as_str().to_owned(), problem(*code));
    }
    schemas
}

/// The problem of one code.
fn problem(code: Code) -> Value {
    let mut properties = Map::new();
    properties.insert("type".to_owned(), json!({ "const": problem_type(code) }));
    properties.insert("title".to_owned(), json!({ "const": code.title() }));
    properties.insert("status".to_owned(), json!({ "const": code.status().as_u16() }));
    properties.insert("detail".to_owned(), json!({ "type": "string" }));
    properties.insert("code".to_owned(), json!({ "const": code.as_str() }));
    for member in code.members() {
        properties.insert((*member).to_owned(), schema::member(member));
    }
    let required: Vec<_> =
        ["type", "title", "status", "detail", "code"].iter().chain(code.members()).collect();
    json!({ "type": "object", "description": code.title(), "required": required, "properties": properties })
}
