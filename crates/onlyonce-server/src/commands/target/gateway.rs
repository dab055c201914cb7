//! A running gateway, asked by its admin API.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Scheme;
use http::{HeaderValue, Method, Uri};
use onlyonce::record::Response;
use serde_json::{Map, Value, json};

use super::http::{self as client, Answered, Asked, Lost, query, segment};
use super::{Failure, Filter, LogFilter, Name, Order, Saying, Stored, token};
use crate::cli::Where;
use crate::config;
use crate::tls::Connector;
use crate::view;

/// How long an answer may take. A change is told to every node before it is answered.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a purge may take: the request stays open until all is done.
const PURGED_WITHIN: Duration = Duration::from_secs(3_600);
/// Says what the person calls itself, in UTF-8.
const CLAIMS: &str = "onlyonce-as";

/// An admin port.
pub(crate) struct Gateway {
    base: Uri,
    /// As it was named, for messages.
    shown: String,
    authorization: Option<HeaderValue>,
    connector: Connector,
}

/// What `/readyz` says.
pub(crate) struct Ready {
    pub(crate) is_ready: bool,
    pub(crate) body: Value,
}

impl Gateway {
    pub(crate) fn new(place: &Where) -> Result<Self, Failure> {
        let shown = address(place)?;
        let base = parsed("--admin", &shown)?;
        let authorization = place.token.as_deref().map(token::authorization).transpose()?;
        let connector = Connector::for_url(&base)?;
        Ok(Self { base, shown, authorization, connector })
    }

    pub(super) async fn page(
        &self,
        filter: &Filter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        let Filter { state, scope, route, query: searched, dead } = filter.clone();
        let query = query([
            ("state", state),
            ("scope", scope),
            ("route", route),
            ("q", searched),
            ("dead_letter", dead.then(|| "true".to_owned())),
            ("cursor", cursor.map(str::to_owned)),
            ("limit", Some(limit.to_string())),
        ]);
        self.read(format!("/v1/keys{query}")).await
    }

    pub(super) async fn log_page(
        &self,
        filter: &LogFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        let LogFilter { who, action, scope, key, after } = filter.clone();
        let query = query([
            ("who", who),
            ("action", action),
            ("scope", scope),
            ("key", key),
            ("after", after.map(|after| format!("{after:.3}"))),
            ("cursor", cursor.map(str::to_owned)),
            ("limit", Some(limit.to_string())),
        ]);
        self.read(format!("/v1/audit{query}")).await
    }

    pub(super) async fn show(&self, name: &Name) -> Result<Value, Failure> {
        self.read(path_of(name)).await
    }

    pub(super) async fn response(&self, name: &Name, claims: Option<&str>) -> Result<Stored, Failure> {
        let asked = self.asked(Method::GET, format!("{}/response", path_of(name)), claims);
        let answered = self.send(asked).await?;
        // A stored answer may be a problem too. It is told by its marker.
        if answered.headers.contains_key("idempotent-replayed") {
            return Ok(Stored { status: answered.status.as_u16(), body: answered.body });
        }
        Err(self.failure(&answered))
    }

    pub(super) async fn verdict(
        &self,
        name: &Name,
        saying: &Saying,
        order: &Order,
    ) -> Result<Value, Failure> {
        let query = query([("force", flag(order.force)), ("dry_run", flag(order.dry_run))]);
        let path = format!("{}/verdict{query}", path_of(name));
        let body = Some(body_of(saying, &order.reason).to_string());
        let asked = self.asked(Method::POST, path, order.claims.as_deref());
        self.answer(Asked { body, ..asked }).await
    }

    pub(super) async fn forget(&self, name: &Name, order: &Order) -> Result<Value, Failure> {
        let path = format!("{}{}", path_of(name), query_of(order));
        self.answer(self.asked(Method::DELETE, path, order.claims.as_deref())).await
    }

    pub(super) async fn purge(&self, scope: &str, order: &Order) -> Result<Value, Failure> {
        let path = format!("/v1/scopes/{scope}{}", query_of(order));
        let asked = self.asked(Method::DELETE, path, order.claims.as_deref());
        self.answer(Asked { within: PURGED_WITHIN, ..asked }).await
    }

