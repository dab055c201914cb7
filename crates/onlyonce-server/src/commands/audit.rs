//! `onlyonce audit`: which writes of an OpenAPI document nothing protects.
//!
//! Every POST, PUT, PATCH and DELETE of the document (`document.rs`) is looked up among the routes, first match first, as the gateway does
//! (`template.rs`). The routes are those of settings, or those that a running gateway publishes.

pub(super) mod document;
mod template;

use std::io::{self, Write};

use http::Method;
use onlyonce::policy::Mode;
use serde_json::{Value, json};

use self::document::{Document, Operation};
use self::template::{Share, Template};
use super::failure::Failure;
use super::target::published;
use super::text::clean;
use crate::Ended;
use crate::cli::{Allowed, Audit};
use crate::config::{self, Config, PathCase, Pattern};

pub(crate) async fn run(arguments: &Audit) -> Result<Ended, Failure> {
    let document = Document::open(&arguments.document, arguments.base.as_deref())?;
    let routes = match &arguments.gateway {
        Some(url) => Routes::published(&published(url).await?).ok_or_else(|| {
            Failure::new("gateway_unknown", format!("{url} does not publish a policy of this release"))
        })?,
        None => Routes::of(&config::load_without_upstream(&arguments.sources())?),
    };
    let judged: Vec<_> =
        document.operations.iter().map(|operation| routes.judge(operation, &arguments.allow)).collect();
    let findings = judged.iter().filter(|judged| judged.is_finding).count();
    let mut out = io::stdout().lock();
    if arguments.json {
        let operations: Vec<_> = judged.iter().map(Judged::as_json).collect();
        let told = json!({
            "document": { "title": document.title, "version": document.version },
            "operations": operations,
            "findings": findings,
        });
        writeln!(out, "{told:#}")?;
    } else {
        write_text(&mut out, &document, &judged, findings)?;
    }
    Ok(if findings == 0 { Ended::Yes } else { Ended::No })
}

/// What a route does for the writes it matches.
#[derive(Clone, Debug)]
struct Cover {
    name: String,
    /// None: the default, which matches everything.
    pattern: Option<Pattern>,
    is_enforced: bool,
    /// None where the key stands elsewhere, which the document cannot be asked for.
    header: Option<String>,
    methods: Vec<String>,
    required: Vec<String>,
    effects: String,
}

#[derive(Debug)]
struct Routes {
    covers: Vec<Cover>,
    default: Cover,
    case: PathCase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Required,
    Optional,
    Observed,
    None,
    /// Some of its paths have another protection than others.
    Partly,
}

impl Protection {
    fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Observed => "observed",
            Self::None => "none",
            Self::Partly => "partly",
        }
    }
}

impl Cover {
    fn protection(&self, method: &Method) -> Protection {
        let has = |methods: &[String]| methods.iter().any(|name| name == method.as_str());
        match (has(&self.methods), self.is_enforced, has(&self.required)) {
            (false, _, _) => Protection::None,
            (true, false, _) => Protection::Observed,
            (true, true, true) => Protection::Required,
            (true, true, false) => Protection::Optional,
        }
    }

    /// As a gateway publishes it.
    fn published(route: &Value, pattern: Option<Pattern>) -> Option<Self> {
        let text = |name: &str| Some(route[name].as_str()?.to_owned());
        let texts = |name: &str| {
            let texts = route[name].as_array()?.iter().map(|text| Some(text.as_str()?.to_owned()));
            texts.collect::<Option<Vec<_>>>()
        };
        Some(Self {
            name: text("match")?,
            pattern,
            is_enforced: text("mode")? == "enforce",
            header: route.get("header")?.as_str().map(str::to_owned),
            methods: texts("methods")?,
            required: texts("required")?,
            effects: text("effects")?,
        })
    }
}

