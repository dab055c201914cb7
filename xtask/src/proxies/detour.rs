//! The checks of the detour: who takes it, who does not, what arrives, and what a proxy does by itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use onlyonce_testkit::http::{self, Answer, Request};
use serde_json::Value;

use super::proxy::{EmptyKey, Proxy};
use super::service::Service;
use super::used;

const ORDER: &str = r#"{"amount":7450}"#;
const AT_ONCE: usize = 8;
/// A refusal that is lost now and then shows in so many.
const REFUSALS: usize = 400;
/// By how much the body of each comes after its head.
const BODY_LATER: Duration = Duration::from_millis(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The gateway's limit is 1 MiB, as is nginx's own: a body of nearly this size must pass, and a larger one is the gateway's to refuse.
const LARGE_BYTES: usize = 1_000_000;
const TOO_LARGE_BYTES: usize = 2_000_000;
/// A path that a proxy could decode, and a query.
const RAW_PATH: &str = "/pay/a%2Fb%20c?to=%2Fx&a=1";

pub(super) struct Detour<'a> {
    pub(super) proxy: &'a Proxy,
    /// Where clients connect.
    pub(super) address: &'a str,
    pub(super) service: &'a Service,
    pub(super) broken: usize,
}

/// The values of the key's header, as the client sends them.
type Keys<'a> = &'a [(&'a str, &'a str)];

/// What a check needs in order to say anything.
#[derive(Clone, Copy)]
enum Connection {
    /// The proxy must have used the connection before.
    Used,
    Any,
}

const NO_KEY: Keys<'static> = &[];

