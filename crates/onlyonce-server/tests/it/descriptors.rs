//! A gateway with few descriptors, and clients that take them all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::program::{Folder, onlyonce};
use crate::serve::{Service, Serving, post};

const SOON: Duration = Duration::from_secs(20);

/// The program with this many descriptors.
fn with_descriptors(count: usize) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {count} && exec \"$0\" \"$@\"")]);
    command.arg(onlyonce().get_program());
    command
}

fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a time-out");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    answer
}

/// L06: neither those that do nothing nor half requests keep others out, and the admin port has descriptors of its own.
#[test]
fn connections_that_do_nothing_starve_neither_clients_nor_the_admin_port() {
    let service = Service::start("served");
    service.lets(8);
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    let serving =
        Serving::start_as(with_descriptors(160), &["--upstream", &service.url(), "--store", &store]);
    let half = "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: a\r\nidempotency-key: half\r\ncontent-length: 2\r\n\r\n{";
    let mut held = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(serving.address()).expect("it listens");
        let sent =
            ["", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST /or", half][number % 5];
        // One that was closed already cannot be written to.
        let _ = stream.write_all(sent.as_bytes());
        held.push(stream);
    }
    let health =
        answer(serving.admin(), "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for number in 0..4 {
        let served = answer(serving.address(), &post(&format!("k-{number}")));
        assert!(served.starts_with("HTTP/1.1 200") && served.ends_with("served"), "{served}");
    }
    drop(held);
}
