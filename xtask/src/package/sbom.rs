//! What was built in (SBOM), as CycloneDX 1.5: every crate with its version, licence and checksum, and which needs which.
//!
//! 1. Which crates: what cargo builds for the program with the features of the release, for its target, and not for tests
//!    (`cargo tree`). What is linked is `required`; what only takes part in building it, such as macros, is `excluded`.
//! 2. Licences and sources come from `cargo metadata --locked`, checksums from `Cargo.lock`.
//! 3. SQLite, which a crate brings in C, is a component of its own: what is reported about it does not name that crate.
//!
//! No time and no serial number: the same sources make the same list. Rust's own library and musl are not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use onlyonce_testkit::repository::cargo;
use serde_json::{Value, json};

use super::{FEATURES, PACKAGE, Release, output};

/// The crate that brings SQLite, where its header is, and the line with the version.
const SQLITE_CRATE: &str = "libsqlite3-sys";
const SQLITE_HEADER: &str = "sqlite3/sqlite3.h";
const SQLITE_VERSION: &str = "#define SQLITE_VERSION ";

/// A crate: name and version. Cargo has each from one source, or this fails.
type Crate = (String, String);

/// Crates, each with those it needs.
type Graph = BTreeMap<Crate, BTreeSet<Crate>>;

impl Release {
    /// `onlyonce-VERSION-TARGET.cdx.json`
    pub(super) fn bill(&self, out: &Path) -> Result<PathBuf> {
        let built = graph(&output(&mut tree(&self.target, "normal,build"))?)?;
        let linked = graph(&output(&mut tree(&self.target, "normal,no-proc-macro"))?)?;
        let metadata = output(&mut cargo(&["metadata", "--format-version", "1", "--locked", "--quiet"]))?;
        let metadata: Value = serde_json::from_str(&metadata)?;
        let lock = fs::read_to_string(self.root.join("Cargo.lock"))?;
        let bill = bill(&built, &linked, &metadata, &digests(&lock))?;
        let path = out.join(format!("onlyonce-{}-{}.cdx.json", self.about.version, self.target));
        fs::write(&path, format!("{bill:#}\n"))?;
        Ok(path)
    }
}

fn tree(target: &str, edges: &str) -> std::process::Command {
    let mut tree = cargo(&["tree", "--locked", "--quiet", "--package", PACKAGE, "--features", FEATURES]);
    tree.args(["--target", target, "--edges", edges, "--prefix", "depth", "--format", " {p}"]);
    tree.env("CARGO_TERM_COLOR", "never");
    tree
}

/// Lines like `2 syn v3.0.9 (*)`: each crate is below the one that needs it, with its own needs at its first place only.
fn graph(tree: &str) -> Result<Graph> {
    let mut graph = Graph::new();
    let mut path: Vec<Crate> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        let (depth, name, version) = (words.next(), words.next(), words.next());
        let depth = depth.and_then(|depth| depth.parse::<usize>().ok());
        let version = version.and_then(|version| version.strip_prefix('v'));
        let (Some(depth), Some(name), Some(version)) = (depth, name, version) else {
            anyhow::bail!("cargo tree says \"{line}\", which is no depth, name and version");
        };
        ensure!(depth <= path.len(), "cargo tree leaves out the crate above \"{line}\"");
        path.truncate(depth);
        let needed = (name.to_owned(), version.to_owned());
        if let Some(needing) = path.last() {
            graph.entry(needing.clone()).or_default().insert(needed.clone());
        }
        graph.entry(needed.clone()).or_default();
        path.push(needed);
    }
    Ok(graph)
}

fn bill(built: &Graph, linked: &Graph, metadata: &Value, digests: &BTreeMap<Crate, String>) -> Result<Value> {
    let packages = packages(metadata, built)?;
    let mut components = Vec::new();
    let mut program = Value::Null;
    let mut dependencies = Vec::new();
    for (package, needs) in built {
        let described = packages.get(package).with_context(|| format!("cargo metadata lacks {package:?}"))?;
        let mut component = component(package, described)?;
        if let Some(digest) = digests.get(package) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": digest}]);
        }
        let mut needs: Vec<String> = needs.iter().map(purl).collect();
        if package.0 == SQLITE_CRATE {
            let sqlite = sqlite(described)?;
            needs.extend(sqlite["bom-ref"].as_str().map(str::to_owned));
            dependencies.push(json!({"ref": sqlite["bom-ref"], "dependsOn": []}));
            components.push(sqlite);
        }
        dependencies.push(json!({"ref": purl(package), "dependsOn": needs}));
        if package.0 == PACKAGE {
            component["type"] = "application".into();
            program = component;
        } else {
            component["scope"] = if linked.contains_key(package) { "required" } else { "excluded" }.into();
            components.push(component);
        }
    }
    ensure!(program.is_object(), "cargo tree does not name {PACKAGE}");
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": program},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The packages of the graph, as cargo describes them.
fn packages<'a>(metadata: &'a Value, graph: &Graph) -> Result<BTreeMap<Crate, &'a Value>> {
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let (Some(name), Some(version)) = (package["name"].as_str(), package["version"].as_str()) else {
            continue;
        };
        let key = (name.to_owned(), version.to_owned());
        if graph.contains_key(&key) {
            let other = found.insert(key, package);
            ensure!(
                other.is_none(),
                "{name} {version} comes from two sources; the list cannot tell them apart"
            );
        }
    }
    Ok(found)
}

