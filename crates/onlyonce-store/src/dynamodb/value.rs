//! Items and their attributes, as DynamoDB writes them in JSON: `{"S": "text"}`, `{"N": "7"}`, `{"B": "base64"}`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// An item: its attributes by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Item(pub(super) Map<String, Value>);

impl Item {
    /// The key of an item.
    pub(super) fn key(id: &[u8], part: &str) -> Self {
        let mut item = Self::default();
        item.put_bytes("id", id);
        item.put_text("part", part);
        item
    }

    pub(super) fn put_text(&mut self, name: &str, text: &str) {
        self.0.insert(name.to_owned(), of_text(text));
    }

    pub(super) fn put_number(&mut self, name: &str, number: i64) {
        self.0.insert(name.to_owned(), of_number(number));
    }

    pub(super) fn put_bytes(&mut self, name: &str, bytes: &[u8]) {
        self.0.insert(name.to_owned(), of_bytes(bytes));
    }

    pub(super) fn put_flag(&mut self, name: &str, flag: bool) {
        self.0.insert(name.to_owned(), json!({ "BOOL": flag }));
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.get("S")?.as_str()
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.get("N")?.as_str()?.parse().ok()
    }

    pub(super) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        STANDARD.decode(self.0.get(name)?.get("B")?.as_str()?).ok()
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.get("BOOL")?.as_bool()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn value(self) -> Value {
        Value::Object(self.0)
    }
}

pub(super) fn of_text(text: &str) -> Value {
    json!({ "S": text })
}

pub(super) fn of_number(number: i64) -> Value {
    json!({ "N": number.to_string() })
}

pub(super) fn of_bytes(bytes: &[u8]) -> Value {
    json!({ "B": STANDARD.encode(bytes) })
}

/// The names of attributes for expressions, each behind a `#`: many are reserved words.
pub(super) fn names(names: &[&str]) -> Value {
    names.iter().map(|name| (format!("#{name}"), Value::from(*name))).collect::<Map<_, _>>().into()
}
