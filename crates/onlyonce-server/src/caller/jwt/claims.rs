//! The claims of a token.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::{LEEWAY, Refused};

/// What is kept of a verified token: its validity and the claims that scopes name.
#[derive(Debug)]
pub(in crate::caller) struct Claims {
    expires: f64,
    not_before: Option<f64>,
    values: Vec<(Arc<str>, String)>,
}

impl Claims {
    /// A claim that is missing, empty, or neither text nor a whole number has no value.
    pub(super) fn of(payload: &Object, names: &[Arc<str>]) -> Result<Self, Refused> {
        let value = |name: &Arc<str>| Some((name.clone(), text(payload.0.get(&**name)?)?));
        Ok(Self {
            expires: payload.time("exp")?.ok_or(Refused::Time)?,
            not_before: payload.time("nbf")?,
            values: names.iter().filter_map(value).collect(),
        })
    }

    pub(super) fn check_time(&self, now: f64) -> Result<(), Refused> {
        if now >= self.expires + LEEWAY {
            return Err(Refused::Expired);
        }
        match self.not_before {
            Some(not_before) if now + LEEWAY < not_before => Err(Refused::NotYet),
            Some(_) | None => Ok(()),
        }
    }

    /// The value of a claim.
    pub(in crate::caller) fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.as_str())
    }
}

/// Text as it is, a whole number in digits. Text that reads as a number, or begins with a quote, is quoted, so that the user
/// `"1"` is never the user `1`.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) if text.starts_with('"') || is_whole_number(text) => Some(format!("\"{text}\"")),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_whole_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A JSON object without duplicate members: of two, some parsers take the first and some the last.
pub(super) struct Object(BTreeMap<String, Value>);

impl Object {
    /// From a part of a token.
    pub(super) fn decode(part: &str) -> Result<Self, Refused> {
        let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::Malformed)?;
        serde_json::from_slice(&bytes).map_err(|_| Refused::Malformed)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(super) fn check_issuer(&self, issuer: Option<&str>) -> Result<(), Refused> {
        match issuer {
            Some(issuer) if self.text("iss") != Some(issuer) => Err(Refused::Issuer),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn check_audience(&self, audience: Option<&str>) -> Result<(), Refused> {
        let Some(audience) = audience else { return Ok(()) };
        let is_ours = |value: &Value| value.as_str() == Some(audience);
        let found = match self.0.get("aud") {
            Some(Value::Array(several)) => several.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if found { Ok(()) } else { Err(Refused::Audience) }
    }

    /// Seconds since 1970, which may have a fraction (RFC 7519).
    fn time(&self, name: &str) -> Result<Option<f64>, Refused> {
        self.0.get(name).map(|value| value.as_f64().ok_or(Refused::Time)).transpose()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a member comes twice"));
            }
        }
        Ok(Object(members))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_and_its_digits_as_text_are_two_callers() {
        assert_eq!(text(&json!(1)).as_deref(), Some("1"));
        assert_eq!(text(&json!("1")).as_deref(), Some("\"1\""));
        assert_eq!(text(&json!("\"1\"")).as_deref(), Some("\"\"1\"\""));
        assert_eq!(text(&json!(-7)).as_deref(), Some("-7"));
        assert_eq!(text(&json!("-7")).as_deref(), Some("\"-7\""));
        assert_eq!(text(&json!(u64::MAX)).as_deref(), Some("18446744073709551615"));
        assert_eq!(text(&json!("ann@example.org")).as_deref(), Some("ann@example.org"));
    }

    #[test]
    fn what_is_neither_text_nor_a_whole_number_names_nobody() {
        for value in [
            json!(""),
            json!(1.0),
            json!(1.5),
            json!(1e30),
            json!(true),
            json!(null),
            json!(["a"]),
            json!({"a": 1}),
        ] {
            assert_eq!(text(&value), None, "{value}");
        }
        // Numbers above 64 bits are rounded: two callers would become one.
        let huge: Value = serde_json::from_str("18446744073709551616").expect("JSON");
        assert_eq!(text(&huge), None);
    }

    fn values() -> impl Strategy<Value = Value> {
        prop_oneof![
            (-12_i64..12).prop_map(Value::from),
            "[\"0-9-]{1,3}".prop_map(Value::from),
            any::<i64>().prop_map(|number| Value::from(number.to_string())),
            any::<String>().prop_map(Value::from),
        ]
    }

    proptest! {
        /// S04
        #[test]
        fn two_values_never_read_alike(a in values(), b in values()) {
            prop_assume!(a != b);
            let [a, b] = [text(&a), text(&b)];
            prop_assert!(a.is_none() && b.is_none() || a != b, "{:?}", a);
        }
    }
}
