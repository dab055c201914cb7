//! TLS on both sides, and the caller's identity.

use std::path::PathBuf;

use onlyonce::Policy;

use super::service::Service;
use super::world::{CREATED, World, config, loopback, post};
use crate::config::{Network, Tls};

/// Temporary files, removed on drop.
struct Files(PathBuf);

impl Files {
    /// A certificate for `localhost`, which is its own authority.
    fn new() -> Self {
        let folder =
            std::env::temp_dir().join(format!("onlyonce-gateway-{}-{:016x}", std::process::id(), rand()));
        std::fs::create_dir_all(&folder).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self(folder)
    }

    fn tls(&self) -> Tls {
        Tls { cert: self.0.join("cert.pem"), key: self.0.join("key.pem"), client_ca: None }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // If it cannot be removed, it stays in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn rand() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

/// G01: a gateway with TLS before the service, and another before that one: both sides of TLS, and HTTP/2 by agreement.
#[tokio::test]
async fn tls_comes_in_and_goes_out() {
    let files = Files::new();
    let service = Service::answering(CREATED).await;
    let mut inner = config(service.address);
    inner.tls = Some(files.tls());
    let inner = World::with(inner).await;
    assert_eq!(inner.gateway.url(), format!("https://{}", inner.gateway.address()));
    let mut outer = config(service.address);
    outer.default.upstream.uri =
        format!("https://localhost:{}", inner.gateway.address().port()).parse().unwrap();
    outer.upstream_ca = Some(files.tls().cert);
    let outer = World::with(outer).await;
    for key in ["k-1", "k-2"] {
        assert_eq!(outer.post(key).await.status(), 201);
        assert_eq!(outer.post(key).await.header("idempotent-replayed"), Some("true"));
    }
    let [seen, _] = service.seen().try_into().unwrap();
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("onlyonce-attempt"), Some("1"));
}

/// G01, U02: a service whose certificate is not believed is not spoken to.
#[tokio::test]
async fn a_service_that_is_not_believed_did_not_run_anything() {
    let (files, others) = (Files::new(), Files::new());
    let service = Service::answering(CREATED).await;
    let mut inner = config(service.address);
    inner.tls = Some(files.tls());
    let inner = World::with(inner).await;
    let mut outer = config(service.address);
    outer.default.upstream.uri =
        format!("https://localhost:{}", inner.gateway.address().port()).parse().unwrap();
    outer.upstream_ca = Some(others.tls().cert);
    let outer = World::with(outer).await;
    let answer = outer.post("k-1").await;
    assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
    assert_eq!(outer.state("k-1").await, "retryable");
    assert_eq!(service.count(), 0);
}

/// S04: a header that names the caller counts from a trusted proxy, and does not get past from anybody else.
#[tokio::test]
async fn a_trusted_header_tells_callers_apart() {
    let service = Service::answering(CREATED).await;
    let by_account = Policy { scope: vec!["trusted:x-account".parse().unwrap()], ..Policy::default() };
    let mut trusting = config(service.address);
    trusting.trusted_from = vec![loopback()];
    trusting.default.policy = by_account.clone();
    let world = World::with(trusting).await;
    let of = |account: &str| post("k-1").replacen("\r\n", &format!("\r\nx-account: {account}\r\n"), 1);
    assert_eq!(world.send(of("ann")).await.header("idempotent-replayed"), None);
    assert_eq!(world.send(of("bob")).await.header("idempotent-replayed"), None);
    assert_eq!(world.send(of("ann")).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(service.count(), 2);
    let mut elsewhere = config(service.address);
    elsewhere.trusted_from = vec![Network { address: "203.0.113.0".parse().unwrap(), prefix_bits: 24 }];
    elsewhere.default.policy = by_account;
    let world = World::with(elsewhere).await;
    assert_eq!(world.send(of("ann")).await.code(), "idempotency_scope_missing");
    world.send("GET / HTTP/1.1\r\nhost: shop\r\nx-account: ann\r\n\r\n").await;
    assert_eq!(service.seen().last().unwrap().header("x-account"), None);
}
