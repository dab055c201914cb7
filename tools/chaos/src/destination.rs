//! The destination of messages: it verifies each delivery, counts it, and fails in the ways a destination fails.

use std::fmt;
use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use onlyonce_testkit::history::Said;
use onlyonce_testkit::random::Random;
use sha2::Sha256;

use crate::call::{Call, Then, send, send_with};
use crate::run::{Run, locked};
use crate::settings::{DELIVERY_TIMEOUT, RETRY_AFTER};

/// What deliveries are signed with.
const SECRET: [u8; 32] = *b"what only the two of them know..";

pub(crate) struct Destination {
    run: Arc<Run>,
    arrivals: Mutex<Vec<Arrival>>,
}

/// How the destination behaves in one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Takes,
    /// Takes it after a pause.
    Slow,
    /// Takes it, and answers after everybody has given up.
    TooSlow,
    /// 500 or 502.
    Fails,
    /// 429 or 503, with `Retry-After`.
    AsksToWait,
    /// The connection breaks before it is taken.
    BreaksBefore,
    /// It is taken, and the connection breaks before the answer.
    BreaksAfter,
}

/// A delivery as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// By the logical clock of the run.
    pub(crate) tick: u64,
    pub(crate) key: String,
    /// `onlyonce-delivery`.
    pub(crate) number: u32,
    pub(crate) payment: u64,
    pub(crate) customer: String,
    pub(crate) manner: Manner,
}

/// The secret as the settings have it.
pub(crate) fn secret() -> String {
    format!("whsec_{}", STANDARD.encode(SECRET))
}

impl Destination {
    /// Listens on a free port, which is returned with it.
    pub(crate) fn start(run: &Arc<Run>) -> Result<(Arc<Self>, u16)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port is free")?;
        let port = listener.local_addr()?.port();
        let destination = Arc::new(Self { run: run.clone(), arrivals: Mutex::default() });
        let accepting = destination.clone();
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let destination = accepting.clone();
                thread::spawn(move || destination.serve(&stream));
            }
        });
        Ok((destination, port))
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        locked(&self.arrivals).clone()
    }

    fn serve(&self, stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        while let Some(call) = Call::read(&mut reader) {
            let then = match read(&call) {
                Ok(delivery) => self.take(delivery, stream),
                Err(why) => {
                    let Call { headers, body, .. } = &call;
                    self.run.wrong(format!("a delivery {why}: {headers:?} {body:?}"));
                    Then::Close
                }
            };
            if then == Then::Close {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// It counts from the moment it arrives.
    fn take(&self, delivery: Delivery, stream: &TcpStream) -> Then {
        let Delivery { key, number, payment, customer } = delivery;
        let mut arrivals = locked(&self.arrivals);
        let random = self.run.random("delivery", arrivals.len() as u64);
        let manner = if self.run.is_faulty() { Manner::of(&random) } else { Manner::Takes };
        arrivals.push(Arrival { tick: self.run.tick(), key, number, payment, customer, manner });
        drop(arrivals);
        self.run.tally().delivery(manner);
        answer(manner, &random, stream)
    }
}

fn answer(manner: Manner, random: &Random, mut stream: &TcpStream) -> Then {
    let said = |status| Said { status, body: "{}".to_owned() };
    match manner {
        Manner::Takes => send(stream, &said(200), None),
        Manner::Slow => {
            thread::sleep(random.millis(100..=900));
            send(stream, &said(202), None)
        }
        Manner::TooSlow => {
            thread::sleep(DELIVERY_TIMEOUT + random.millis(100..=900));
            send(stream, &said(200), None);
            Then::Close
        }
        Manner::Fails => send(stream, &said(random.pick(&[500, 502])), None),
        Manner::AsksToWait => {
            let header = format!("retry-after: {}\r\n", RETRY_AFTER.as_secs());
            send_with(stream, &said(random.pick(&[429, 503])), &header, None)
        }
        Manner::BreaksBefore => Then::Close,
        Manner::BreaksAfter => {
            // Half a head.
            let _ = stream.write_all(b"HTTP/1.1 200 Sa");
            Then::Close
        }
    }
}

/// What a delivery says.
#[derive(Debug, PartialEq, Eq)]
struct Delivery {
    key: String,
    number: u32,
    payment: u64,
    customer: String,
}

/// Reads and verifies it; or what is wrong with it.
fn read(call: &Call) -> Result<Delivery, &'static str> {
    let (key, id) = (call.header("idempotency-key"), call.header("webhook-id"));
    if key.is_empty() || key != id {
        return Err("has two keys, or none");
    }
    let signed = format!("{id}.{}.{}", call.header("webhook-timestamp"), call.body);
    if call.header("webhook-signature") != signature(&signed) {
        return Err("is not signed");
    }
    let number = call.header("onlyonce-delivery").parse().map_err(|_| "has no number")?;
    let body: serde_json::Value = serde_json::from_str(&call.body).map_err(|_| "is not JSON")?;
    let payment = body["payment"].as_u64().ok_or("is about no payment")?;
    let customer = body["customer"].as_str().ok_or("is about no customer")?.to_owned();
    Ok(Delivery { key: key.to_owned(), number, payment, customer })
}

fn signature(text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(&SECRET).expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

impl Manner {
    pub(crate) const ALL: [Self; 7] = [
        Self::Takes,
        Self::Slow,
        Self::TooSlow,
        Self::Fails,
        Self::AsksToWait,
        Self::BreaksBefore,
        Self::BreaksAfter,
    ];

    fn of(random: &Random) -> Self {
        random.weighed(&[
            (70, Self::Takes),
            (8, Self::Slow),
            (4, Self::TooSlow),
            (8, Self::Fails),
            (6, Self::AsksToWait),
            (5, Self::BreaksBefore),
            (5, Self::BreaksAfter),
        ])
    }

    /// Whether the message counts as received.
    pub(crate) const fn takes(self) -> bool {
        match self {
            Self::Takes | Self::Slow | Self::TooSlow | Self::BreaksAfter => true,
            Self::Fails | Self::AsksToWait | Self::BreaksBefore => false,
        }
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Takes => "takes a message",
            Self::Slow => "takes a message slowly",
            Self::TooSlow => "takes a message, and answers too late",
            Self::Fails => "500 or 502",
            Self::AsksToWait => "asks to wait, 429 or 503",
            Self::BreaksBefore => "breaks before it takes a message",
            Self::BreaksAfter => "takes a message, and breaks",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(changed: &str, value: &str) -> Call {
        let body = r#"{"payment":7,"customer":"ann-1"}"#;
        let signature = signature(&format!("k.5.{body}"));
        let headers = [
            ("Idempotency-Key", "k"),
            ("Webhook-Id", "k"),
            ("Webhook-Timestamp", "5"),
            ("Webhook-Signature", &signature),
            ("Onlyonce-Delivery", "2"),
        ];
        let headers = headers.map(|(name, own)| {
            (name.to_owned(), if name == changed { value.to_owned() } else { own.to_owned() })
        });
        Call { path: "/".to_owned(), headers: headers.to_vec(), body: body.to_owned() }
    }

    #[test]
    fn a_delivery_is_read_and_what_is_forged_is_not() {
        let customer = "ann-1".to_owned();
        assert_eq!(
            read(&call("", "")),
            Ok(Delivery { key: "k".to_owned(), number: 2, payment: 7, customer })
        );
        for changed in
            ["Idempotency-Key", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Onlyonce-Delivery"]
        {
            assert!(read(&call(changed, "x")).is_err(), "{changed}");
        }
    }
}
