//! The description of the admin API against the running API: neither knows anything that the other does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;

use onlyonce_core::record::StateName;
use serde_json::{Value, json};

use crate::admin_world::{Answer, OPERATOR, READER, World, scope};
use crate::engines::{Engine, on_every_engine_with_messages};

on_every_engine_with_messages! {
    futures {
        every_operation_answers_as_it_is_described,
        every_refusal_that_is_described_is_given_as_described,
    }
}

/// What the document says, in the words of the tests.
struct Document(Value);

impl Document {
    async fn of(world: &World) -> Self {
        let answer = world.ask("GET", "/v1/openapi.json").token(READER).send().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        Self(answer.json())
    }

    /// Every operation: its method, its path and what the document says of it.
    fn operations(&self) -> Vec<(String, String, &Value)> {
        let paths = self.0["paths"].as_object().expect("it has paths");
        let of_path = paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().expect("an item").iter().filter(|(name, _)| *name != "parameters");
            methods.map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
        });
        of_path.collect()
    }

    fn operation(&self, method: &str, path: &str) -> &Value {
        let operation = &self.0["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not described");
        operation
    }

    /// Checks an answer against what is said of it: its media type, and every member.
    fn check(&self, method: &str, path: &str, answer: &Answer) {
        let responses = &self.operation(method, path)["responses"];
        let described = &responses[answer.status.to_string()];
        assert!(described.is_object(), "{method} {path} answers {} and does not say so", answer.status);
        let media = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
        let content = &described["content"];
        let schema = &content[if content.get(media).is_some() { media } else { "*/*" }]["schema"];
        assert!(schema.is_object(), "{method} {path} {}: {media} is not described", answer.status);
        if media.ends_with("json") && content.get("*/*").is_none() {
            let at = format!("{method} {path} {}", answer.status);
            self.fits(schema, &answer.json()).unwrap_or_else(|why| panic!("{at}: {why}: {}", answer.body));
        }
    }

    /// Whether a value fits a schema, and has no member that the schema does not know.
    fn fits(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap_or_default();
            let schema = &self.0["components"]["schemas"][name];
            return if schema.is_object() {
                self.fits(schema, value)
            } else {
                Err(format!("no schema {name}"))
            };
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let found = choices.iter().filter(|choice| self.fits(choice, value).is_ok()).count();
            return if found == 1 { Ok(()) } else { Err(format!("{value} fits {found} of {schema}")) };
        }
        if let Some(constant) = schema.get("const") {
            return if constant == value { Ok(()) } else { Err(format!("{value} is not {constant}")) };
        }
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            return Err(format!("{value} is none of {words:?}"));
        }
        match (schema["type"].as_str(), value) {
            (Some("object"), Value::Object(_)) => self.fits_object(schema, value),
            (Some("array"), Value::Array(items)) => {
                items.iter().try_for_each(|item| self.fits(&schema["items"], item))
            }
            (Some("string"), Value::String(text)) if schema["format"] == "date-time" => {
                let is_moment = text.len() == 24 && text.ends_with('Z') && text.as_bytes()[19] == b'.';
                if is_moment { Ok(()) } else { Err(format!("{text} is no moment with milliseconds")) }
            }
            (Some("string"), Value::String(_))
            | (Some("boolean"), Value::Bool(_))
            | (Some("null"), Value::Null)
            | (Some("number"), Value::Number(_)) => Ok(()),
            (Some("integer"), Value::Number(number)) if number.is_u64() => Ok(()),
            (kind, _) => Err(format!("{value} is no {kind:?}")),
        }
    }

    fn fits_object(&self, schema: &Value, value: &Value) -> Result<(), String> {
        for name in schema["required"].as_array().into_iter().flatten() {
            if value.get(name.as_str().unwrap_or_default()).is_none() {
                return Err(format!("{name} is missing"));
            }
        }
        for (name, member) in value.as_object().into_iter().flatten() {
            let known = match (schema["properties"].get(name), schema.get("additionalProperties")) {
                (Some(known), _) | (None, Some(known)) => known,
                // A schema without members says nothing about them.
                (None, None) if schema.get("properties").is_none() => continue,
                (None, None) => return Err(format!("{name} is not described")),
            };
            self.fits(known, member).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    /// Every code that an operation may be refused with.
    fn codes(operation: &Value) -> BTreeSet<String> {
        let responses = operation["responses"].as_object().into_iter().flatten();
        let schemas = responses.flat_map(|(_, response)| {
            let schema = &response["content"]["application/problem+json"]["schema"];
            schema["oneOf"].as_array().cloned().unwrap_or_default()
        });
        schemas.filter_map(|schema| Some(schema["$ref"].as_str()?.rsplit('/').next()?.to_owned())).collect()
    }
}

/// A request to every operation that succeeds, and what it is sent to.
fn good(method: &str, path: &str, key: &str) -> (String, Option<Value>) {
    let target = path.replace("{scope}", &scope("acme").to_string()).replace("{key}", key);
    let target = target.replace("{id}", "1");
    let query = if method == "DELETE" { "?reason=r&dry_run=true" } else { "" };
    let body = match path {
        "/v1/outbox/redrive" => json!({ "destination": "mail", "reason": "r", "dry_run": true }),
        "/v1/outbox/{id}/redrive" => json!({ "reason": "r" }),
        _ => json!({ "verdict": "happened", "reason": "r" }),
    };
    (format!("{target}{query}"), (method == "POST").then_some(body))
}

/// L04: every path of the document answers, as the document says.
async fn every_operation_answers_as_it_is_described(engine: Engine) {
    let world = World::with_tokens(engine).await;
    world.record("acme", "completed", StateName::Completed).await;
    world.dead_message("m").await;
    let document = Document::of(&world).await;
    let mut checked = 0;
    for (method, path, operation) in document.operations() {
        // A verdict settles an unknown record, the last one; until then it is in the lists.
        world.record("acme", &format!("unknown-{checked}"), StateName::Unknown).await;
        let key = if method == "POST" { format!("unknown-{checked}") } else { "completed".to_owned() };
        let (target, body) = good(&method, &path, &key);
        if path == "/v1/events" {
            let answer = world.ask("HEAD", target).token(OPERATOR).send().await;
            assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
            checked += 1;
            continue;
        }
        let mut ask = world.ask(&method, target).token(OPERATOR);
        if let Some(body) = body {
            ask = ask.json(&body);
        }
        let answer = ask.send().await;
        match operation["responses"].get("200") {
            Some(_) => {
                assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
                document.check(&method, &path, &answer);
            }
            None => assert_eq!(answer.header("idempotent-replayed"), Some("true"), "{method} {path}"),
        }
        let role = operation["x-role"].as_str();
        let as_reader = world.ask(&method, good(&method, &path, &key).0).token(READER).send().await.status;
        assert_eq!(as_reader == 403, role == Some("operate"), "{method} {path}: {role:?}");
        let as_nobody = world.ask(&method, good(&method, &path, &key).0).send().await.status;
        assert_eq!(as_nobody == 401, role.is_some(), "{method} {path}: {role:?}");
        assert_eq!(operation["security"] == json!([]), role.is_none(), "{method} {path}");
        checked += 1;
    }
    assert_eq!(checked, 23);
}

/// L04: what is not in the document is not served.
#[tokio::test]
async fn what_is_not_described_is_not_served() {
    let world = World::with_tokens(Engine::Memory).await;
    let document = Document::of(&world).await;
    let described: BTreeSet<_> =
        document.operations().into_iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let paths: BTreeSet<_> = document.operations().into_iter().map(|(_, path, _)| path).collect();
    for path in &paths {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            if path == "/v1/events" && method == "GET" {
                continue;
            }
            let (target, _) = good(method, path, "k");
            let answer = world.ask(method, target).token(OPERATOR).send().await;
            let is_described = described.contains(&format!("{method} {path}"));
            assert_eq!(answer.status != 405, is_described, "{method} {path}: {}", answer.body);
        }
    }
    // Around every path, and those that others have.
    let mut around: BTreeSet<String> = [
        "/assets",
        "/index.html",
        "/assets/app.css",
        "/v1",
        "/v2/keys",
        "/admin",
        "/debug",
        "/v1/messages",
        "/v1/scopes",
        "/v1/tokens",
        "/config",
        "/favicon.ico",
    ]
    .map(str::to_owned)
    .into();
    for path in &paths {
        let (target, _) = good("GET", path, "k");
        around.insert(format!("{target}/"));
        around.insert(format!("{target}/more/and/more"));
        around.extend(target.rsplit_once('/').map(|(parent, _)| parent.to_owned()).filter(|parent| {
            let is_key = parent.starts_with("/v1/keys/") && parent.split('/').count() == 5;
            let is_message = parent.starts_with("/v1/outbox/") && parent.split('/').count() == 4;
            !parent.is_empty() && !paths.contains(parent) && !is_key && !is_message
        }));
    }
    for target in around {
        let answer = world.ask("GET", &*target).token(OPERATOR).send().await;
        assert_eq!(answer.told(), (404, "admin_not_found".to_owned()), "{target}");
    }
}

