//! The settings file as JSON Schema, for editors: names, values, defaults and meanings, made from the table of settings.
//!
//! It is draft 7, and of that what draft 4 has too, for the checks: editors of TOML know no later one. It judges a file by
//! itself, so only what a whole table in a list lacks is missing: everything else may also come from a variable or a flag.

use serde_json::{Map, Value, json};

use super::fault::Place;
use super::page::{pattern, plain};
use super::setting::{self, Need, Setting, Shape, TABLES, TableOf};
use super::tree;

/// As it is printed, and stands in `onlyonce.schema.json`.
pub(crate) fn text() -> String {
    let top = setting::table_of("").expect("the settings outside any table are a table");
    let mut schema = object(top, with_default);
    schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    schema.insert("title".into(), "Settings of onlyonce serve".into());
    format!("{:#}\n", Value::Object(schema))
}

/// The settings of a table, and the tables in it. `of` gives the schema of one setting.
fn object(table: &TableOf, of: fn(&Setting) -> Value) -> Map<String, Value> {
    let own: Vec<_> = setting::members(&pattern(table)).collect();
    let mut members = members(table.path, &own, of);
    if table.path == "route" {
        // What a route does not set, it has from [policy], so there is no default.
        let policy: Vec<_> = setting::members("policy").collect();
        members.extend(self::members("policy", &policy, described));
    }
    let mut object = Map::new();
    object.insert("type".into(), "object".into());
    object.insert("properties".into(), members.into());
    object.insert("additionalProperties".into(), false.into());
    if table.shape == Shape::List {
        let required = own.iter().filter(|setting| setting.need == Need::Required);
        let required: Vec<_> = required.map(|setting| name(setting)).collect();
        if !required.is_empty() {
            object.insert("required".into(), required.into());
        }
    }
    object
}

fn members(path: &str, settings: &[&Setting], of: fn(&Setting) -> Value) -> Map<String, Value> {
    let settings = settings.iter().map(|setting| (name(setting), of(setting)));
    settings.chain(tables_in(path, of)).collect()
}

/// The tables in the table of that path, by their names.
fn tables_in(path: &str, of: fn(&Setting) -> Value) -> impl Iterator<Item = (String, Value)> {
    let inner = TABLES.iter().filter(move |table| {
        let (outer, name) = table.path.rsplit_once('.').unwrap_or(("", table.path));
        outer == path && !name.is_empty()
    });
    inner.map(move |table| {
        let name = table.path.rsplit('.').next().unwrap_or_default().to_owned();
        let object = object(table, of);
        let mut schema = match table.shape {
            Shape::One => object,
            Shape::List => map(json!({"type": "array", "items": object})),
            Shape::Named => map(json!({"type": "object", "additionalProperties": object})),
        };
        schema.insert("description".into(), plain(table.meaning).into());
        (name, schema.into())
    })
}

fn name(setting: &Setting) -> String {
    setting.split().1.to_owned()
}

fn with_default(setting: &Setting) -> Value {
    let mut schema = map(described(setting));
    match setting.default {
        Some(default) => schema.insert("default".into(), value(default)),
        None => schema.insert("examples".into(), json!([value(setting.example)])),
    };
    schema.into()
}

fn described(setting: &Setting) -> Value {
    let mut schema = map(setting.schema.clone());
    schema.insert("description".into(), plain(setting.meaning).into());
    schema.into()
}

fn map(schema: Value) -> Map<String, Value> {
    match schema {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            unreachable!("the schema of a setting is an object")
        }
    }
}

/// What stands in TOML, as JSON.
fn value(toml: &str) -> Value {
    json(&tree::Node::bare(toml, &Place::Default).value)
}

