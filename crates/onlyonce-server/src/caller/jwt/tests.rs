//! Tokens of every algorithm, and every reason for refusing one.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::HeaderMap;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::*;
use crate::config::Secret;

const RSA_OLD: &[u8] = include_bytes!("../fixtures/rsa-old.pem");
const RSA_OLD_PUBLIC: &[u8] = include_bytes!("../fixtures/rsa-old.pub.pem");
const RSA_NEW: &[u8] = include_bytes!("../fixtures/rsa-new.pem");
const RSA_NEW_PUBLIC: &[u8] = include_bytes!("../fixtures/rsa-new.pub.pem");
const RSA_OLD_PKCS1: &[u8] = include_bytes!("../fixtures/rsa-old.pkcs1.pem");
const RSA_WEAK_PUBLIC: &[u8] = include_bytes!("../fixtures/rsa-weak.pub.pem");
const P384_PUBLIC: &[u8] = include_bytes!("../fixtures/p384.pub.pem");
const SECRET: &[u8] = b"a secret of the tests, as long as it ought to be";

const NOW: f64 = 1_800_000_000.0;

/// Whoever signs tokens.
enum Signer {
    Secret(Vec<u8>),
    Rsa(&'static [u8]),
    Ec(EcdsaKeyPair),
}

impl Signer {
    fn ec() -> (Self, Vec<u8>) {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random)
            .expect("a key");
        let public = rcgen::KeyPair::try_from(pkcs8.as_ref()).expect("a key").public_key_pem();
        (Self::Ec(pair), public.into_bytes())
    }

    fn signature(&self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Secret(secret) => {
                ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), bytes)
                    .as_ref()
                    .to_vec()
            }
            Self::Rsa(pem) => {
                let der = PrivatePkcs8KeyDer::from_pem_slice(pem).expect("PEM");
                let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).expect("a key");
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), bytes, &mut signature).expect("signed");
                signature
            }
            Self::Ec(pair) => pair.sign(&SystemRandom::new(), bytes).expect("signed").as_ref().to_vec(),
        }
    }

    fn sign(&self, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.signature(signed.as_bytes())))
    }

    fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.sign(&json!({ "typ": "JWT", "alg": algorithm }).to_string(), &claims.to_string())
    }
}

fn hs256() -> Signer {
    Signer::Secret(SECRET.into())
}

fn ann() -> Value {
    json!({ "sub": "ann", "exp": NOW + 300.0 })
}

fn with(name: &str, value: impl Into<Value>) -> Value {
    let mut claims = ann();
    claims[name] = value.into();
    claims
}

fn settings(keys: &[&[u8]], algorithms: &[Algorithm]) -> Jwt {
    let secret = |(number, bytes): (usize, &&[u8])| Secret {
        source: format!("env:KEY_{number}"),
        bytes: bytes.to_vec(),
    };
    Jwt {
        keys: keys.iter().enumerate().map(secret).collect(),
        algorithms: algorithms.to_vec(),
        issuer: None,
        audience: None,
    }
}

fn tokens(jwt: &Jwt) -> Tokens {
    Tokens::new(jwt, vec!["sub".into(), "https://shop.example/account".into()])
        .expect("the settings are good")
}

fn by_secret() -> Tokens {
    tokens(&settings(&[SECRET], &[Algorithm::Hs256]))
}

fn headers(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().expect("a value"));
    headers
}

fn subject_at(now: f64, tokens: &Tokens, token: &str) -> Result<Option<String>, Refused> {
    tokens.claims(&headers(token), now).map(|claims| claims.value("sub").map(Into::into))
}

fn subject(tokens: &Tokens, token: &str) -> Result<Option<String>, Refused> {
    subject_at(NOW, tokens, token)
}

fn is_ann(found: &Result<Option<String>, Refused>) -> bool {
    *found == Ok(Some("ann".into()))
}

fn faults(keys: &[&[u8]], algorithms: &[Algorithm]) -> String {
    Tokens::new(&settings(keys, algorithms), Vec::new()).expect_err("a fault").to_string()
}