/// O06: every refusal that is described can be had, with every member that is described.
async fn every_refusal_that_is_described_is_given_as_described(engine: Engine) {
    let world = World::with_tokens(engine).await;
    let local = World::new(engine).await;
    let down = World::new(engine).await;
    let document = Document::of(&world).await;
    for (world, state) in
        [(&world, StateName::Running), (&world, StateName::Completed), (&world, StateName::Unknown)]
    {
        world.record("acme", state.as_str(), state).await;
    }
    let dead = world.dead_message("dead").await;
    let claimed = world.claimed_message("claimed").await;
    assert_eq!((dead, claimed), (1, 2));
    down.switch_off();
    let keyless = World::new(engine).await;
    keyless.dead_message("dead").await;
    keyless.lose_key();
    let mut open = Vec::new();
    for (method, path, operation) in document.operations() {
        for code in Document::codes(operation) {
            let (target, body) = good(&method, &path, "unknown");
            let on = |key: &str| good(&method, &path, key).0.replace("&dry_run=true", "");
            let send =
                async |world: &World, target: String, body: Option<Value>, headers: &[(&str, &str)]| {
                    let mut ask = world.ask(&method, target);
                    for (name, value) in headers {
                        ask = ask.header(name, *value);
                    }
                    if let Some(body) = body {
                        ask = ask.json(&body);
                    }
                    ask.send().await
                };
            let ann = ("Authorization", OPERATOR);
            let did_not = Some(json!({ "verdict": "did-not-happen", "reason": "r" }));
            let answer = match &*code {
                "admin_request_invalid" => {
                    let more = if target.contains('?') { "&x=1" } else { "?x=1" };
                    send(&world, format!("{target}{more}"), body, &[ann]).await
                }
                "reason_missing" => {
                    let target = target.replace("reason=r&", "");
                    let without = match &*path {
                        "/v1/outbox/redrive" => json!({ "destination": "mail" }),
                        "/v1/outbox/{id}/redrive" => json!({}),
                        _ => json!({ "verdict": "happened" }),
                    };
                    send(&world, target, Some(without), &[ann]).await
                }
                "admin_unauthorized" => send(&world, target, body, &[]).await,
                "admin_forbidden" => send(&world, target, body, &[("Authorization", READER)]).await,
                "admin_origin_refused" => send(&world, target, body, &[ann, ("Origin", "null")]).await,
                "admin_host_refused" => send(&local, target, body, &[("host", "evil.com")]).await,
                "message_not_found" => {
                    let target = on("k").replace("/outbox/1", "/outbox/99");
                    send(&world, target, body, &[ann]).await
                }
                "message_claimed" | "message_not_dead" => {
                    let target = on("k").replace("/outbox/1", "/outbox/2");
                    send(&world, target, body, &[ann]).await
                }
                "record_not_found" => send(&world, on("nowhere"), body, &[ann]).await,
                "record_running" => send(&world, on("running"), body, &[ann]).await,
                "record_settled" => send(&world, on("completed"), body, &[ann]).await,
                "record_unknown" => send(&world, on("unknown"), body, &[ann]).await,
                "record_changed" => send(&world, on("unknown"), body, &[ann, ("If-Match", "\"x\"")]).await,
                "verdict_too_early" => send(&world, on("unknown"), did_not, &[ann]).await,
                "nothing_to_ask" => {
                    send(&world, on("unknown"), Some(json!({ "verdict": "unknown", "reason": "r" })), &[ann])
                        .await
                }
                "admin_body_too_large" => {
                    let large = json!({ "verdict": "x".repeat(3 << 20) });
                    send(&world, target, Some(large), &[ann]).await
                }
                "admin_content_type" => send(&world, target, None, &[ann]).await,
                "record_undecryptable" => send(&keyless, on("completed"), body, &[]).await,
                "store_unavailable" => send(&down, target, body, &[]).await,
                "admin_streams_taken" => {
                    // Each node has its own.
                    world.keep_to_one_node();
                    for _ in 0..64 {
                        open.push(world.ask("GET", "/v1/events").token(OPERATOR).begin().await);
                    }
                    // The last of them may still be on their way.
                    while world.ask("HEAD", "/v1/events").token(OPERATOR).send().await.status == 200 {}
                    send(&world, target, None, &[ann]).await
                }
                other => {
                    panic!("{method} {path} may be refused with {other}, which no request here brings about")
                }
            };
            assert_eq!(answer.told().1, code, "{method} {path}: {}", answer.body);
            document.check(&method, &path, &answer);
        }
    }
    // Those that belong to no operation.
    for (answer, code) in [
        (world.ask("GET", "/nowhere").token(OPERATOR).send().await, "admin_not_found"),
        (world.ask("PUT", "/v1/keys").token(OPERATOR).send().await, "admin_method"),
    ] {
        let schema = &document.0["components"]["schemas"][code];
        document.fits(schema, &answer.json()).unwrap_or_else(|why| panic!("{code}: {why}"));
    }
}

