//! Bodies that break JSON parsers: JSONTestSuite, read from the folder in `ONLYONCE_VECTORS`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::client::{Request, Wire};
use super::upstream::Shared;

/// A few of our own, if the vectors are not available.
const OWN: [&[u8]; 14] = [
    b"",
    b"{",
    b"[1,]",
    b"{\"a\":1,\"a\":2}",
    b"\"\\ud800\"",
    b"[1e400]",
    b"[-0]",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    b"{\"a\":\"\\u0000\"}",
    b"nul",
    b"[\"\x00\"]",
    b"1 2",
    b"[123123123123123123123123123123]",
];

/// Sends each body twice with its own key: the first reaches U, the second is a replay.
pub(crate) async fn run(name: &str, address: SocketAddr, upstream: &Shared) -> Result<(), String> {
    let bodies = bodies(name)?;
    let mut wire = Wire::connect(address).await.map_err(|error| error.to_string())?;
    for (at, (file, body)) in bodies.iter().enumerate() {
        let exec = upstream.exec();
        let request = request(at, body);
        let first = exchange(&mut wire, &request).await.map_err(|error| format!("{file}: {error}"))?;
        let second =
            exchange(&mut wire, &request).await.map_err(|error| format!("{file}, again: {error}"))?;
        let is_replay = second.text("idempotent-replayed") == Some("true") && second.body == first.body;
        if first.status != 201 || second.status != 201 || !is_replay || upstream.exec() != exec + 1 {
            return Err(format!("{file}: {} then {}, replay: {is_replay}", first.status, second.status));
        }
    }
    println!("{} bodies sent twice", bodies.len());
    Ok(())
}

async fn exchange(wire: &mut Wire, request: &Request) -> std::io::Result<super::client::Answer> {
    wire.send(request).await?;
    wire.answer("POST").await
}

fn request(at: usize, body: &[u8]) -> Request {
    let headers = [
        ("Idempotency-Key", format!("vector-{at}")),
        ("Authorization", "Bearer t1-credential-5b7c".to_owned()),
        ("Content-Type", "application/json".to_owned()),
    ];
    Request {
        method: "POST".to_owned(),
        target: "/orders".to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.into_bytes())).to_vec(),
        body: body.to_vec(),
        chunked: false,
    }
}

/// Set but unreadable is a failure, so that a wrong path does not pass.
fn bodies(name: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let Some(vectors) = std::env::var_os("ONLYONCE_VECTORS") else {
        println!("ONLYONCE_VECTORS is not set: our own short list instead of {name}");
        return Ok(OWN.iter().map(|body| (format!("{body:?}"), body.to_vec())).collect());
    };
    let folder = PathBuf::from(vectors).join(name);
    println!("{name} by ONLYONCE_VECTORS");
    let mut bodies = Vec::new();
    collect(&folder, &mut bodies).map_err(|error| format!("ONLYONCE_VECTORS/{name}: {error}"))?;
    bodies.sort();
    if bodies.is_empty() { Err(format!("ONLYONCE_VECTORS/{name} has no file")) } else { Ok(bodies) }
}

fn collect(folder: &Path, into: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            into.push((file, std::fs::read(&path)?));
        }
    }
    Ok(())
}