/// S04
#[test]
fn tokens_of_each_algorithm_are_believed() {
    let (ec, ec_public) = Signer::ec();
    for (algorithm, name, signer, key) in [
        (Algorithm::Hs256, "HS256", hs256(), SECRET),
        (Algorithm::Rs256, "RS256", Signer::Rsa(RSA_OLD), RSA_OLD_PUBLIC),
        (Algorithm::Es256, "ES256", ec, &ec_public),
    ] {
        let tokens = tokens(&settings(&[key], &[algorithm]));
        assert!(is_ann(&subject(&tokens, &signer.token(name, &ann()))), "{name}");
    }
}

/// S04
#[test]
fn a_changed_token_is_not_believed() {
    let (ec, ec_public) = Signer::ec();
    let all = [Algorithm::Hs256, Algorithm::Rs256, Algorithm::Es256];
    let tokens = tokens(&settings(&[SECRET, RSA_OLD_PUBLIC, &ec_public], &all));
    for (name, signer) in [("HS256", hs256()), ("RS256", Signer::Rsa(RSA_OLD)), ("ES256", ec)] {
        let token = signer.token(name, &ann());
        assert!(is_ann(&subject(&tokens, &token)), "{name}");
        let [header, _, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
        let bob = URL_SAFE_NO_PAD.encode(with("sub", "bob").to_string());
        assert_eq!(
            subject(&tokens, &format!("{header}.{bob}.{signature}")),
            Err(Refused::Signature),
            "{name}"
        );
        for index in 0..signature.len() {
            let mut changed = signature.as_bytes().to_vec();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            let token = token.replace(signature, &changed);
            assert!(
                matches!(subject(&tokens, &token), Err(Refused::Signature | Refused::Malformed)),
                "{name} {index}"
            );
        }
        assert_eq!(subject(&tokens, &token.replace(signature, "")), Err(Refused::Signature), "{name}");
    }
}

/// S04
#[test]
fn an_algorithm_that_is_not_listed_is_not_believed() {
    let tokens = by_secret();
    for name in ["none", "None", "NONE", "", "hs256", "HS384", "HS512", "RS256", "ES256", "PS256"] {
        assert_eq!(subject(&tokens, &hs256().token(name, &ann())), Err(Refused::Algorithm), "{name}");
    }
    let unsigned = hs256().token("none", &ann());
    let unsigned = &unsigned[..=unsigned.rfind('.').expect("three parts")];
    assert_eq!(subject(&tokens, unsigned), Err(Refused::Algorithm));
    for header in [r#"{"typ":"JWT"}"#, r#"{"alg":null}"#, r#"{"alg":["HS256"]}"#] {
        assert_eq!(
            subject(&tokens, &hs256().sign(header, &ann().to_string())),
            Err(Refused::Algorithm),
            "{header}"
        );
    }
}

/// S04
#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    let all = [Algorithm::Hs256, Algorithm::Rs256];
    let tokens = tokens(&settings(&[RSA_OLD_PUBLIC, SECRET], &all));
    let trimmed = RSA_OLD_PUBLIC.trim_ascii().to_vec();
    for public in [RSA_OLD_PUBLIC.to_vec(), trimmed] {
        let forged = Signer::Secret(public).token("HS256", &ann());
        assert_eq!(subject(&tokens, &forged), Err(Refused::Signature));
    }
    // Nor does a key verify an algorithm of another kind, though both are listed.
    assert_eq!(subject(&tokens, &hs256().token("RS256", &ann())), Err(Refused::Signature));
    assert_eq!(subject(&tokens, &Signer::Rsa(RSA_OLD).token("HS256", &ann())), Err(Refused::Signature));

    let text = std::str::from_utf8(RSA_OLD_PUBLIC).expect("text");
    let without_frame: String = text.lines().filter(|line| !line.starts_with("---")).collect();
    let wrapped = without_frame.as_bytes().chunks(64).collect::<Vec<_>>().join(&b'\n');
    let der = STANDARD.decode(&without_frame).expect("base64");
    for disguised in [
        without_frame.as_bytes(),
        &wrapped,
        &der,
        br#"{"kty":"RSA","n":"...","e":"AQAB"}"#,
        br#" {"keys":[]}"#,
        b"ssh-rsa AAAAB3NzaC1yc2E ann@example",
    ] {
        let found = faults(&[disguised, RSA_NEW_PUBLIC], &all);
        assert!(found.contains("env:KEY_0") && found.contains("BEGIN PUBLIC KEY"), "{found}");
    }
}