    /// A page of messages: `{"items","next"}`.
    pub(super) async fn messages(
        &self,
        state: Option<&str>,
        destination: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, Failure> {
        let query = query([
            ("state", state.map(str::to_owned)),
            ("destination", destination.map(str::to_owned)),
            ("cursor", cursor.map(str::to_owned)),
            ("limit", Some(limit.to_string())),
        ]);
        self.read(format!("/v1/outbox{query}")).await
    }

    /// Delivers a dead letter again.
    pub(crate) async fn redrive(&self, number: u64, order: &Order) -> Result<Value, Failure> {
        let path = format!("/v1/outbox/{number}/redrive{}", query([("dry_run", flag(order.dry_run))]));
        let asked = self.asked(Method::POST, path, order.claims.as_deref());
        self.answer(Asked { body: Some(json!({ "reason": order.reason }).to_string()), ..asked }).await
    }

    /// Delivers up to `limit` dead letters of a destination again.
    pub(crate) async fn redrive_many(
        &self,
        destination: &str,
        limit: usize,
        order: &Order,
    ) -> Result<Value, Failure> {
        let body = json!({
            "destination": destination,
            "reason": order.reason,
            "limit": limit,
            "dry_run": order.dry_run,
        });
        let asked = self.asked(Method::POST, "/v1/outbox/redrive".to_owned(), order.claims.as_deref());
        self.answer(Asked { body: Some(body.to_string()), within: PURGED_WITHIN, ..asked }).await
    }

    /// Deletes a message.
    pub(crate) async fn discard(&self, number: u64, order: &Order) -> Result<Value, Failure> {
        let path = format!("/v1/outbox/{number}{}", query_of(order));
        self.answer(self.asked(Method::DELETE, path, order.claims.as_deref())).await
    }

    /// Whether it serves keyed requests.
    pub(crate) async fn ready(&self) -> Result<Ready, Failure> {
        let answered = self.send(self.asked(Method::GET, "/readyz".to_owned(), None)).await?;
        let told: Option<Value> = serde_json::from_slice(&answered.body).ok().filter(Value::is_object);
        match (answered.status.as_u16(), told) {
            (200 | 503, Some(body)) => Ok(Ready { is_ready: answered.status.is_success(), body }),
            (_, _) => Err(self.failure(&answered)),
        }
    }

    /// What is stuck, and how the node is doing.
    pub(crate) async fn overview(&self) -> Result<Value, Failure> {
        self.read("/v1/overview".to_owned()).await
    }

    /// In Prometheus' text.
    pub(crate) async fn metrics(&self) -> Result<String, Failure> {
        let answered = self.send(self.asked(Method::GET, "/metrics".to_owned(), None)).await?;
        match answered.status.is_success() {
            true => Ok(String::from_utf8_lossy(&answered.body).into_owned()),
            false => Err(self.failure(&answered)),
        }
    }

    async fn read(&self, path: String) -> Result<Value, Failure> {
        self.answer(self.asked(Method::GET, path, None)).await
    }

    fn asked(&self, method: Method, path: String, claims: Option<&str>) -> Asked<'_> {
        let claims = claims.and_then(|claims| HeaderValue::from_bytes(claims.as_bytes()).ok());
        let headers = claims.map(|claims| (CLAIMS, claims)).into_iter().collect();
        Asked {
            method,
            path,
            headers,
            body: None,
            authorization: self.authorization.as_ref(),
            within: WITHIN,
        }
    }

    /// The JSON of an answer of 200; every other one is a failure.
    async fn answer(&self, asked: Asked<'_>) -> Result<Value, Failure> {
        let answered = self.send(asked).await?;
        if answered.status.is_success() {
            let told = serde_json::from_slice(&answered.body).ok().filter(Value::is_object);
            return told.ok_or_else(|| self.is_no_gateway(&answered));
        }
        Err(self.failure(&answered))
    }

