//! Messages delivered by the program, and what operators see and do about them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::program::{Folder, run, text};
use crate::provider::{SOON, head};
use crate::serve::Serving;

/// A destination that answers with one status, and keeps what came: the path and the key.
#[derive(Clone)]
struct Destination {
    address: SocketAddr,
    status: Arc<Mutex<&'static str>>,
    got: Arc<Mutex<Vec<(String, String)>>>,
}

impl Destination {
    fn start() -> Self {
        Self::serving(Some)
    }

    /// The same with TLS, at `localhost`. Its certificate is written to `folder`, as `NAME.pem`.
    fn start_tls(folder: &Path, name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(folder.join(format!("{name}.pem")), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        Self::serving(move |mut stream| {
            let mut connection = ServerConnection::new(config.clone()).unwrap();
            // Who does not believe the certificate hangs up.
            connection.complete_io(&mut stream).ok()?;
            Some(StreamOwned::new(connection, stream))
        })
    }

    /// Each connection is taken as `take` says, and dropped where that says nothing.
    fn serving<S: Read + Write>(take: impl Fn(TcpStream) -> Option<S> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let destination = Self { address, status: Arc::new(Mutex::new("200 OK")), got: Arc::default() };
        let serving = destination.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if let Some(stream) = take(stream.unwrap()) {
                    serving.serve(BufReader::new(stream));
                }
            }
        });
        destination
    }

    fn serve<S: Read + Write>(&self, mut reader: BufReader<S>) {
        let Some((path, headers)) = head(&mut reader) else { return };
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let status = if path == "/gone" { *self.status.lock().unwrap() } else { "200 OK" };
        self.got.lock().unwrap().push((path, headers["idempotency-key"].clone()));
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\nx-id: evt_1\r\n\r\n");
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
        reader.get_mut().flush().unwrap();
    }
}

/// A gateway with two destinations, and messages for both.
struct World {
    serving: Serving,
    destination: Destination,
    _folder: Folder,
}

impl World {
    fn new() -> Self {
        let (folder, destination) = (Folder::new(), Destination::start());
        *destination.status.lock().unwrap() = "410 Gone";
        let (address, store) = (destination.address, folder.url("onlyonce.db"));
        let settings = format!(
            "upstream = \"http://{address}\"\n[background]\nrelay_every = \"20ms\"\n\
             [destinations.mail]\nurl = \"http://{address}/mail\"\nprovider_id = \"header:x-id\"\n\
             [destinations.gone]\nurl = \"http://{address}/gone\"\n"
        );
        let config = folder.path().join("onlyonce.toml");
        fs::write(&config, settings).unwrap();
        assert!(run(&["migrate", "--store", &store]).status.success());
        let gone = "('m2', 'gone', x'7b7d'), ('m3', 'gone', x'7b7d')";
        store_messages(&folder, &format!("('m1', 'mail', x'7b7d'), {gone}, ('m4', 'nobody', x'7b7d')"));
        let serving = Serving::start(&["--config", &config.display().to_string(), "--store", &store]);
        Self { serving, destination, _folder: folder }
    }

    fn outbox(&self, arguments: &[&str]) -> Output {
        let admin = format!("http://{}", self.serving.admin());
        run(&[&["outbox"], arguments, &["--admin", &admin]].concat())
    }

    fn list(&self, state: &str) -> Vec<Value> {
        let listed = self.outbox(&["list", "--state", state, "--json"]);
        assert!(listed.status.success(), "{}", text(&listed.stderr));
        serde_json::from_slice::<Value>(&listed.stdout).unwrap()["items"].as_array().unwrap().clone()
    }