impl Routes {
    fn of(config: &Config) -> Self {
        let cover = |route: &config::Route| {
            let names = |methods: &[Method]| methods.iter().map(ToString::to_string).collect();
            let policy = &route.policy;
            Cover {
                name: route.name.to_string(),
                pattern: route.pattern.clone(),
                is_enforced: policy.mode == Mode::Enforce,
                header: policy.key_headers().next().map(ToString::to_string),
                methods: names(&policy.methods),
                required: names(&policy.required),
                effects: policy.effects.as_str().to_owned(),
            }
        };
        Self {
            covers: config.routes.iter().map(cover).collect(),
            default: cover(&config.default),
            case: config.path_case,
        }
    }

    fn published(policy: &Value) -> Option<Self> {
        let mut covers = Vec::new();
        for route in policy["routes"].as_array()? {
            let pattern = config::pattern(route["match"].as_str()?).ok()?;
            covers.push(Cover::published(route, Some(pattern))?);
        }
        let case = if policy["path_case"] == "fold" { PathCase::Fold } else { PathCase::Keep };
        Some(Self { covers, default: Cover::published(&policy["default"], None)?, case })
    }

    /// What protects an operation.
    fn judge<'a>(&'a self, operation: &'a Operation, allowed: &[Allowed]) -> Judged<'a> {
        let template = Template::new(&operation.whole);
        let method = &operation.method;
        let mut covers = Vec::new();
        for cover in self.covers.iter().chain([&self.default]) {
            let share = cover
                .pattern
                .as_ref()
                .map_or(Share::All, |pattern| template.share(pattern, method, self.case));
            if share != Share::None {
                covers.push(cover);
            }
            if share == Share::All {
                break;
            }
        }
        let cover = covers[covers.len() - 1];
        let first = cover.protection(method);
        let protection = match covers.iter().all(|cover| cover.protection(method) == first) {
            true => first,
            false => Protection::Partly,
        };
        Judged {
            operation,
            cover,
            routes: covers,
            declared: cover
                .header
                .as_ref()
                .is_none_or(|own| operation.headers.iter().any(|header| header.eq_ignore_ascii_case(own))),
            protection,
            is_finding: is_finding(protection, method, allowed),
            is_case_folded: self.case == PathCase::Fold,
            template,
        }
    }
}

fn is_finding(protection: Protection, method: &Method, allowed: &[Allowed]) -> bool {
    match protection {
        Protection::Required => false,
        // PUT and DELETE are idempotent already.
        Protection::Optional => {
            matches!(*method, Method::POST | Method::PATCH) && !allowed.contains(&Allowed::Optional)
        }
        Protection::Observed => !allowed.contains(&Allowed::Observed),
        Protection::None | Protection::Partly => true,
    }
}

struct Judged<'a> {
    operation: &'a Operation,
    /// The route of all paths that no other matches.
    cover: &'a Cover,
    /// All that match some of its paths.
    routes: Vec<&'a Cover>,
    declared: bool,
    protection: Protection,
    is_finding: bool,
    is_case_folded: bool,
    template: Template,
}