impl Detour<'_> {
    pub(super) fn check_with_gateway(&mut self) -> Result<()> {
        self.takes_it_with_a_key()?;
        self.passes_by_without()?;
        self.keys_that_are_no_keys()?;
        self.refusals_arrive();
        self.many_at_once()?;
        self.large_bodies()?;
        self.a_service_that_dies()
    }

    /// The gateway is gone: only who does not need it is served.
    pub(super) fn check_without_gateway(&mut self) -> Result<()> {
        let before = self.service.runs();
        let unkeyed = self.send("/pay", NO_KEY, ORDER)?;
        self.judge(
            "without the gateway, requests without a key are served",
            is_run(&unkeyed, None),
            before + 1,
        );
        let keyed = self.send("/pay", &[("Idempotency-Key", "while-away")], ORDER)?;
        let is_refused = matches!(keyed.status, 502..=504);
        self.judge(
            &format!("and those with a key get {} by the proxy, and do not run", keyed.status),
            is_refused,
            before + 1,
        );
        Ok(())
    }

    fn takes_it_with_a_key(&mut self) -> Result<()> {
        let before = self.service.runs();
        // In another case: names of headers have none.
        let first = self.send(RAW_PATH, &[("iDEMPOTENCY-kEY", "first-1")], ORDER)?;
        let is_first = is_run(&first, Some("1")) && is_unchanged(&first);
        self.judge("with a key the gateway is asked, and the work runs", is_first, before + 1);
        self.judge(
            "path, Host and the addresses of client and proxy arrive",
            self.has_arrived(&first, 2),
            before + 1,
        );
        let retry = self.send(RAW_PATH, &[("Idempotency-Key", "first-1")], ORDER)?;
        let is_replay = retry.status == first.status
            && retry.body == first.body
            && is_unchanged(&retry)
            && retry.header("idempotent-replayed") == Some("true");
        self.judge("a retry gets the same bytes, marked as a replay", is_replay, before + 1);
        let other = self.send(RAW_PATH, &[("Idempotency-Key", "first-1")], "{}")?;
        self.judge("another body under the same key is refused with 422", other.status == 422, before + 1);
        let headers = [("Authorization", "Bearer ann")];
        let asked = Request { method: "GET", path: "/_onlyonce/keys/first-1", headers: &headers, body: "" };
        let told = http::send(self.address, asked)?;
        let is_told = told.status == 200 && text(&told).contains("completed");
        self.judge(
            "a question about a key, which has no key itself, reaches the gateway",
            is_told,
            before + 1,
        );
        Ok(())
    }

    fn passes_by_without(&mut self) -> Result<()> {
        let before = self.service.runs();
        let unkeyed = self.send(RAW_PATH, NO_KEY, ORDER)?;
        let is_served = is_run(&unkeyed, None) && is_unchanged(&unkeyed) && self.has_arrived(&unkeyed, 1);
        self.judge("without a key the request passes by, and arrives as it was sent", is_served, before + 1);
        Ok(())
    }

    fn keys_that_are_no_keys(&mut self) -> Result<()> {
        let before = self.service.runs();
        let empty = self.send("/pay", &[("Idempotency-Key", "")], ORDER)?;
        let runs = match self.proxy.empty_key {
            EmptyKey::Refused => {
                self.judge("an empty key is refused with 400", empty.status == 400, before);
                before
            }
            EmptyKey::PassesBy => {
                self.judge("an empty key counts as none, as the page says", is_run(&empty, None), before + 1);
                before + 1
            }
        };
        let two = self.send("/pay", &[("Idempotency-Key", "two-1"), ("Idempotency-Key", "two-2")], ORDER)?;
        self.judge("two keys are refused with 400", two.status == 400, runs);
        let second = self.send("/pay", &[("Idempotency-Key", ""), ("Idempotency-Key", "two-3")], ORDER)?;
        match self.proxy.empty_key {
            EmptyKey::Refused => {
                self.judge("an empty key before another is refused with 400", second.status == 400, runs);
            }
            // Up to 1.22 nginx looks at the first value only; later versions join them.
            EmptyKey::PassesBy => {
                println!("  --    an empty key before another is answered with {}", second.status);
            }
        }
        Ok(())
    }

    /// The gateway refuses these by their heads, before their bodies have come.
    fn refusals_arrive(&mut self) {
        let before = self.service.runs();
        let lost = (0..REFUSALS).filter(|_| !matches!(self.refusal(), Ok(400))).count();
        self.judge(&format!("of {REFUSALS} refusals none is lost ({lost} were)"), lost == 0, before);
    }

    /// The answer to a request with two keys, whose body comes after its head.
    fn refusal(&self) -> Result<u16> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let head = format!(
            "POST /pay HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer ann\r\n\
             Idempotency-Key: two-1\r\nIdempotency-Key: two-2\r\nContent-Length: {}\r\n\r\n",
            self.address,
            ORDER.len()
        );
        stream.write_all(head.as_bytes())?;
        std::thread::sleep(BODY_LATER);
        stream.write_all(ORDER.as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(http::parse(&bytes)?.status)
    }

    fn many_at_once(&mut self) -> Result<()> {
        let before = self.service.runs();
        let answers: Result<Vec<Answer>> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..AT_ONCE)
                .map(|_| scope.spawn(|| self.send("/pay", &[("Idempotency-Key", "storm-1")], ORDER)))
                .collect();
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
        });
        let answers = answers?;
        let is_seen = answers.iter().all(|answer| matches!(answer.status, 201 | 409));
        self.judge("eight at once run once", is_seen, before + 1);
        Ok(())
    }

    fn large_bodies(&mut self) -> Result<()> {
        let before = self.service.runs();
        let large = self.send("/pay", &[("Idempotency-Key", "large-1")], &"x".repeat(LARGE_BYTES))?;
        self.judge("a large body passes", large.status == 201, before + 1);
        let refused = self.send("/pay", &[("Idempotency-Key", "large-2")], &"x".repeat(TOO_LARGE_BYTES));
        // A server may refuse before it has read everything, and close; the client then sees no answer.
        let is_refused = refused.as_ref().map_or(true, |answer| {
            answer.status == 413 && text(answer).contains("idempotency_body_too_large")
        });
        let how =
            refused.map_or_else(|_| "a closed connection".to_owned(), |answer| answer.status.to_string());
        self.judge(
            &format!("one above the gateway's limit is refused by the gateway ({how})"),
            is_refused,
            before + 1,
        );
        Ok(())
    }

    /// After the effect, without an answer: nobody may send the request again. Proxies that do so do it on used connections.
    fn a_service_that_dies(&mut self) -> Result<()> {
        self.dies_once("with a body", "POST", RETRY_PLEASE, ORDER, Connection::Used)?;
        self.dies_once("without a body", "POST", NO_KEY, "", Connection::Used)?;
        self.dies_once("with a method that may be repeated", "DELETE", NO_KEY, "", Connection::Used)?;
        self.dies_once(
            "with a key for others",
            "POST",
            &[("X-Idempotency-Key", "other-1")],
            "",
            Connection::Any,
        )?;
        let before = self.service.runs();
        for (name, body, what) in [("dies-1", ORDER, "a body"), ("dies-2", "", "no body")] {
            let runs = self.service.runs() + 1;
            let keyed = self.send("/dies", &[("Idempotency-Key", name)], body)?;
            let promise = format!("with a key and {what} the client is told 502 by the gateway");
            self.judge(&promise, keyed.status == 502, runs);
        }
        let retry = self.send("/dies", &[("Idempotency-Key", "dies-1")], ORDER)?;
        let is_unknown = retry.status == 409 && text(&retry).contains("idempotency_outcome_unknown");
        self.judge("and a retry does not run: its outcome is unknown", is_unknown, before + 2);
        Ok(())
    }

    /// One request that passes by, to a service that dies after its effect.
    fn dies_once(
        &mut self,
        what: &str,
        method: &str,
        headers: Keys<'_>,
        body: &str,
        connection: Connection,
    ) -> Result<()> {
        let before = self.service.runs();
        let status = used::second_status(
            self.address,
            Request { method: "POST", path: "/pay", headers, body: "" },
            Request { method, path: "/dies", headers, body },
        )?;
        let is_tested = match connection {
            Connection::Used => self.service.died_on_used_connection(),
            Connection::Any => true,
        };
        let told = status.map_or_else(|| "a closed connection".to_owned(), |status| status.to_string());
        self.judge(
            &format!("a service that dies after the effect is not asked again, {what} ({told})"),
            is_tested && status.is_none_or(|status| status >= 500),
            before + 2,
        );
        Ok(())
    }

    /// The request itself, and for whom: the proxy says who asked it, and the gateway, if it was asked, who asked the gateway.
    fn has_arrived(&self, answer: &Answer, hops: usize) -> bool {
        let Ok(seen) = serde_json::from_slice::<Value>(&answer.body) else { return false };
        let clients = seen["clients"].as_array().map_or(&[][..], Vec::as_slice);
        let are_addresses = clients
            .iter()
            .all(|client| client.as_str().is_some_and(|client| client.parse::<std::net::IpAddr>().is_ok()));
        seen["path"] == RAW_PATH && seen["host"] == self.address && clients.len() == hops && are_addresses
    }

    fn send(&self, path: &str, headers: Keys<'_>, body: &str) -> Result<Answer> {
        let usual = [("Authorization", "Bearer ann"), ("Content-Type", "application/json")];
        let headers = [&usual[..], headers].concat();
        http::send(self.address, Request { method: "POST", path, headers: &headers, body })
            .with_context(|| format!("{path} with {headers:?}"))
    }

    /// Tells one promise, and whether it held: what the client saw, and what really ran.
    fn judge(&mut self, promise: &str, is_seen: bool, runs_promised: usize) {
        let runs = self.service.runs();
        let is_kept = is_seen && runs == runs_promised;
        println!("  {}  {promise}", if is_kept { "ok  " } else { "NO  " });
        if !is_kept {
            self.broken += 1;
            let seen = if is_seen { "as promised" } else { "NOT as promised" };
            println!(
                "        what the client saw is {seen}; it ran {runs} times, promised were {runs_promised}"
            );
        }
    }
}

/// What a client can say to Envoy.
const RETRY_PLEASE: Keys<'static> = &[("x-envoy-retry-on", "5xx,reset"), ("x-envoy-max-retries", "3")];

/// Whether the service answered, in this attempt of the gateway or without it.
fn is_run(answer: &Answer, attempt: Option<&str>) -> bool {
    let Ok(seen) = serde_json::from_slice::<Value>(&answer.body) else { return false };
    answer.status == 201 && seen["attempt"].as_str() == attempt
}

/// The service's own headers.
fn is_unchanged(answer: &Answer) -> bool {
    // Caddy says who it is in a line of its own.
    answer.has("server", "shop/7")
        && answer.header("x-shop-note") == Some("as it was")
        && answer.header("content-type") == Some("application/json")
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}