    fn failure(&self, answered: &Answered) -> Failure {
        match problem(answered) {
            Some(problem) => refusal(answered, problem),
            None => self.is_no_gateway(answered),
        }
    }

    async fn send(&self, asked: Asked<'_>) -> Result<Answered, Failure> {
        let is_change = asked.method != Method::GET;
        client::send(&self.base, &self.connector, asked).await.map_err(|lost| match lost {
            Lost::Unreachable(error) => Failure::new(
                "gateway_unreachable",
                format!(
                    "no gateway answers at {}: {error:#}; give its address with --admin, or a store with --store",
                    self.shown
                ),
            ),
            Lost::Unanswered(error) => {
                let remedy =
                    if is_change { "the audit log shows whether anything was changed" } else { "try again" };
                let detail =
                    format!("{} received the request but did not answer: {error:#}; {remedy}", self.shown);
                Failure::new("gateway_unanswered", detail)
            }
        })
    }

    fn is_no_gateway(&self, answered: &Answered) -> Failure {
        let detail = format!(
            "the program at {} answers with {} and is not an admin port of this release; give a gateway's with --admin",
            self.shown,
            answered.status.as_u16()
        );
        Failure::new("gateway_unknown", detail).with_status(answered.status.as_u16())
    }
}

/// The policy that a gateway publishes to its clients.
pub(crate) async fn published(url: &str) -> Result<Value, Failure> {
    let base = parsed("--gateway", url.trim_end_matches('/'))?;
    let connector = Connector::for_url(&base)?;
    let asked = Asked {
        method: Method::GET,
        path: "/_onlyonce/policy".to_owned(),
        headers: Vec::new(),
        body: None,
        authorization: None,
        within: WITHIN,
    };
    let answered = client::send(&base, &connector, asked).await.map_err(|lost| match lost {
        Lost::Unreachable(error) => Failure::new(
            "gateway_unreachable",
            format!("no gateway answers at {url}: {error:#}; name its port for clients with --gateway"),
        ),
        Lost::Unanswered(error) => {
            Failure::new("gateway_unanswered", format!("{url} did not answer: {error:#}"))
        }
    })?;
    let told = answered.status.is_success().then(|| serde_json::from_slice(&answered.body).ok()).flatten();
    told.ok_or_else(|| {
        let status = answered.status.as_u16();
        let detail = format!(
            "what answers at {url} with {status} publishes no policy; name the port for clients of a gateway, not its admin port"
        );
        Failure::new("gateway_unknown", detail).with_status(status)
    })
}

/// Where the admin port is: as the arguments say, or else the settings.
pub(super) fn address(place: &Where) -> Result<String, Failure> {
    if let Some(admin) = &place.admin {
        return Ok(admin.trim_end_matches('/').to_owned());
    }
    let address = config::admin(&place.sources())?;
    if address.port() == 0 {
        return Err(Failure::arguments(format!(
            "admin is \"{address}\", a port that the gateway picks at its start; give the address of its ready line with --admin"
        )));
    }
    Ok(Where::url_of(address))
}

fn parsed(flag: &str, text: &str) -> Result<Uri, Failure> {
    let port = if flag == "--admin" { "an admin port" } else { "a gateway" };
    let wrong =
        |remedy: String| Failure::arguments(format!("{flag} \"{text}\" is not the URL of {port}; {remedy}"));
    if !text.contains("://") {
        return Err(wrong(format!("write http://{text}")));
    }
    let uri: Uri =
        text.parse().map_err(|error| wrong(format!("{error}; write it like http://127.0.0.1:8081")))?;
    let is_http = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    let is_bare =
        uri.query().is_none() && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if is_http && is_bare { Ok(uri) } else { Err(wrong("write it like http://127.0.0.1:8081".to_owned())) }
}

fn path_of(name: &Name) -> String {
    format!("/v1/keys/{}/{}", segment(&name.scope), segment(&name.key))
}

fn query_of(order: &Order) -> String {
    query([
        ("reason", Some(order.reason.clone())),
        ("force", flag(order.force)),
        ("dry_run", flag(order.dry_run)),
    ])
}

