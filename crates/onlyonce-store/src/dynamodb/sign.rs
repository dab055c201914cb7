//! AWS's signature of a request, version 4: for the one shape of request that is sent here, a POST of JSON to `/`.

use hmac::{Hmac, KeyInit, Mac};
use onlyonce_core::time::Timestamp;
use sha2::{Digest, Sha256};

use super::credentials::Keys;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What is signed.
pub(super) struct Request<'a> {
    pub(super) service: &'a str,
    pub(super) region: &'a str,
    /// All headers that are sent and signed, with names in lower case, sorted by name.
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

/// A moment as signatures write it: `20150830T123600Z`.
pub(super) fn date(at: Timestamp) -> String {
    let moment = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    moment.strftime("%Y%m%dT%H%M%SZ").to_string()
}

impl Request<'_> {
    /// The header `authorization`; `date` is the header `x-amz-date`.
    pub(super) fn authorization(&self, keys: &Keys, date: &str) -> String {
        let Self { service, region, headers, body } = self;
        let day = date.split('T').next().unwrap_or_default();
        let scope = format!("{day}/{region}/{service}/aws4_request");
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical = format!("POST\n/\n\n{lines}\n{names}\n{}", hex(&Sha256::digest(body)));
        let signed = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let mut key = mac(format!("AWS4{}", keys.secret_access_key).as_bytes(), day);
        for word in [region, service, "aws4_request"] {
            key = mac(&key, word);
        }
        let signature = hex(&mac(&key, &signed));
        let id = &keys.access_key_id;
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases `post-vanilla` and `post-header-key-sort` of the suite that AWS publishes for this signature.
    #[test]
    fn a_request_is_signed_as_aws_publishes_it() {
        let keys = Keys {
            access_key_id: "AKIDEXAMPLE".to_owned(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        let date = date(Timestamp::from_micros(1_440_938_160_000_000));
        assert_eq!(date, "20150830T123600Z");
        let host = ("host", "example.amazonaws.com");
        let headers = [host, ("x-amz-date", &*date)];
        let request = Request { service: "service", region: "us-east-1", headers: &headers, body: b"" };
        assert_eq!(
            request.authorization(&keys, &date),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders=host;x-amz-date, \
             Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
        let headers = [host, ("my-header1", "value1"), ("x-amz-date", &*date)];
        let sorted = Request { headers: &headers, ..request };
        assert!(
            sorted
                .authorization(&keys, &date)
                .ends_with("Signature=c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c")
        );
    }
}