/// S04
#[test]
fn keys_of_the_token_itself_are_not_looked_at() {
    let stranger = Signer::Rsa(RSA_NEW);
    let header = json!({ "alg": "RS256", "kid": "x", "jwk": { "kty": "RSA" }, "jku": "https://evil.example/keys", "x5c": ["…"] });
    let token = stranger.sign(&header.to_string(), &ann().to_string());
    let tokens = tokens(&settings(&[RSA_OLD_PUBLIC], &[Algorithm::Rs256]));
    assert_eq!(subject(&tokens, &token), Err(Refused::Signature));
}

/// S04
#[test]
fn old_and_new_keys_stand_side_by_side() {
    let both = tokens(&settings(&[RSA_NEW_PUBLIC, RSA_OLD_PUBLIC], &[Algorithm::Rs256]));
    let new_only = tokens(&settings(&[RSA_NEW_PUBLIC], &[Algorithm::Rs256]));
    let [old, new] = [RSA_OLD, RSA_NEW].map(|key| Signer::Rsa(key).token("RS256", &ann()));
    assert!(is_ann(&subject(&both, &old)) && is_ann(&subject(&both, &new)));
    assert!(is_ann(&subject(&new_only, &new)));
    assert_eq!(subject(&new_only, &old), Err(Refused::Signature), "nothing is remembered across a reload");

    let one_file = [RSA_NEW_PUBLIC, RSA_OLD_PUBLIC].concat();
    let one_file = tokens(&settings(&[&one_file], &[Algorithm::Rs256]));
    assert!(is_ann(&subject(&one_file, &old)) && is_ann(&subject(&one_file, &new)));
}

#[test]
fn a_certificate_holds_a_key_too() {
    let pair = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::default().self_signed(&pair).expect("signed").pem();
    let random = SystemRandom::new();
    let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.serialized_der(), &random)
        .expect("a key");
    let tokens = tokens(&settings(&[certificate.as_bytes()], &[Algorithm::Es256]));
    assert!(is_ann(&subject(&tokens, &Signer::Ec(signer).token("ES256", &ann()))));
}

/// S04
#[test]
fn an_expired_token_is_not_believed_nor_one_without_end() {
    let tokens = by_secret();
    let until = |exp: f64| hs256().token("HS256", &with("exp", exp));
    assert!(is_ann(&subject(&tokens, &until(NOW - 59.0))));
    assert_eq!(subject(&tokens, &until(NOW - 60.0)), Err(Refused::Expired));
    assert!(is_ann(&subject(&tokens, &until(NOW + 0.5))));
    assert_eq!(subject(&tokens, &until(-1.0)), Err(Refused::Expired));
    for exp in [json!(null), json!("2099-01-01"), json!("1900000000"), json!([NOW + 300.0]), json!(true)] {
        assert_eq!(
            subject(&tokens, &hs256().token("HS256", &with("exp", exp.clone()))),
            Err(Refused::Time),
            "{exp}"
        );
    }
    assert_eq!(subject(&tokens, &hs256().token("HS256", &json!({ "sub": "ann" }))), Err(Refused::Time));
}

/// S04
#[test]
fn a_token_that_was_remembered_expires_all_the_same() {
    let tokens = by_secret();
    let token = hs256().token("HS256", &with("nbf", NOW));
    assert!(is_ann(&subject_at(NOW, &tokens, &token)));
    assert_eq!(tokens.remembered.len(), 1);
    assert!(is_ann(&subject_at(NOW + 359.0, &tokens, &token)));
    assert_eq!(subject_at(NOW + 360.0, &tokens, &token), Err(Refused::Expired));
    assert_eq!(subject_at(NOW - 61.0, &tokens, &token), Err(Refused::NotYet));
}

#[test]
fn what_was_not_believed_is_not_remembered() {
    let tokens = by_secret();
    let stranger = Signer::Secret(b"another".to_vec()).token("HS256", &ann());
    assert_eq!(subject(&tokens, &stranger), Err(Refused::Signature));
    assert_eq!(subject(&tokens, &hs256().token("HS256", &with("exp", 1.0))), Err(Refused::Expired));
    assert_eq!(tokens.remembered.len(), 0);
}

