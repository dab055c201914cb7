//! The public part of the settings: which routes are covered, and how.
//!
//! `GET /_onlyonce/policy` returns it in our own format, `GET /_onlyonce/openapi.json` as a fragment to merge into an API's
//! description. Both are made once per load of the settings. Neither names an upstream, a secret or a scope source.

mod openapi;

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use onlyonce::policy::{Accept, Anonymous, InFlight, Mode, On5xx, OnExpired, StoreDown};
use onlyonce::{Effects, Policy};
use serde_json::{Value, json};

use crate::config::{Config, PathCase, Route};

const POLICY: &str = "/_onlyonce/policy";
const OPENAPI: &str = "/_onlyonce/openapi.json";

/// What is published.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    policy: Bytes,
    openapi: Bytes,
}

impl Published {
    pub(crate) fn of(config: &Config) -> Self {
        let routes = config.routes.iter().map(route).collect::<Vec<_>>();
        let policy = json!({
            "routes": routes,
            "default": route(&config.default),
            "path_case": match config.path_case {
                PathCase::Keep => "keep",
                PathCase::Fold => "fold",
            },
        });
        Self { policy: bytes(&policy), openapi: bytes(&openapi::document(config)) }
    }

    /// The answer to a request for one of the two; none where it is for neither.
    pub(crate) fn answer(&self, method: &Method, path: &str) -> Option<Response<Bytes>> {
        let body = match path {
            POLICY => &self.policy,
            OPENAPI => &self.openapi,
            _ => return None,
        };
        let mut response = Response::new(Bytes::new());
        if !matches!(*method, Method::GET | Method::HEAD) {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Some(response);
        }
        *response.body_mut() = body.clone();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Some(response)
    }
}

fn bytes(value: &Value) -> Bytes {
    let mut text = serde_json::to_vec_pretty(value).expect("a JSON value can be written");
    text.push(b'\n');
    text.into()
}

fn route(route: &Route) -> Value {
    let policy = &route.policy;
    json!({
        "match": &*route.name,
        "mode": mode(policy),
        "dialect": &*policy.dialect.name,
        "dialect_version": &*policy.dialect.version,
        "header": policy.key_headers().next().map(HeaderName::as_str),
        "key_from": policy.key_from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "methods": names(&policy.methods),
        "required": names(&policy.required),
        "key_chars_min": policy.key.chars_min,
        "key_chars_max": policy.key.chars_max,
        "anonymous": match policy.anonymous {
            Anonymous::Refuse => "refuse",
            Anonymous::Shared => "shared",
        },
        "effects": effects(policy.effects),
        "retention_seconds": seconds(policy.retention),
        "on_expired": match policy.on_expired {
            OnExpired::Run => "run",
            OnExpired::Gone => "gone",
        },
        "deadline_seconds": seconds(policy.deadline),
        "in_flight": match policy.in_flight {
            InFlight::Refuse => "refuse",
            InFlight::Accept => "accept",
            InFlight::Wait => "wait",
        },
        "wait_max_seconds": seconds(policy.wait_max),
        "accept": match policy.accept {
            Accept::Never => "never",
            Accept::Allowed => "allowed",
            Accept::Always => "always",
        },
        "release": policy.release,
        "unknown": policy.unknown,
        "on_5xx": match policy.on_5xx {
            On5xx::Retry => "retry",
            On5xx::Store => "store",
            On5xx::Unknown => "unknown",
        },
        "store_down": match policy.store_down {
            StoreDown::Refuse => "refuse",
            StoreDown::Run => "run",
        },
        "request_bytes_max": policy.request_bytes_max,
        "response_bytes_max": policy.response_bytes_max,
        "replayed_header": policy.dialect.replayed.as_str(),
    })
}

fn mode(policy: &Policy) -> &'static str {
    match policy.mode {
        Mode::Observe => "observe",
        Mode::Enforce => "enforce",
    }
}

fn effects(effects: Effects) -> &'static str {
    match effects {
        Effects::Local => "local",
        Effects::Keyed => "keyed",
        Effects::Queryable => "queryable",
        Effects::Opaque => "opaque",
    }
}

fn names(methods: &[Method]) -> Vec<&str> {
    methods.iter().map(Method::as_str).collect()
}

/// Whole seconds as an integer, so that a client reads `86400` and not `86400.0`.
fn seconds(span: Duration) -> Value {
    match span.subsec_nanos() {
        0 => json!(span.as_secs()),
        _ => json!(span.as_secs_f64()),
    }
}