impl Judged<'_> {
    fn as_json(&self) -> Value {
        json!({
            "method": self.operation.method.as_str(),
            "path": self.operation.path,
            "operation_id": self.operation.operation_id,
            "route": self.cover.name,
            "routes": self.routes.iter().map(|cover| &*cover.name).collect::<Vec<_>>(),
            "protection": self.protection.as_str(),
            "effects": self.cover.effects,
            "declared": self.declared,
            "finding": self.is_finding,
        })
    }

    /// `POST /payments/{id} (refund)`
    fn named(&self) -> String {
        let id = self.operation.operation_id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
        clean(&format!("{} {}{id}", self.operation.method, self.operation.path))
    }

    fn says(&self) -> String {
        match self.protection {
            Protection::Required => "a request without a key is refused".to_owned(),
            Protection::Optional => "the key may be missing, and then a retry runs again".to_owned(),
            Protection::Observed => "only counted, not protected: mode is \"observe\"".to_owned(),
            Protection::None => format!("{} is not among methods: its key is ignored", self.operation.method),
            Protection::Partly => {
                let of = |cover: &&Cover| {
                    format!(
                        "\"{}\" {}",
                        clean(&cover.name),
                        cover.protection(&self.operation.method).as_str()
                    )
                };
                let routes: Vec<_> = self.routes.iter().map(of).collect();
                format!("its paths are matched by routes that differ: {}", routes.join(", "))
            }
        }
    }

    /// What to put into the settings.
    fn remedy(&self) -> String {
        let method = &self.operation.method;
        let is_usual = matches!(*method, Method::POST | Method::PATCH);
        let required =
            if is_usual { "required = true".to_owned() } else { format!("required = [\"{method}\"]") };
        let mut lines = match self.protection {
            Protection::Required => return String::new(),
            Protection::Optional | Protection::Partly => vec![required],
            Protection::Observed => vec!["mode = \"enforce\"".to_owned()],
            Protection::None => {
                let methods = self.cover.methods.iter().map(String::as_str).chain([method.as_str()]);
                let methods: Vec<_> = methods.map(|name| format!("\"{name}\"")).collect();
                let mut lines = vec![format!("methods = [{}]", methods.join(", "))];
                lines.extend(is_usual.then_some(required));
                lines
            }
        };
        let route = self.template.route(method);
        let has_route = self.protection != Protection::Partly && self.cover.name == route;
        lines.insert(0, format!("match = \"{route}\""));
        let place = match (has_route, self.routes.iter().find(|cover| cover.pattern.is_some())) {
            (true, _) => "in its [[route]]".to_owned(),
            (false, Some(other)) => format!("[[route]] above that of \"{}\"", clean(&other.name)),
            (false, None) => "[[route]]".to_owned(),
        };
        let case = if self.is_case_folded { " (paths are matched in any case)" } else { "" };
        format!("{place}: {}{case}", lines.join(", "))
    }
}

fn write_text(
    out: &mut impl Write,
    document: &Document,
    judged: &[Judged<'_>],
    findings: usize,
) -> io::Result<()> {
    let text = |value: &Value| clean(value.as_str().unwrap_or_default());
    let title = format!("{} {}", text(&document.title), text(&document.version));
    let title = if title.trim().is_empty() { "the document" } else { title.trim() };
    let noun = if findings == 1 { "finding" } else { "findings" };
    writeln!(out, "{title}: {} writes, {findings} {noun}", judged.len())?;
    for judged in judged.iter().filter(|judged| judged.is_finding) {
        writeln!(out, "\n{}: {}", judged.named(), judged.protection.as_str())?;
        writeln!(out, "  {}", judged.says())?;
        writeln!(out, "  set {}", judged.remedy())?;
    }
    if findings < judged.len() {
        writeln!(out, "\nNo findings:")?;
    }
    for judged in judged.iter().filter(|judged| !judged.is_finding) {
        let declared = if judged.declared { "" } else { "; the document does not list the header" };
        writeln!(out, "  {}: {}{declared}", judged.named(), judged.protection.as_str())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_finding() {
        for (protection, method, allowed, expected) in [
            (Protection::Required, Method::POST, &[][..], false),
            (Protection::Optional, Method::POST, &[], true),
            (Protection::Optional, Method::PATCH, &[], true),
            (Protection::Optional, Method::PUT, &[], false),
            (Protection::Optional, Method::DELETE, &[], false),
            (Protection::Optional, Method::POST, &[Allowed::Optional], false),
            (Protection::Observed, Method::DELETE, &[], true),
            (Protection::Observed, Method::POST, &[Allowed::Observed], false),
            (Protection::Observed, Method::POST, &[Allowed::Optional], true),
            (Protection::None, Method::PUT, &[Allowed::Optional, Allowed::Observed], true),
            (Protection::Partly, Method::PUT, &[Allowed::Optional, Allowed::Observed], true),
        ] {
            assert_eq!(
                is_finding(protection, &method, allowed),
                expected,
                "{protection:?} {method} {allowed:?}"
            );
        }
    }
}