/// S04
#[test]
fn a_token_for_later_is_not_believed_yet() {
    let tokens = by_secret();
    let from = |nbf: Value| hs256().token("HS256", &with("nbf", nbf));
    assert!(is_ann(&subject(&tokens, &from(json!(NOW + 60.0)))));
    assert_eq!(subject(&tokens, &from(json!(NOW + 61.0))), Err(Refused::NotYet));
    assert_eq!(subject(&tokens, &from(json!("now"))), Err(Refused::Time));
}

/// S04
#[test]
fn issuer_and_audience_are_those_of_the_settings() {
    let mut jwt = settings(&[SECRET], &[Algorithm::Hs256]);
    jwt.issuer = Some("https://login.example".into());
    let by_issuer = tokens(&jwt);
    let token = |claims: &Value| hs256().token("HS256", claims);
    assert!(is_ann(&subject(&by_issuer, &token(&with("iss", "https://login.example")))));
    for other in [
        json!("https://login.example/"),
        json!("https://evil.example"),
        json!(["https://login.example"]),
        json!(1),
    ] {
        assert_eq!(subject(&by_issuer, &token(&with("iss", other.clone()))), Err(Refused::Issuer), "{other}");
    }
    assert_eq!(subject(&by_issuer, &token(&ann())), Err(Refused::Issuer));

    jwt.issuer = None;
    jwt.audience = Some("payments".into());
    let by_audience = tokens(&jwt);
    for aud in [json!("payments"), json!(["mail", "payments"])] {
        assert!(is_ann(&subject(&by_audience, &token(&with("aud", aud.clone())))), "{aud}");
    }
    for other in [
        json!("mail"),
        json!(["mail"]),
        json!([]),
        json!("payments mail"),
        json!({ "payments": 1 }),
        json!(null),
    ] {
        assert_eq!(
            subject(&by_audience, &token(&with("aud", other.clone()))),
            Err(Refused::Audience),
            "{other}"
        );
    }
    assert_eq!(subject(&by_audience, &token(&ann())), Err(Refused::Audience));
}

/// S04
#[test]
fn the_authorization_header_comes_once_and_bears_a_token() {
    let tokens = by_secret();
    let token = hs256().token("HS256", &ann());
    let mut twice = headers(&token);
    twice.append(AUTHORIZATION, format!("Bearer {token}").parse().expect("a value"));
    assert_eq!(tokens.claims(&twice, NOW).err(), Some(Refused::Twice));
    assert_eq!(tokens.claims(&HeaderMap::new(), NOW).err(), Some(Refused::Missing));

    let found = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().expect("a value"));
        tokens.claims(&headers, NOW).map(|_| ())
    };
    assert_eq!(found(&format!("bearer {token}")), Ok(()));
    for other in [
        format!("Basic {token}"),
        token.clone(),
        "Bearer".into(),
        "Bearer ".into(),
        format!("BearerX {token}"),
    ] {
        assert_eq!(found(&other), Err(Refused::Missing), "{other}");
    }
    assert_eq!(found(&format!("Bearer {token} {token}")), Err(Refused::Malformed));
    assert_eq!(found(&format!("Bearer {token}, Bearer {token}")), Err(Refused::Malformed));
    let long = hs256().token("HS256", &with("pad", "x".repeat(TOKEN_BYTES_MAX)));
    assert_eq!(found(&format!("Bearer {long}")), Err(Refused::TooLong));
}