fn flag(is_set: bool) -> Option<String> {
    is_set.then(|| "true".to_owned())
}

fn body_of(saying: &Saying, reason: &str) -> Value {
    let mut body = json!({ "verdict": saying.word.as_str(), "reason": reason });
    if saying.never_will {
        body["final"] = true.into();
    }
    if saying.ask {
        body["ask"] = true.into();
    }
    if let Some(attempt) = &saying.attempt {
        body["token"] = attempt.to_string().into();
    }
    if let Some(response) = &saying.response {
        body["response"] = response_of(response);
    }
    body
}

/// An answer as a verdict carries it: a header that comes twice has a list of values.
fn response_of(response: &Response) -> Value {
    let mut headers: Map<String, Value> = Map::new();
    for (name, value) in &response.headers {
        let value = Value::from(String::from_utf8_lossy(value.as_bytes()).into_owned());
        match headers.get_mut(name.as_str()) {
            Some(Value::Array(values)) => values.push(value),
            Some(_) | None => drop(headers.insert(name.as_str().to_owned(), Value::Array(vec![value]))),
        }
    }
    let (member, body) = match std::str::from_utf8(&response.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", STANDARD.encode(&response.body)),
    };
    json!({ "status": response.status, "headers": headers, member: body })
}

/// The problem that an answer is.
fn problem(answered: &Answered) -> Option<Map<String, Value>> {
    let is_problem = answered
        .headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(b"application/problem+json"));
    let told = is_problem.then(|| serde_json::from_slice::<Value>(&answered.body).ok()).flatten()?;
    let told = view::object(told);
    told.get("code").is_some_and(Value::is_string).then_some(told)
}

fn refusal(answered: &Answered, problem: Map<String, Value>) -> Failure {
    let text = |name: &str| problem.get(name).and_then(Value::as_str).map(str::to_owned);
    let (code, status) = (text("code").unwrap_or_default(), answered.status.as_u16());
    let detail = text("detail").or_else(|| text("title")).unwrap_or_else(|| code.clone());
    let remedy = match status {
        401 => "; give its token with --token env:NAME or file:PATH",
        _ => "",
    };
    let detail = format!("{}{remedy}", as_command(detail.trim_end_matches('.')));
    Failure::new(code, detail).with_status(status).with_all(problem)
}

/// What the API tells of its own requests, in words for whoever gave a command.
fn as_command(detail: &str) -> String {
    detail
        .replace("force=true", "--force")
        .replace("GET /v1/keys?q=KEY", "onlyonce keys list --query KEY")
        .replace("GET /v1/outbox lists them", "onlyonce outbox list shows them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_url_of_an_admin_port_is_told_how_to_be_written() {
        for good in ["http://127.0.0.1:8081", "https://ops.example.com/onlyonce", "http://[::1]:8081"] {
            parsed("--admin", good).unwrap();
        }
        for (bad, told) in [
            ("127.0.0.1:8081", "write http://127.0.0.1:8081"),
            ("localhost", "write http://localhost"),
            ("ftp://x", "write it like"),
            ("http://", "write it like"),
            ("http://ann:s@x", "write it like"),
            ("http://x?y=z", "write it like"),
        ] {
            let error = parsed("--admin", bad).unwrap_err().to_string();
            assert!(error.contains(told), "{bad}: {error}");
        }
    }

    #[test]
    fn an_answer_keeps_every_header_and_every_byte() {
        let header = |name: &'static str, value: &'static str| {
            (http::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers =
            vec![header("set-cookie", "a"), header("content-type", "x/y"), header("set-cookie", "b")];
        let response = Response { status: 201, headers, body: Bytes::from_static(b"{}") };
        assert_eq!(
            response_of(&response),
            json!({ "status": 201, "headers": { "set-cookie": ["a", "b"], "content-type": ["x/y"] }, "body": "{}" })
        );
        let response = Response { status: 200, headers: Vec::new(), body: Bytes::from_static(b"\xff\x00") };
        assert_eq!(response_of(&response)["body_base64"], "/wA=");
    }
}