fn json(value: &tree::Value) -> Value {
    match value {
        tree::Value::Text(text) => text.as_str().into(),
        tree::Value::Integer(number) => (*number).into(),
        tree::Value::Flag(flag) => (*flag).into(),
        tree::Value::List(nodes) => nodes.iter().map(|node| json(&node.value)).collect(),
        tree::Value::Table(table) => {
            table.iter().map(|(name, node)| (name.clone(), json(&node.value))).collect()
        }
        // A fraction; a default is no date.
        tree::Value::Odd(text) => text.parse::<f64>().map_or_else(|_| text.as_str().into(), Value::from),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use boon::{Compiler, SchemaIndex, Schemas};

    use super::super::tests::{UPSTREAM, file_of, load_all, path_of, values_of};
    use super::super::{page, setting::SETTINGS};
    use super::*;

    /// The schema, in a validator that passes JSON Schema's own test suite. It also judges the schema itself.
    struct Schema(Schemas, SchemaIndex);

    impl Schema {
        fn new() -> Self {
            let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
            compiler.add_resource("settings.json", serde_json::from_str(&text()).unwrap()).unwrap();
            let index = compiler.compile("settings.json", &mut schemas).unwrap();
            Self(schemas, index)
        }

        fn takes(&self, file: &str) -> Result<(), String> {
            let file: Value = toml::from_str(file).unwrap_or_else(|error| panic!("{error}: {file}"));
            self.0.validate(&file, self.1).map_err(|error| error.to_string())
        }
    }

    /// Where a setting stands: in its table, and if it is a policy's in a route too.
    fn files_of(setting: &Setting, name: &str, value: &str) -> Vec<String> {
        let line = |file: String| file.replace(&format!("{} = ", setting.split().1), &format!("{name} = "));
        let mut files = vec![line(file_of(setting, value))];
        if let Some(name) = setting.path.strip_prefix("policy.") {
            files.push(line(format!("[[route]]\nmatch = \"/x\"\n{name} = {value}\n")));
        }
        files
    }

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// With `WRITE_PAGES` set, the file is written instead of compared.
    #[test]
    fn the_file_in_the_repository_is_what_the_program_prints() {
        let path = repository().join("onlyonce.schema.json");
        if std::env::var_os("WRITE_PAGES").is_some() {
            fs::write(&path, text()).unwrap();
        }
        assert!(fs::read_to_string(path).unwrap() == text(), "run this test with WRITE_PAGES=1");
    }

    /// The settings of every example, and what the pages show of settings.
    #[test]
    fn the_settings_of_the_examples_and_of_the_pages_are_taken() {
        let paths = |folder: &Path| -> Vec<PathBuf> {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        let is_a = |path: &PathBuf, extension: &str| path.extension().is_some_and(|other| other == extension);
        let mut settings = Vec::new();
        for folder in paths(&repository().join("examples")).into_iter().filter(|path| path.is_dir()) {
            let files = paths(&folder).into_iter().filter(|path| is_a(path, "toml"));
            settings.extend(files.map(|path| fs::read_to_string(path).unwrap()));
        }
        assert!(settings.len() >= 6, "{settings:?}");
        for page in paths(&repository().join("docs")).into_iter().filter(|path| is_a(path, "md")) {
            let page = fs::read_to_string(page).unwrap();
            let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
            let blocks = blocks.filter(|block| !block.contains("dependencies]"));
            settings.extend(blocks.map(str::to_owned));
        }
        assert!(settings.len() >= 16, "{settings:?}");
        let schema = Schema::new();
        for text in &settings {
            assert_eq!(schema.takes(text), Ok(()), "{text}");
            assert!(schema.takes(&format!("upstreem = \"http://h\"\n{text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn the_example_is_taken_as_it_is_and_with_every_line_set() {
        let schema = Schema::new();
        let example = page::example();
        assert_eq!(schema.takes(&example), Ok(()));
        let mut set = 0;
        let lines = example.lines().map(|line| match line.strip_prefix('#') {
            Some(commented) if !commented.starts_with(' ') => {
                set += 1;
                commented
            }
            Some(_) | None => line,
        });
        let lines: Vec<_> = lines.collect();
        assert_eq!(schema.takes(&lines.join("\n")), Ok(()));
        assert!(set >= SETTINGS.len(), "{set} lines were set");
    }

    #[test]
    fn every_setting_is_taken_by_its_name_with_its_values_and_nothing_else_is() {
        let schema = Schema::new();
        for setting in SETTINGS.iter() {
            let name = setting.split().1;
            for value in values_of(setting) {
                for file in files_of(setting, name, &value) {
                    assert_eq!(schema.takes(&file), Ok(()), "{file}");
                }
            }
            let misspelt = files_of(setting, &format!("{name}x"), setting.example);
            let of_no_type = files_of(setting, name, "1.5");
            let of_another = files_of(setting, name, "[[{}]]");
            for file in misspelt.into_iter().chain(of_no_type).chain(of_another) {
                assert!(schema.takes(&file).is_err(), "{file}");
            }
        }
    }

    #[test]
    fn a_word_that_is_none_of_the_settings_words_is_refused() {
        let schema = Schema::new();
        let with_words = SETTINGS.iter().filter(|setting| setting.schema.get("enum").is_some());
        let mut words = 0;
        for setting in with_words {
            for file in files_of(setting, setting.split().1, "\"no-such-word\"") {
                assert!(schema.takes(&file).is_err(), "{file}");
                words += 1;
            }
        }
        assert!(words > 20, "{words}");
        for wrong in [
            "[policy]\nlease = 5",
            "[policy]\nlease = \"5 weeks\"",
            "[policy]\nrequest_bytes_max = \"1Mb\"",
            "[policy]\nrelease = [99]",
            "[policy]\nscope = [\"cookie:id\"]",
            "[policy]\nkey_from = \"header:X\"",
            "[[route]]\nlease = \"5s\"",
            "[route]\nmatch = \"/x\"",
            "[[admin_token]]\nrole = \"read\"",
            "[dialects.mine]\nlike = \"strype\"",
            "[dialects.mine]\nstatuses = { idempotency_key_reusd = 412 }",
            "[webhooks.bank]\nverdicts = { PAID = \"hapened\" }",
            "[jwt]\nalgorithms = [\"HS512\"]",
            "[listener]\nconnections_max = 0",
            "[tls]\ncert = \"\"",
            "[encryption]\nkeys = [\"hunter2\"]",
            "listen = \"localhost:80\"",
            "upstream = \"payments:3000\"",
            "store = \"onlyonce.db\"",
        ] {
            assert!(schema.takes(wrong).is_err(), "{wrong}");
        }
    }

    /// An editor must not mark what the program takes.
    #[test]
    fn whatever_the_program_takes_the_schema_takes() {
        let values = [
            "0",
            "1",
            "2",
            "300",
            "65536",
            "99999999",
            "0.5",
            "1.0",
            "true",
            "'250ms'",
            "' 5 s '",
            "'10min'",
            "'7d'",
            "'2 GiB'",
            "'5MB'",
            "'1000'",
            "'127.0.0.1:0'",
            "'[::1]:80'",
            "'HTTP://Host:80/base?a=b'",
            "'https://[::1]'",
            "'memory:'",
            "'sqlite:a b.db'",
            "'postgresql://u:p@h/d'",
            "'redis://h'",
            "'*'",
            "'* /a/**'",
            "'PUT  /%41'",
            "'/a~1b'",
            "'//x'",
            "'X-Any_header.~'",
            "''",
            "'é'",
            "'jwt:https://a/b c'",
            "[]",
            "['']",
            "[0]",
            "[200, 599]",
            "['M-SEARCH']",
            "['query:é']",
            "['json:/a/0', 'header:x']",
            "['trusted:x', 'route']",
            "['::', '1.2.3.4', '10.0.0.0/+8']",
            "['env:LONG']",
            "'env:LONG'",
            "{}",
            "{ x = 'y' }",
            "{ x = 'ignore' }",
            "'info,a=debug'",
        ];
        let schema = Schema::new();
        let mut refused = 0;
        for setting in SETTINGS.iter() {
            for value in values {
                let file = file_of(setting, value);
                let Err(told) = schema.takes(&file) else { continue };
                let upstream = if setting.path == "upstream" { "" } else { UPSTREAM };
                let environment = [("LONG", "0123456789abcdef")];
                let found = load_all(format!("{upstream}{file}"), &environment, &[]).map(drop);
                let is_told = found.as_ref().err().is_some_and(|faults| {
                    faults.0.iter().any(|fault| fault.path.starts_with(&path_of(setting)))
                });
                assert!(is_told, "{file}is taken, and the schema says: {told}");
                refused += 1;
            }
        }
        assert!(refused > 1_000, "{refused}");
    }
}