/// Tools read the document without this program's help.
#[tokio::test]
async fn the_document_is_whole() {
    let world = World::new(Engine::Memory).await;
    let document = world.get("/v1/openapi.json").await.json();
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap_or_default();
        assert!(schemas.contains_key(name), "{name}");
    }
    let document = Document(document);
    let ids: Vec<_> =
        document.operations().iter().map(|(.., operation)| operation["operationId"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    for (method, path, operation) in document.operations() {
        assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{method} {path}");
        let named = path.matches('{').count();
        let described = document.0["paths"][&path]["parameters"].as_array().map_or(0, Vec::len);
        assert_eq!(named, described, "{path}");
    }
}

/// O06: people read the same of every refusal as programs.
#[tokio::test]
async fn every_refusal_is_on_the_page_with_its_status_and_members() {
    let world = World::new(Engine::Memory).await;
    let document = world.get("/v1/openapi.json").await.json();
    let schemas = document["components"]["schemas"].as_object().unwrap().iter();
    let described: BTreeSet<_> = schemas
        .filter_map(|(code, schema)| {
            let status = schema["properties"]["status"]["const"].as_u64()?;
            let required = schema["required"].as_array()?.iter().skip(5).filter_map(Value::as_str);
            let members: Vec<_> = required.map(|name| format!("`{name}`")).collect();
            Some((status.to_string(), format!("`{code}`"), members.join(", ")))
        })
        .collect();
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/admin-api.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let (_, refusals) = page.split_once("## Refusals").expect("it has a section");
    let rows = refusals.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| status"));
    let told: BTreeSet<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].to_owned(), cells[1].to_owned(), cells[3].to_owned())
        })
        .collect();
    assert_eq!(told, described);
}