/// S04
#[test]
fn critical_extensions_and_members_that_come_twice_are_not_believed() {
    let tokens = by_secret();
    let payload = ann().to_string();
    for header in [r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, r#"{"alg":"HS256","crit":[]}"#] {
        assert_eq!(subject(&tokens, &hs256().sign(header, &payload)), Err(Refused::Critical), "{header}");
    }
    let twice = hs256().sign(r#"{"alg":"none","alg":"HS256"}"#, &payload);
    assert_eq!(subject(&tokens, &twice), Err(Refused::Malformed));
    for payload in
        [r#"{"sub":"bob","exp":1900000000,"sub":"ann"}"#, r#"{"sub":"ann","exp":1,"exp":1900000000}"#]
    {
        let token = hs256().sign(r#"{"alg":"HS256"}"#, payload);
        assert_eq!(subject(&tokens, &token), Err(Refused::Malformed), "{payload}");
    }
}

/// S04
#[test]
fn what_is_no_token_is_not_believed() {
    let tokens = by_secret();
    let good = hs256().token("HS256", &ann());
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
    for token in [
        "x".into(),
        format!("{header}.{payload}"),
        format!("{good}."),
        format!(".{good}"),
        format!("{good}.{signature}"),
        format!("{good}="),
        format!("{header}=.{payload}.{signature}"),
        good.replace('.', ".."),
        hs256().sign("[]", &ann().to_string()),
        hs256().sign(r#"{"alg":"HS256"}"#, "[]"),
        hs256().sign(r#"{"alg":"HS256"}"#, "\"ann\""),
        hs256().sign(r#"{"alg":"HS256"}"#, &format!("{} x", ann())),
        hs256().sign(r#"{"alg":"HS256"}"#, &"[".repeat(2_000)),
    ] {
        assert_eq!(subject(&tokens, &token), Err(Refused::Malformed), "{token}");
    }
}

/// S04
#[test]
fn a_claim_that_names_nobody_has_no_value() {
    let tokens = by_secret();
    for value in [json!(null), json!(""), json!(true), json!(1.5), json!(["ann"]), json!({ "name": "ann" })] {
        assert_eq!(
            subject(&tokens, &hs256().token("HS256", &with("sub", value.clone()))),
            Ok(None),
            "{value}"
        );
    }
    assert_eq!(subject(&tokens, &hs256().token("HS256", &json!({ "exp": NOW + 9.0 }))), Ok(None));
    assert_eq!(subject(&tokens, &hs256().token("HS256", &with("sub", 7))), Ok(Some("7".into())));
}

/// S04
#[test]
fn a_claim_may_be_named_by_a_url_and_others_are_not_kept() {
    let tokens = by_secret();
    let mut claims = with("https://shop.example/account", "acme");
    claims["email"] = json!("ann@example.org");
    let found = tokens.claims(&headers(&hs256().token("HS256", &claims)), NOW).expect("believed");
    assert_eq!(found.value("https://shop.example/account"), Some("acme"));
    assert_eq!(found.value("email"), None);
    assert!(!format!("{found:?}").contains("ann@example.org"));
}

#[test]
fn keys_that_cannot_be_used_are_refused_at_start() {
    let (rs256, es256, hs256) = ([Algorithm::Rs256], [Algorithm::Es256], [Algorithm::Hs256]);
    let (_, ec_public) = Signer::ec();
    let cut = &RSA_OLD_PUBLIC[..RSA_OLD_PUBLIC.len() - 60];
    for (keys, algorithms, says) in [
        (&[b"".as_slice()][..], &hs256[..], "is empty"),
        (&[&[0xff, 0x00]], &hs256, "neither text nor PEM"),
        (&[RSA_OLD], &rs256, "private key"),
        (&[RSA_OLD_PKCS1], &rs256, "no public key"),
        (&[cut], &rs256, "not PEM that can be read"),
        (&[RSA_WEAK_PUBLIC], &rs256, "1024 bits"),
        (&[P384_PUBLIC], &es256, "neither RSA (for RS256) nor on the curve P-256"),
        (&[SECRET], &rs256, "has a key for HS256, which jwt.algorithms does not list"),
        (&[RSA_OLD_PUBLIC], &hs256, "has a key for RS256, which jwt.algorithms does not list"),
        (&[&ec_public], &rs256, "has a key for ES256, which jwt.algorithms does not list"),
        (&[SECRET], &[Algorithm::Hs256, Algorithm::Rs256], "jwt.algorithms: \"RS256\" has no key"),
        (&[], &hs256, "jwt.algorithms: \"HS256\" has no key"),
    ] {
        let found = faults(keys, algorithms);
        assert!(found.contains(says), "{found:?} should say {says:?}");
    }
    let both = faults(&[b"", RSA_WEAK_PUBLIC], &[Algorithm::Hs256, Algorithm::Rs256]);
    assert!(both.contains("env:KEY_0") && both.contains("env:KEY_1"), "every fault at once: {both}");
}