fn component(package: &Crate, described: &Value) -> Result<Value> {
    let (name, version) = package;
    let licence = described["license"].as_str().with_context(|| format!("{name} states no licence"))?;
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        // The old slash means "or".
        "licenses": [{"expression": licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")}],
        "purl": purl(package),
    });
    if let Some(url) = described["repository"].as_str() {
        component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
    }
    Ok(component)
}

fn sqlite(described: &Value) -> Result<Value> {
    let manifest = described["manifest_path"].as_str().context("cargo metadata names no manifest")?;
    let header = Path::new(manifest).with_file_name(SQLITE_HEADER);
    let text = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix(SQLITE_VERSION));
    let version = version.context("sqlite3.h says no version")?.trim().trim_matches('"');
    let purl = format!("pkg:generic/sqlite@{version}");
    Ok(json!({
        "type": "library",
        "bom-ref": purl,
        "name": "sqlite",
        "version": version,
        "scope": "required",
        "licenses": [{"expression": "blessing"}],
        "purl": purl,
    }))
}

/// A crate's package URL; a plus in a version must be escaped.
fn purl((name, version): &Crate) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// By name and version, from `Cargo.lock`.
fn digests(lock: &str) -> BTreeMap<Crate, String> {
    let field = |package: &str, name: &str| {
        let value = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        Some(value?.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    // tidy: allow(words) the name that Cargo.lock has for it
    const DIGEST: &str = "checksum";
    let digest =
        |package| Some(((field(package, "name")?, field(package, "version")?), field(package, DIGEST)?));
    packages.filter_map(digest).collect()
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::repository;

    use super::super::{Effort, fresh, target, tests::about};
    use super::*;

    fn of(name: &str, version: &str) -> Crate {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn a_tree_is_a_graph() {
        let tree = "0 a v1.0.0 (/x)\n1 b v2.0.0\n2 c v3.0.0+4 (proc-macro)\n1 c v3.0.0+4 (proc-macro) (*)\n";
        let graph = graph(tree).unwrap();
        let (a, b, c) = (of("a", "1.0.0"), of("b", "2.0.0"), of("c", "3.0.0+4"));
        assert_eq!(graph[&a], BTreeSet::from([b.clone(), c.clone()]));
        assert_eq!(graph[&b], BTreeSet::from([c.clone()]));
        assert_eq!(graph[&c], BTreeSet::new());
        assert_eq!(purl(&c), "pkg:cargo/c@3.0.0%2B4");
        for wrong in ["", "1 a v1", "a v1", "0 a 1"].iter().skip(1) {
            assert!(super::graph(wrong).is_err(), "{wrong}");
        }
    }

    /// Of this very workspace: what is linked is there with its checksum, what only tests use is not, every reference is one to
    /// something that is listed, and a second list is the same.
    #[test]
    fn the_list_of_this_program_is_whole() {
        let out = fresh(&std::env::temp_dir().join(format!("onlyonce-sbom-{}", std::process::id()))).unwrap();
        let release = Release {
            about: about(),
            target: target(),
            built: PathBuf::new(),
            root: repository::root(),
            made_at: 0,
            effort: Effort::Test,
        };
        let text = fs::read_to_string(release.bill(&out).unwrap()).unwrap();
        assert_eq!(text, fs::read_to_string(release.bill(&out).unwrap()).unwrap());
        let bill: Value = serde_json::from_str(&text).unwrap();
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        for (name, scope) in [
            ("onlyonce-core", "required"),
            ("rusqlite", "required"),
            ("redis", "required"),
            ("sqlite", "required"),
            ("syn", "excluded"),
        ] {
            assert_eq!(named(name).unwrap_or_else(|| panic!("{name}"))["scope"], scope, "{name}");
        }
        for of_tests in ["proptest", "rcgen", "onlyonce-testkit", "stateright"] {
            assert!(named(of_tests).is_none(), "{of_tests}");
        }
        assert_eq!(bill["metadata"]["component"]["name"], PACKAGE);
        let mut refs: BTreeSet<_> =
            components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), components.len(), "each has a name of its own");
        refs.insert(bill["metadata"]["component"]["bom-ref"].as_str().unwrap());
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), refs.len());
        for dependency in dependencies {
            assert!(refs.contains(dependency["ref"].as_str().unwrap()), "{dependency}");
            let needs = dependency["dependsOn"].as_array().unwrap();
            assert!(needs.iter().all(|need| refs.contains(need.as_str().unwrap())), "{dependency}");
        }
        for component in components {
            let is_ours = component["name"].as_str().unwrap().starts_with("onlyonce");
            let is_c = component["name"] == "sqlite";
            let digest = component["hashes"][0]["content"].as_str().map_or(0, str::len);
            assert_eq!(digest, if is_ours || is_c { 0 } else { 64 }, "{component}");
            assert!(
                component["licenses"][0]["expression"].as_str().is_some_and(|licence| !licence.contains('/'))
            );
        }
        assert!(components.len() > 100, "{}", components.len());
        fs::remove_dir_all(out).unwrap();
    }
}