    fn until(&self, state: &str, count: usize) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let found = self.list(state);
            if found.len() == count {
                return found;
            }
            assert!(began.elapsed() < SOON, "{count} are never {state}: {found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Stores messages as a service would.
fn store_messages(folder: &Folder, values: &str) {
    let connection = rusqlite::Connection::open(folder.path().join("onlyonce.db")).unwrap();
    let sql = format!("INSERT INTO onlyonce_outbox (key, destination, payload) VALUES {values}");
    connection.execute(&sql, []).unwrap();
}

/// W05, W06, O09: from the outbox to the destination, and by commands until nothing is stuck.
#[test]
fn messages_are_delivered_and_dead_letters_redriven_and_discarded_by_commands() {
    let world = World::new();
    let delivered = world.until("delivered", 1);
    assert_eq!((&delivered[0]["key"], &delivered[0]["provider_id"]), (&"m1".into(), &"evt_1".into()));
    let dead = world.until("dead", 2);
    assert_eq!(dead[0]["errors"][0]["status"], 410);
    assert_eq!(world.list("waiting")[0]["destination"], "nobody", "one that no node knows waits");
    let lines = text(&world.outbox(&["list", "--state", "dead"]).stdout);
    assert!(lines.contains("it answered 410") && lines.contains("gone"), "{lines}");

    let reason = ["--reason", "fixed"];
    let told = |arguments: &[&str]| {
        let output = world.outbox(&[arguments, &reason].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = told(&["redrive", "--destination", "gone", "--dry-run"]);
    assert_eq!((code, &*out), (Some(0), "would redrive 2 messages; nothing was changed\n"));
    let (code, _, errors) = told(&["redrive", "1"]);
    assert!(code == Some(1) && errors.contains("only a dead letter can be redriven"), "{errors}");
    let (code, _, errors) = told(&["discard", "99"]);
    assert!(code == Some(1) && errors.contains("there is no message 99"), "{errors}");
    let refused = world.outbox(&["redrive", "2"]);
    assert_eq!(refused.status.code(), Some(2), "without a reason");

    let (code, out, _) = told(&["discard", "3"]);
    assert!(code == Some(0) && out.starts_with("discarded: message 3 to gone; audit entry "), "{out}");
    *world.destination.status.lock().unwrap() = "200 OK";
    let (code, out, _) = told(&["redrive", "2"]);
    assert!(code == Some(0) && out.starts_with("redriven: message 2 to gone; audit entry "), "{out}");
    world.until("delivered", 2);
    let got = world.destination.got.lock().unwrap().clone();
    let gone: Vec<_> = got.iter().filter(|(path, _)| path == "/gone").map(|(_, key)| &**key).collect();
    let of = |key: &str| gone.iter().filter(|got| **got == key).count();
    assert_eq!((of("m2"), of("m3"), gone.last()), (2, 1, Some(&"m2")), "the same key at every delivery");
}

/// O02: what is stuck can be alerted on.
#[test]
fn messages_are_counted() {
    let world = World::new();
    world.until("dead", 2);
    world.until("delivered", 1);
    let metrics = onlyonce_testkit::http::get(&world.serving.admin().to_string(), "/metrics").unwrap();
    let metrics = text(&metrics.body);
    for line in [
        r#"onlyonce_outbox_total{result="delivered",destination="mail"} 1"#,
        r#"onlyonce_outbox_total{result="dead",destination="gone"} 2"#,
        r#"onlyonce_outbox_total{result="superseded",destination="mail"} 0"#,
        r#"onlyonce_messages{state="dead"} 2"#,
        r#"onlyonce_messages{state="waiting"} 1"#,
        r#"onlyonce_dead_letters{kind="message"} 2"#,
        "onlyonce_oldest_message_seconds ",
        r#"onlyonce_worker_ran_seconds{worker="relay"}"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(!metrics.contains("m1"), "never keys");
}

/// W05: alone, once, without a gateway; and refused where there is nothing to do.
#[test]
fn a_relay_can_run_once_without_a_gateway() {
    let mut world = World::new();
    world.until("delivered", 1);
    let config = world._folder.path().join("onlyonce.toml").display().to_string();
    let store = world._folder.url("onlyonce.db");
    let held = run(&["relay", "--once", "--config", &config, "--store", &store]);
    assert!(text(&held.stderr).contains("a gateway delivers messages itself"), "{}", text(&held.stderr));
    world.serving.signal("TERM");
    assert!(world.serving.ended().success());
    let once = run(&["relay", "--once", "--json", "--config", &config, "--store", &store]);
    assert_eq!(text(&once.stdout), "{\n  \"done\": 0\n}\n", "{}", text(&once.stderr));
    store_messages(&world._folder, "('m7', 'mail', x'7b7d'), ('m8', 'nobody', x'7b7d')");
    for _ in 0..2 {
        let dry = run(&["relay", "--dry-run", "--config", &config, "--store", &store]);
        assert_eq!(text(&dry.stdout), "1 message is due; nothing was delivered\n", "{}", text(&dry.stderr));
    }
    let dry = run(&["relay", "--dry-run", "--json", "--config", &config, "--store", &store]);
    assert_eq!(text(&dry.stdout), "{\n  \"done\": 1\n}\n", "{}", text(&dry.stderr));
    let once = run(&["relay", "--once", "--config", &config, "--store", &store]);
    assert_eq!(text(&once.stdout), "1 delivery made\n", "{}", text(&once.stderr));
    let nowhere = run(&["relay", "--once", "--store", &store]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(text(&nowhere.stderr).contains("have no destination"), "{}", text(&nowhere.stderr));
}

/// W05, G01: over TLS against `upstream_ca`, by a gateway and by a relay alone. One whose certificate is not believed is told
/// nothing, and its message waits.
#[test]
fn messages_are_delivered_over_tls() {
    let folder = Folder::new();
    let believed = Destination::start_tls(folder.path(), "believed");
    let stranger = Destination::start_tls(folder.path(), "stranger");
    let url =
        |destination: &Destination, path| format!("https://localhost:{}/{path}", destination.address.port());
    let settings = format!(
        "upstream = \"http://{}\"\nupstream_ca = \"{}\"\n[background]\nrelay_every = \"20ms\"\n\
         [destinations.mail]\nurl = \"{}\"\n[destinations.stranger]\nurl = \"{}\"\n",
        believed.address,
        folder.path().join("believed.pem").display(),
        url(&believed, "mail"),
        url(&stranger, "mail"),
    );
    let (config, store) = (folder.path().join("onlyonce.toml"), folder.url("onlyonce.db"));
    fs::write(&config, settings).unwrap();
    let arguments = ["--config", &config.display().to_string(), "--store", &store];
    assert!(run(&["migrate", "--store", &store]).status.success());
    store_messages(&folder, "('m1', 'mail', x'7b7d'), ('m2', 'stranger', x'7b7d')");
    let mut world = World { serving: Serving::start(&arguments), destination: believed, _folder: folder };
    assert_eq!(world.until("delivered", 1)[0]["key"], "m1");
    let began = Instant::now();
    let said = loop {
        let waiting = world.list("waiting");
        match waiting.first().and_then(|message| message["errors"][0]["error"].as_str()) {
            Some(said) => break said.to_owned(),
            None => assert!(began.elapsed() < SOON, "it is never tried: {waiting:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(said.starts_with("no TLS with https://localhost"), "{said}");
    assert_eq!(stranger.got.lock().unwrap().len(), 0);
    assert_eq!(world.serving.stop(), Some(0));

    store_messages(&world._folder, "('m3', 'mail', x'7b7d')");
    let once = run(&[&["relay", "--once", "--json"], &arguments[..]].concat());
    assert!(text(&once.stdout).contains("\"done\": "), "{}", text(&once.stderr));
    let got = world.destination.got.lock().unwrap().clone();
    assert_eq!(got, [("/mail".to_owned(), "m1".to_owned()), ("/mail".to_owned(), "m3".to_owned())]);
}
