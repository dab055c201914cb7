//! Settings as users write them.

use std::time::Duration;

use http::Method;
use onlyonce::policy::{Mode, On5xx};
use onlyonce::scope::Source;
use onlyonce::{Effects, Policy};
use proptest::prelude::*;

use super::setting::{SETTINGS, Setting, Standing};
use super::*;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("onlyonce-config-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const UPSTREAM: &str = "upstream = \"http://127.0.0.1:3000\"\n";

/// What comes of a file, `NAME=VALUE` of the environment, and `--set`.
fn load_all(file: impl AsRef<[u8]>, environment: &[(&str, &str)], sets: &[&str]) -> Result<Loaded, Faults> {
    let folder = Folder::new();
    let sources = Sources {
        file: Some(folder.file("o.toml", file)),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        sets: sets.iter().map(|set| (*set).to_owned()).collect(),
        flags: Vec::new(),
    };
    load(&sources)
}

/// A file below the one line every file needs.
fn load_file(file: &str) -> Result<Loaded, Faults> {
    load_all(format!("{UPSTREAM}{file}"), &[], &[])
}

/// Every fault as it is told, without the folder's name.
fn told(found: Result<Loaded, Faults>) -> Vec<String> {
    let faults = found.err().map(|faults| faults.0).unwrap_or_default();
    faults
        .iter()
        .map(|fault| {
            let told = fault.to_string();
            match told.rsplit_once(" (") {
                Some((told, place)) if place.contains("o.toml line") => {
                    format!("{told} (line {}", place.rsplit(' ').next().unwrap())
                }
                _ => told,
            }
        })
        .collect()
}

fn warned(file: &str) -> Vec<String> {
    let loaded = load_file(file).unwrap_or_else(|faults| panic!("{faults}"));
    loaded
        .warnings
        .iter()
        .map(|warning| format!("{} {}", warning.path, warning.value.as_deref().unwrap_or("-")))
        .collect()
}

#[test]
fn flags_and_sets_beat_the_environment_which_beats_the_file() {
    let folder = Folder::new();
    let file = folder.file("o.toml", "listen = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:11\"\nservice = \"file\"\n[policy]\nlease = \"7s\"\nretention = \"2h\"\ndeadline = \"1m\"\n");
    let variables = [
        ("ONLYONCE_LISTEN", "127.0.0.1:2"),
        ("ONLYONCE_ADMIN", "127.0.0.1:12"),
        ("ONLYONCE_POLICY__LEASE", "8s"),
        ("ONLYONCE_POLICY__RETENTION", "3h"),
        ("PATH", "/bin"),
    ];
    let sources = Sources {
        file: Some(file),
        environment: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        sets: ["listen=127.0.0.1:3", "policy.lease=9s", "policy.lease = 10s"].map(str::to_owned).to_vec(),
        flags: vec![
            ("--upstream", "upstream", "http://h:1".into()),
            ("--listen", "listen", "127.0.0.1:4".into()),
        ],
    };
    let config = load(&sources).unwrap().config;
    let policy = config.default.policy;
    assert_eq!(config.listen.port(), 4);
    assert_eq!(config.admin.port(), 12);
    assert_eq!(&*config.service, "file");
    assert_eq!(policy.lease, Duration::from_secs(10));
    assert_eq!(policy.retention, Duration::from_secs(3 * 3600));
    assert_eq!(policy.deadline, Duration::from_secs(60));
    assert_eq!(policy.horizon, Policy::default().horizon);
}

#[test]
fn values_of_variables_and_sets_are_toml_and_a_bare_word_is_a_text() {
    let environment = [
        ("ONLYONCE_LISTEN", "[::1]:8080"),
        ("ONLYONCE_SERVICE", "42"),
        ("ONLYONCE_POLICY__ON_5XX", "store"),
        ("ONLYONCE_POLICY__REQUIRED", "true"),
        ("ONLYONCE_POLICY__RELEASE", "[401,403]"),
        ("ONLYONCE_POLICY__FINGERPRINT__BODY", "'bytes'"),
        ("ONLYONCE_ROUTE", "[{ match = 'POST /a', effects = 'keyed' }]"),
        ("ONLYONCE_POLICY", "{ mode = 'observe' }"),
    ];
    let loaded = load_all(UPSTREAM, &environment, &["policy.request_bytes_max=5", "store=memory:"]);
    let config = loaded.unwrap_or_else(|faults| panic!("{faults}")).config;
    let policy = &config.default.policy;
    assert_eq!(config.listen.to_string(), "[::1]:8080");
    assert_eq!(&*config.service, "42");
    assert_eq!(policy.on_5xx, On5xx::Store);
    assert_eq!(policy.required, [Method::POST, Method::PATCH]);
    assert_eq!(policy.release, [401, 403]);
    assert_eq!(policy.request_bytes_max, 5);
    assert_eq!(policy.mode, Mode::Observe);
    assert_eq!(config.store, store::Url::Memory);
    assert_eq!(config.routes[0].policy.effects, Effects::Keyed);
}

#[test]
fn what_begins_like_a_setting_and_is_none_is_let_be() {
    let environment = [
        ("ONLYONCE_PORT", "tcp://10.0.0.1:8080"),
        ("ONLYONCE_SERVICE_HOST", "10.0.0.1"),
        ("ONLYONCE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("ONLYONCE_ADMIN_TOKEN", "0123456789abcdef"),
    ];
    let file = format!("{UPSTREAM}[[admin_token]]\ntoken = \"env:ONLYONCE_ADMIN_TOKEN\"\n");
    let config = load_all(file, &environment, &[]).unwrap().config;
    assert_eq!(config.admin_tokens[0].token.bytes, b"0123456789abcdef");
    assert_eq!(config.admin_tokens[0].role, Role::Read);
    let misspelt = load_all(UPSTREAM, &[("ONLYONCE_LISSEN", "127.0.0.1:1")], &[]);
    assert_eq!(told(misspelt), ["lissen: is no setting; did you mean listen? (environment ONLYONCE_LISSEN)"]);
}

#[test]
fn of_two_the_more_specific_wins() {
    let dialects = load_file(
        "[policy]\ndialect = \"stripe\"\nunknown = [504]\n\
         [[route]]\nmatch = \"/a\"\n\
         [[route]]\nmatch = \"/b\"\ndialect = \"conflict\"\n\
         [[route]]\nmatch = \"/c\"\ndialect = \"conflict\"\nkey_chars_max = 99\nunknown = [408]\n",
    )
    .unwrap();
    let [a, b, c] = [0, 1, 2].map(|at| &dialects.config.routes[at].policy);
    assert_eq!((a.on_5xx, &a.unknown[..], a.key.chars_max), (On5xx::Store, &[504][..], 255));
    assert_eq!((b.on_5xx, &b.unknown[..], b.key.chars_max), (On5xx::Store, &[502, 504][..], 128));
    assert_eq!((c.on_5xx, &c.unknown[..], c.key.chars_max), (On5xx::Store, &[408][..], 99));
    let left = dialects.warnings.iter().find(|warning| warning.path == "route[1].dialect").unwrap();
    assert!(left.remedy.contains("brings: syntax, on_5xx;"), "{left}");
}

#[test]
fn a_route_has_the_policy_but_for_what_it_says_itself() {
    let file = "upstream_protocol = \"http2\"\n[policy]\nrequired = true\nretention = \"2h\"\n\
                [[route]]\nmatch = \"PUT /a/*\"\nupstream = \"https://h/base\"\nmethods = [\"PUT\", \"POST\"]\n\
                [[route]]\nmatch = \"/b/**\"\nupstream_protocol = \"http1\"\nrequired = [\"DELETE\"]\nfingerprint.body = \"bytes\"\n";
    let config = load_file(file).unwrap().config;
    let [a, b] = &config.routes[..] else { panic!("two routes") };
    assert_eq!(&*a.name, "PUT /a/*");
    assert_eq!((a.upstream.uri.to_string(), a.upstream.protocol), ("https://h/base".into(), Protocol::Http2));
    assert_eq!(a.policy.required, [Method::POST]);
    assert_eq!(a.policy.retention, Duration::from_secs(7200));
    assert_eq!(
        (b.upstream.uri.to_string(), b.upstream.protocol),
        ("http://127.0.0.1:3000/".into(), Protocol::Http1)
    );
    assert_eq!(b.policy.required, [Method::DELETE]);
    assert_eq!(b.policy.fingerprint.body, onlyonce::fingerprint::BodyForm::Bytes);
    assert_eq!(config.default.policy.fingerprint.body, onlyonce::fingerprint::BodyForm::Auto);
}

#[test]
fn every_fault_is_told_at_once_with_path_value_remedy_and_place() {
    let file = "listen = \"localhost:80\"\nlease = \"5s\"\n\
                [policy]\nlaese = \"5s\"\nlease = \"5ms\"\nrelease = [99, \"x\"]\naccept = \"always\"\n\
                [[route]]\nmatch = \"POST /a\"\nlease = \"10m\"\ndeadline = \"5m\"\n\
                [limits]\nin_flight = 3\n";
    let found =
        told(load_all(file, &[("ONLYONCE_POLICY__EFFECTS", "magic")], &["policy.retention=0s", "oops"]));
    assert_eq!(
        found,
        [
            "--set: \"oops\" has no value; write it like policy.lease=5s (--set)",
            "lease: is no setting; lease belongs to [policy] (line 2)",
            "limits.in_flight: is not in this release, and ignoring it would break what it promises; take it out (line 13)",
            "policy.laese: is no setting; did you mean lease? (line 4)",
            "listen: \"localhost:80\" is a name; write 127.0.0.1:80 (line 1)",
            "upstream: names no service to stand in front of; give --upstream http://HOST:PORT, or set it in the file",
            "policy.effects: \"magic\" is not one of local, keyed, queryable, opaque (environment ONLYONCE_POLICY__EFFECTS)",
            "policy.accept: \"always\" needs accepted work and [encryption], which are not in this release; take it out (line 7)",
            "policy.release: \"99\" is no final HTTP status; use 200 to 599 (line 6)",
            "policy.release: \"x\" is not an HTTP status; write it like 429 (line 6)",
            "policy.retention: \"0s\" is shorter than 1s; keep answers at least that long (--set)",
            "policy.lease: \"5ms\" is too short to be renewed in time; set at least 1s (line 5)",
            "route[0].deadline of \"POST /a\": \"5m\" is shorter than lease 10m; set at least that (line 11)",
        ]
    );
}

/// Each line: what stands in the file, and part of what is told, one fault alone.
#[test]
fn every_kind_of_fault_is_told_with_its_remedy() {
    let folder = Folder::new();
    let cert = folder.file("cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let key = folder.file("key.pem", include_str!("../caller/fixtures/rsa-new.pem"));
    let public = folder.file("public.pem", include_str!("../caller/fixtures/rsa-new.pub.pem"));
    let empty = folder.file("empty", "\n");
    let (cert, key, public, empty) = (cert.display(), key.display(), public.display(), empty.display());
    let bank = |setting: &str| format!("[webhooks.bank]\nsecrets = [\"env:LONG\"]\n{setting}");
    for (file, expected) in [
        ("admin = \"0.0.0.0:8081\"", "admin: \"0.0.0.0:8081\" can be reached from other machines"),
        ("admin = \"127.0.0.1:8080\"", "admin: \"127.0.0.1:8080\" is where clients come in too"),
        ("listen = \"0.0.0.0:8081\"", "admin: \"127.0.0.1:8081\" is where clients come in too"),
        ("listen = \":80\"", "write 127.0.0.1:80"),
        ("listen = 80", "is not a text"),
        ("listen = \"127.0.0.1:3000\"", "upstream: \"http://127.0.0.1:3000/\" is this gateway itself"),
        ("store = \"mongo://ann:hunter2@h\"", "store \"mongo://…\" is of no known kind"),
        ("trusted_from = \"10.0.0.0/8\"", "trusted_from: \"10.0.0.0/8\" is not a list"),
        ("trusted_from = [\"10.0.0.1/8\"]", "write 10.0.0.0/8"),
        ("upstream_ca = \"/nowhere.pem\"", "cannot be read"),
        (&format!("upstream_ca = \"{key}\""), "holds no \"CERTIFICATE\" in PEM"),
        ("policy = 3", "policy: is no table; write [policy]"),
        ("route = 3", "route: is no list of tables; write [[route]]"),
        ("route = [3]", "route[0]: \"3\" is no list of tables"),
        ("webhooks = 3", "is no table of tables; write [webhooks.NAME]"),
        ("[webhooks]\nbank = 3", "webhooks.bank: is no table of tables"),
        ("[[route]]\nlease = \"5s\"", "route[0].match: says which requests it is about"),
        (
            "[[route]]\nmatch = \"/a\"\n[[route]]\nmatch = \"* /a\"",
            "route[1].match of \"* /a\": \"* /a\" is the match of route[0] too",
        ),
        ("[[route]]\nmatch = \"/a\"\nupstream = \"h:80\"", "route[0].upstream"),
        ("[[route]]\nmatch = \"/a\"\nprobe = \"h:80\"", "route[0].probe"),
        ("[[route]]\nmatch = \"/a\"\nlisten = \"h:80\"", "listen belongs outside any table"),
        (
            "[policy]\nscope = [\"jwt:sub\"]",
            "policy.scope: \"jwt:sub\" needs keys to verify tokens with; set jwt.keys",
        ),
        ("[policy]\nscope = [\"certificate\"]", "policy.scope: \"certificate\" needs somebody who issues"),
        ("[policy]\nscope = [\"route\"]", "tells no caller from another"),
        ("[policy]\nscope = [\"header:Idempotency-Key\"]", "is the header of the key itself"),
        ("[policy]\nscope = [\"cookie:a\"]", "is none we know; use header:NAME"),
        ("trusted_from = []\n[policy]\nscope = [\"trusted:x-user\"]", "is believed from nobody"),
        (
            "[[route]]\nmatch = \"/a\"\nscope = [\"jwt:sub\"]",
            "route[0].scope of \"/a\": \"jwt:sub\" needs keys",
        ),
        ("[policy]\nrequest_age_max = \"5m\"", "policy.request_age_max: is not in this release"),
        ("[encryption]\nkeys = [\"env:X\"]", "encryption.keys: is not in this release"),
        ("[policy]\nkey_chars_min = -1", "is below 0"),
        ("[policy]\nheader = \"a b\"", "is no name of a header"),
        ("[policy]\nfingerprint.ignore = [\"a\"]", "does not start with a slash"),
        (
            "[policy]\nfingerprint.secrets = [\"hunter2\"]",
            "policy.fingerprint.secrets: is no place of a secret",
        ),
        (&format!("[policy]\nfingerprint.secrets = [\"file:{empty}\"]"), "is empty"),
        ("[policy]\nlease = 1979-05-27", "is not a span"),
        (&format!("[tls]\ncert = \"{cert}\""), "tls.key: is missing beside tls.cert"),
        (&format!("[tls]\ncert = \"{key}\"\nkey = \"{key}\""), "tls.cert"),
        (&format!("[tls]\ncert = \"{cert}\"\nkey = \"{key}\""), "tls.cert: "),
        ("[jwt]\nissuer = \"x\"", "jwt.keys: has no key to verify tokens with"),
        ("[jwt]\nkeys = [\"env:MISSING\"]", "jwt.keys: variable MISSING is not set"),
        ("[jwt]\nkeys = [\"file:/nowhere\"]", "jwt.keys: file \"/nowhere\" cannot be read"),
        (&format!("[jwt]\nkeys = [\"file:{key}\"]"), "has a private key"),
        (
            &format!("[jwt]\nkeys = [\"file:{public}\"]\nalgorithms = [\"HS256\"]"),
            "has a key for RS256, which jwt.algorithms does not list",
        ),
        (
            "[jwt]\nkeys = [\"env:LONG\"]\nalgorithms = [\"RS256\"]",
            "has a key for HS256, which jwt.algorithms does not list",
        ),
        ("[jwt]\nkeys = [\"env:LONG\"]\nalgorithms = [\"none\"]", "is not one of HS256, RS256, ES256"),
        (
            "[jwt]\nkeys = [\"env:LONG\"]\nalgorithms = []",
            "has a key for HS256, which jwt.algorithms does not list",
        ),
        ("[[admin_token]]\nname = \"ann\"", "admin_token[0].token: is missing"),
        (
            "[[admin_token]]\ntoken = \"env:LONG\"\nname = \"a\"\n[[admin_token]]\ntoken = \"env:LONG\"\nname = \"b\"",
            "is the same secret",
        ),
        (
            "[[admin_token]]\ntoken = \"env:LONG\"\nname = \"a\"\n[[admin_token]]\ntoken = \"env:SHORT\"\nname = \"a\"",
            "is the name of the token",
        ),
        ("[background]\nsweep_every = \"0s\"", "would never rest"),
        ("[background]\nreap_batch = 0", "is not from 1 to 100000"),
        ("[log]\nfilter = \"onlyonce=loud\"", "is no filter"),
        ("[background]\nreconcile_first = \"0s\"", "background.reconcile_first: \"0s\" would never rest"),
        ("[background]\nreconcile_max = \"0ms\"", "background.reconcile_max: \"0ms\" would never rest"),
        ("[background]\nreconcile_tries_max = 0", "background.reconcile_tries_max: \"0\" is not from 1"),
        ("[background]\nprobes_at_once = 0", "background.probes_at_once: \"0\" is not from 1 to 1024"),
        ("audit_retention = \"23h\"", "audit_retention: \"23h\" is shorter than 1d"),
        ("[log]\ndecisions = \"yes\"", "log.decisions: \"yes\" is not true or false"),
        ("[webhooks.bank]\nsecrets = [\"hunter2\"]", "webhooks.bank.secrets: is no place of a secret"),
        ("[webhooks.bank]\npublic = true", "webhooks.bank.secrets: has no secret to verify with"),
        ("[webhooks.bank]\nsecrets = []", "webhooks.bank.secrets: has no secret to verify with"),
        (&bank("preset = \"paypal\""), "webhooks.bank.preset: \"paypal\" is not one of none, stripe"),
        (&bank("scheme = \"md5\""), "webhooks.bank.scheme: \"md5\" is not one of onlyonce, stripe, standard"),
        (&bank("header = \"a b\""), "webhooks.bank.header: \"a b\" is no name of a header"),
        (&bank("tolerance = \"0s\""), "webhooks.bank.tolerance: \"0s\" would refuse every request"),
        (&bank("public = 1"), "webhooks.bank.public: \"1\" is not true or false"),
        (
            &bank("token_pointer = \"token\""),
            "webhooks.bank.token_pointer: pointer \"token\" does not start with a slash",
        ),
        (&bank("scope_pointer = \"\""), "webhooks.bank.scope_pointer"),
        (&bank("key_pointer = \"/a~2\""), "webhooks.bank.key_pointer"),
        (&bank("verdict_pointer = 3"), "webhooks.bank.verdict_pointer"),
        (&bank("final_pointer = \"x\""), "webhooks.bank.final_pointer"),
        (&bank("response_pointer = \"x\""), "webhooks.bank.response_pointer"),
        (&bank("id_pointer = \"x\""), "webhooks.bank.id_pointer"),
        (&bank("time_pointer = \"x\""), "webhooks.bank.time_pointer"),
        (&bank("declined_status = 200"), "webhooks.bank.declined_status: \"200\" does not tell a client"),
        (&bank("declined_status = 99"), "webhooks.bank.declined_status: \"99\" is no final HTTP status"),
        (&bank("verdicts = \"PAID\""), "webhooks.bank.verdicts: is no table"),
        (
            &bank("verdicts = { PAID = \"paid\" }"),
            "webhooks.bank.verdicts: \"PAID = paid\" is not one of happened, declined, did-not-happen, did-not-happen-final, unknown, ignore",
        ),
        (&bank("verdict = \"/x\""), "webhooks.bank.verdict: is no setting; did you mean verdicts?"),
        ("[webhooks.\"a/b\"]\nsecrets = [\"env:LONG\"]", "webhooks.a/b: \"a/b\" cannot stand in a path"),
        (
            "[webhooks.x]\nscheme = \"standard\"\nsecrets = [\"env:WHSEC\"]",
            "webhooks.x.secrets: \"env:WHSEC\" begins with whsec_, and what follows is no base64",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://ann:hunter2@h\"",
            "route[0].probe of \"/a\": has credentials in it",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { authorization = \"env:MISSING\" }",
            "route[0].probe_headers of \"/a\": authorization variable MISSING is not set",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { host = \"hunter2\" }",
            "route[0].probe_headers of \"/a\": host is a header that every question has from us",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { a = \"hunter2\\n\" }",
            "route[0].probe_headers of \"/a\": a has a value that no header can have",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = \"hunter2\"",
            "route[0].probe_headers of \"/a\": is no table",
        ),
        ("[destinations.mail]\nurl = \"mail\"", "destinations.mail.url"),
    ] {
        let environment =
            [("LONG", "a secret of more than thirty-two bytes"), ("SHORT", "short"), ("WHSEC", "whsec_%%%")];
        let found = told(load_all(format!("{UPSTREAM}{file}"), &environment, &[]));
        assert!(found.len() == 1 && found[0].contains(expected), "{file}: {found:#?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
}

#[test]
fn an_upstream_must_be_one() {
    for (upstream, expected) in [
        ("ftp://h", "is neither http:// nor https://"),
        ("h:80", "does not say http:// or https://"),
        ("http://h/?a=b", "has a query"),
        ("http://ann:hunter2@h", "has credentials in it"),
    ] {
        let found = told(load_all(format!("upstream = \"{upstream}\""), &[], &[]));
        assert!(found.len() == 1 && found[0].contains(expected), "{upstream}: {found:?}");
        assert!(!found[0].contains("hunter2"));
    }
}

#[test]
fn a_file_that_is_no_toml_is_told_by_line_and_column() {
    let found = told(load_all("listen = \"127.0.0.1:1\"\nadmin = = 3\n", &[], &[]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("is no TOML: ") && found[0].contains("mend line 2, column 9"), "{found:?}");
    assert!(told(load_all(b"a = \"\xff\"", &[], &[]))[0].contains("is no text in UTF-8"));
    let missing = Sources { file: Some("/nowhere/o.toml".into()), ..Sources::default() };
    assert!(load(&missing).unwrap_err().to_string().contains("config: \"/nowhere/o.toml\" cannot be read"));
}

#[test]
fn what_is_set_inside_a_list_or_a_value_is_told() {
    let file = "service = \"x\"\n[[route]]\nmatch = \"/a\"\n";
    let found =
        told(load_all(format!("{UPSTREAM}{file}"), &[], &["route.lease=5s", "store=memory:", "store.url=x"]));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found.iter().any(|fault| fault.starts_with("route: is inside a list, which is set as a whole")),
        "{found:?}"
    );
    assert!(found.iter().any(|fault| fault.starts_with("store.url: is inside \"store\"")), "{found:?}");
}

/// What is legal and risky: the file, and what is warned about.
#[test]
fn what_may_be_regretted_is_a_warning() {
    for (file, expected) in [
        ("store = \"memory:\"", "store memory:"),
        ("listen = \"0.0.0.0:8080\"", "listen 0.0.0.0:8080"),
        ("trusted_from = [\"0.0.0.0/0\"]", "trusted_from 0.0.0.0/0"),
        ("[policy]\nmode = \"observe\"", "policy.mode observe"),
        ("[policy]\nanonymous = \"shared\"", "policy.anonymous shared"),
        ("[policy]\nretention = \"30m\"", "policy.retention 30m"),
        ("[policy]\nscope = [\"header:authorization\"]", "policy.scope header:authorization"),
        ("[policy]\nkey_chars_min = 8", "policy.key_chars_min 8"),
        ("[policy]\neffects = \"opaque\"", "policy.effects opaque"),
        ("[policy]\ndeadline = \"10s\"", "policy.deadline 10s"),
        ("[policy]\nlease = \"10m\"", "policy.lease 10m"),
        ("[policy]\nwait_max = \"5m\"", "policy.wait_max 5m"),
        ("[policy]\nstore_down = \"run\"", "policy.store_down run"),
        ("[policy]\non_5xx = \"store\"", "policy.on_5xx store"),
        ("[policy]\nrequest_bytes_max = \"100MiB\"", "policy.request_bytes_max 104857600"),
        ("[background]\naccepted_at_once = 3", "background.accepted_at_once 3"),
        ("[destinations.mail]\nurl = \"http://h\"", "destinations.mail.url http://h"),
        ("[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"", "route[0].probe http://h/"),
        ("[[route]]\nmatch = \"/a\"\nprobe_headers = { a = \"b\" }", "route[0].probe_headers -"),
        ("[[route]]\nmatch = \"/a\"\neffects = \"local\"", "route[0].effects local"),
        ("[[route]]\nmatch = \"/a\"\neffects = \"queryable\"", "route[0].effects queryable"),
        ("[[route]]\nmatch = \"PUT /a\"\nrequired = true", "route[0].required true"),
        ("[[route]]\nmatch = \"/a/**\"\n[[route]]\nmatch = \"POST /a/b\"", "route[1].match POST /a/b"),
    ] {
        assert_eq!(warned(file), [expected], "{file}");
    }
    let long = "[webhooks.bank]\nsecrets = [\"env:S\"]\ntolerance = \"2h\"";
    let loaded = load_all(format!("{UPSTREAM}{long}"), &[("S", "secret")], &[]).unwrap();
    assert_eq!(loaded.warnings[0].path, "webhooks.bank.tolerance");
    let asked = "[[route]]\nmatch = \"/a\"\neffects = \"queryable\"\nprobe = \"http://h\"";
    assert_eq!(warned(asked), Vec::<String>::new());
    let left_by_a_dialect = "[policy]\ndialect = \"stripe\"\n[[route]]\nmatch = \"/a\"\ndialect = \"ietf\"";
    assert_eq!(warned(left_by_a_dialect), ["route[0].on_5xx store", "route[0].dialect ietf"]);
}

#[test]
fn one_setting_changed_alone_neither_conflicts_with_a_default_nor_makes_it_warn() {
    assert_eq!(warned(""), Vec::<String>::new());
    let values = [
        "'1s'",
        "'3s'",
        "'10s'",
        "'40s'",
        "'10m'",
        "'30h'",
        "1",
        "16",
        "300",
        "[408]",
        "[429, 502]",
        "['LOCK']",
        "true",
        "'1MiB'",
    ];
    let needs_others =
        |setting: &Setting| matches!(setting.split().0, "tls" | "jwt" | "admin_token" | "webhooks.*");
    for setting in SETTINGS.iter().filter(|setting| !needs_others(setting)) {
        let values: Vec<_> =
            values.iter().map(|value| (*value).to_owned()).chain(values_of(setting)).collect();
        let name = setting.path.strip_prefix("policy.");
        let route = name.map(|name| format!("[[route]]\nmatch = '/x'\n{name}"));
        for value in &values {
            let upstream = if setting.path == "upstream" { "" } else { UPSTREAM };
            let mut files = vec![format!("{upstream}{}", file_of(setting, value))];
            files.extend(route.as_ref().map(|route| format!("{UPSTREAM}{route} = {value}\n")));
            for file in files {
                let paths: Vec<_> = match load_all(&file, &[], &[]) {
                    Ok(loaded) => loaded.warnings.into_iter().map(|warning| warning.path).collect(),
                    Err(faults) => faults.0.into_iter().map(|fault| fault.path).collect(),
                };
                let own = format!(".{}", setting.split().1);
                assert!(paths.iter().all(|path| format!(".{path}").ends_with(&own)), "{file}: {paths:?}");
            }
        }
    }
}

/// What is set, and of what is not set what follows from it.
#[test]
fn what_is_not_set_is_derived() {
    let policy = |file: &str| {
        let loaded =
            load_file(&format!("[policy]\n{file}")).unwrap_or_else(|faults| panic!("{file}: {faults}"));
        let again = load_all(&loaded.effective, &[], &[]).unwrap_or_else(|faults| panic!("{file}: {faults}"));
        assert_eq!(format!("{:?}", again.config), format!("{:?}", loaded.config), "{}", loaded.effective);
        let route = loaded.config.routes.into_iter().next();
        route.map_or(loaded.config.default.policy, |route| route.policy)
    };
    let millis =
        |policy: &Policy| [policy.lease, policy.deadline, policy.store_timeout].map(|span| span.as_millis());
    for (file, expected) in [
        ("", [30_000, 300_000, 2_000]),
        ("lease = '3s'", [3_000, 300_000, 1_500]),
        ("lease = '1001ms'", [1_001, 300_000, 500]),
        ("lease = '10m'", [600_000, 600_000, 2_000]),
        ("deadline = '10s'", [10_000, 10_000, 2_000]),
        ("deadline = '1s'", [1_000, 1_000, 500]),
        ("store_timeout = '20s'", [40_000, 300_000, 20_000]),
        ("store_timeout = '4m'", [480_000, 480_000, 240_000]),
        ("deadline = '20s'\n[[route]]\nmatch = '/a'\nlease = '2s'", [2_000, 20_000, 1_000]),
        ("lease = '2s'\n[[route]]\nmatch = '/a'\nlease = '10m'", [600_000, 600_000, 2_000]),
    ] {
        assert_eq!(millis(&policy(file)), expected, "{file}");
    }
    let statuses = |file| {
        let policy = policy(file);
        (policy.release, policy.unknown)
    };
    assert_eq!(statuses("release = [408, 502]"), (vec![408, 502], vec![504]));
    assert_eq!(statuses("unknown = [429]"), (vec![401, 403, 425], vec![429]));
    assert_eq!(
        statuses("unknown = [429]\n[[route]]\nmatch = '/a'\nunknown = [401]"),
        (vec![403, 425, 429], vec![401])
    );
    assert_eq!(policy("key_chars_min = 300").key.chars_max, 300);
    assert!(policy("required = ['LOCK']").methods.contains(&"LOCK".parse().unwrap()));
    for (file, expected) in [
        ("lease = '10m'\ndeadline = '5m'", "policy.deadline: \"5m\" is shorter than policy.lease 10m"),
        ("deadline = '500ms'", "policy.deadline: \"500ms\" is shorter than policy.lease 1s"),
        ("lease = '0s'", "policy.lease: \"0s\" is too short"),
        (
            "store_timeout = '0s'",
            "policy.store_timeout: \"0s\" must be above 0s and at most half of policy.lease 30s",
        ),
        (
            "store_timeout = '60000d'",
            "policy.store_timeout: \"1440000h\" must be above 0s and at most half of policy.lease 24h",
        ),
        ("required = ['GET']", "policy.required: \"GET\" is not among policy.methods"),
        ("required = ['CONNECT']", "policy.required: \"CONNECT\" is not among policy.methods"),
        ("release = [502]\nunknown = [502]", "policy.unknown: \"502\" is in policy.release too"),
    ] {
        let found = told(load_file(&format!("[policy]\n{file}")));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{file}: {found:?}");
    }
}

/// Of a source, what is not set is the preset's; what is set beats it.
#[test]
fn a_source_of_webhooks_has_what_its_preset_says_but_for_what_it_says_itself() {
    let environment = [("S", "whsec_test_secret"), ("W", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
    let webhooks = |file: &str| {
        let loaded = load_all(format!("{UPSTREAM}{file}"), &environment, &[]);
        let loaded = loaded.unwrap_or_else(|faults| panic!("{file}: {faults}"));
        assert!(loaded.warnings.is_empty(), "{file}: {:?}", loaded.warnings);
        let again = load_all(&loaded.effective, &environment, &[]);
        let again = again.unwrap_or_else(|faults| panic!("{}: {faults}", loaded.effective));
        assert_eq!(again.config.webhooks, loaded.config.webhooks, "{}", loaded.effective);
        loaded.config.webhooks
    };
    let [bank] = &webhooks("[webhooks.bank]\nsecrets = ['env:S']\n")[..] else { panic!("one") };
    assert_eq!(
        (&*bank.name, bank.scheme, bank.header.as_str()),
        ("bank", Scheme::Onlyonce, "onlyonce-signature")
    );
    assert_eq!((bank.tolerance, bank.public, bank.declined_status), (Duration::from_secs(300), false, 402));
    assert_eq!((bank.pointers.token.as_str(), bank.pointers.time.as_ref()), ("/token", None));
    assert_eq!((bank.verdicts.as_ref(), &bank.secrets[0].bytes[..]), (None, &b"whsec_test_secret"[..]));

    let [stripe] = &webhooks("[webhooks.stripe]\nsecrets = ['env:S']\npublic = true\n")[..] else {
        panic!("one")
    };
    assert_eq!((stripe.scheme, stripe.header.as_str()), (Scheme::Stripe, "stripe-signature"));
    assert_eq!(stripe.pointers.token.as_str(), "/data/object/metadata/onlyonce_token");
    assert_eq!(stripe.pointers.time.as_ref().unwrap().as_str(), "/created");
    let verdicts = stripe.verdicts.as_ref().unwrap();
    assert_eq!(verdicts.get("charge.failed"), Some(&Word::Declined));
    assert_eq!(verdicts.get("payment_intent.created"), None);
    assert_eq!(stripe.secrets[0].bytes, b"whsec_test_secret", "Stripe's scheme signs with the text itself");

    let file = "[webhooks.pay]\npreset = 'stripe'\nsecrets = ['env:S']\nheader = 'X-Sig'\ntoken_pointer = '/t'\n\
                verdicts = { 'charge.captured' = 'ignore', x = 'unknown' }\n";
    let [pay] = &webhooks(file)[..] else { panic!("one") };
    assert_eq!((pay.header.as_str(), pay.pointers.token.as_str()), ("x-sig", "/t"));
    assert_eq!(pay.pointers.key.as_str(), "/data/object/metadata/onlyonce_key");
    let verdicts = pay.verdicts.as_ref().unwrap();
    assert_eq!(
        ["charge.captured", "x", "charge.succeeded"].map(|event| verdicts[event]),
        [Word::Ignore, Word::Unknown, Word::Happened]
    );

    let [plain] = &webhooks("[webhooks.stripe]\npreset = 'none'\nsecrets = ['env:S']\n")[..] else {
        panic!("one")
    };
    assert_eq!((plain.preset.name, plain.scheme), ("none", Scheme::Onlyonce));
    let [standard] = &webhooks(
        "[webhooks.a]\nscheme = 'standard'\nsecrets = ['env:W', 'env:S2']\n"
            .replace("'env:S2'", "'env:W'")
            .as_str(),
    )[..] else {
        panic!("one")
    };
    assert_eq!((standard.header.as_str(), standard.secrets[0].bytes.len()), ("webhook-signature", 24));
}

/// What a probe's headers hold is nobody's business, wherever it stands.
#[test]
fn a_probe_is_read_with_its_headers_and_they_are_never_shown() {
    let file = "[background]\nreconcile_first = '3s'\n[[route]]\nmatch = '/a'\neffects = 'queryable'\nprobe = 'https://h/p?x=1'\n\
                probe_headers = { authorization = 'env:AUTH', x-team = 'hunter3' }\n[[route]]\nmatch = '/b'\n";
    let loaded = load_all(format!("{UPSTREAM}{file}"), &[("AUTH", "Bearer hunter2")], &[]).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let [a, b] = &loaded.config.routes[..] else { panic!("two routes") };
    let probe = a.probe.as_ref().unwrap();
    assert_eq!(probe.uri.to_string(), "https://h/p?x=1");
    let headers: Vec<_> =
        probe.headers.iter().map(|(name, value)| (name.as_str(), &value.bytes[..])).collect();
    assert_eq!(headers, [("authorization", &b"Bearer hunter2"[..]), ("x-team", b"hunter3")]);
    assert_eq!(a.policy.reconcile_first, Some(Duration::from_secs(3)));
    assert_eq!((b.policy.reconcile_first, b.probe.as_ref()), (None, None));
    assert!(loaded.effective.contains("authorization = \"env:AUTH\""), "{}", loaded.effective);
    for text in [&loaded.effective, &format!("{:?}", loaded.config), &format!("{:?}", loaded.warnings)] {
        assert!(!text.contains("hunter"), "{text}");
    }
}

#[test]
fn a_shared_secret_that_can_be_guessed_is_a_warning() {
    let file = format!(
        "{UPSTREAM}[jwt]\nkeys = [\"env:SHORT\"]\n[[admin_token]]\ntoken = \"env:SHORT\"\n[policy]\nscope = [\"jwt:sub\"]\n"
    );
    let loaded = load_all(file, &[("SHORT", "short")], &[]).unwrap();
    let paths: Vec<_> = loaded.warnings.iter().map(|warning| &*warning.path).collect();
    assert!(paths.contains(&"jwt.keys") && paths.contains(&"admin_token[0].token"), "{paths:?}");
    assert!(!paths.contains(&"policy.scope"));
    assert_eq!(loaded.config.default.policy.scope, [Source::Jwt("sub".into())]);
}

#[test]
fn algorithms_that_are_not_named_are_those_of_the_keys() {
    let folder = Folder::new();
    let public = folder.file("public.pem", include_str!("../caller/fixtures/rsa-new.pub.pem"));
    let keys = [
        ("env:LONG", vec![Algorithm::Hs256]),
        (&format!("file:{}", public.display()), vec![Algorithm::Rs256]),
    ];
    for (key, algorithms) in keys {
        let file = format!("{UPSTREAM}[jwt]\nkeys = [\"{key}\"]\n");
        let loaded = load_all(file, &[("LONG", "a secret of more than thirty-two bytes")], &[]);
        let jwt = loaded.unwrap_or_else(|faults| panic!("{faults}")).config.jwt.unwrap();
        assert_eq!(jwt.algorithms, algorithms, "{key}");
    }
}

/// G04: the same sources again read the file and the secrets as they are then.
#[test]
fn loading_again_reads_what_has_changed() {
    let folder = Folder::new();
    let secret = folder.file("secret", "one\n");
    let text = |lease: &str| {
        format!(
            "{UPSTREAM}[policy]\nlease = \"{lease}\"\n[[admin_token]]\ntoken = \"file:{}\"\n",
            secret.display()
        )
    };
    let sources = Sources { file: Some(folder.file("o.toml", text("5s"))), ..Sources::default() };
    let first = load(&sources).unwrap().config;
    folder.file("o.toml", text("6s"));
    folder.file("secret", "two\r\n");
    let second = load(&sources).unwrap().config;
    folder.file("o.toml", text("6"));
    assert!(load(&sources).is_err());
    assert_eq!(first.default.policy.lease, Duration::from_secs(5));
    assert_eq!(second.default.policy.lease, Duration::from_secs(6));
    assert_eq!([&first, &second].map(|config| &config.admin_tokens[0].token.bytes[..]), [b"one", b"two"]);
}

#[test]
fn what_holds_is_shown_with_where_it_came_from_and_without_secrets() {
    let file = "[policy]\ndialect = \"stripe\"\nfingerprint.secrets = [\"env:HIDDEN\"]\n[[route]]\nmatch = \"/a\"\nfingerprint.body = \"bytes\"\n";
    let loaded =
        load_all(format!("{UPSTREAM}{file}"), &[("HIDDEN", "hunter2")], &["policy.lease=5s"]).unwrap();
    let shown = &loaded.effective;
    for line in [
        "lease = \"5s\" ",
        "syntax = \"bare\" ",
        "retention = \"24h\" ",
        "[[route]]\n",
        "[route.fingerprint]\n",
        "secrets = [\"env:HIDDEN\"]",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(
        shown.contains("# --set\n")
            && shown.contains("# dialect stripe\n")
            && shown.contains("o.toml line 3\n")
    );
    for text in [shown, &format!("{:?}", loaded.config), &format!("{:?}", loaded.warnings)] {
        assert!(!text.contains("hunter2"));
    }
    let again = load_all(shown, &[("HIDDEN", "hunter2")], &[]).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(format!("{:?}", again.config), format!("{:?}", loaded.config));
}

/// A setting's place in a file, set to `value`.
fn file_of(setting: &Setting, value: &str) -> String {
    let (table, name) = setting.split();
    let table = match table {
        "" => return format!("{name} = {value}\n"),
        "route" => "[[route]]\nmatch = \"/x\"".to_owned(),
        "admin_token" => "[[admin_token]]\nrole = \"read\"".to_owned(),
        table => format!("[{}]", table.replace('*', "x")),
    };
    if setting.path == "route.match" {
        return format!("[[route]]\nmatch = {value}\n");
    }
    if setting.path == "admin_token.role" {
        return format!("[[admin_token]]\ntoken = \"env:LONG\"\nrole = {value}\n");
    }
    format!("{table}\n{name} = {value}\n")
}

/// Values that a setting takes: all of its words, or its example.
fn values_of(setting: &Setting) -> Vec<String> {
    let is_words = setting.takes.starts_with('`') && setting.example.starts_with('"');
    if is_words && setting.path != "policy.accept" {
        setting.takes.split(", ").map(|word| word.replace('`', "\"")).collect()
    } else {
        vec![setting.example.to_owned()]
    }
}

/// The table of settings is what is read: of each, a value that nothing can be is told by its path.
#[test]
fn every_setting_of_the_table_is_read() {
    for setting in SETTINGS.iter() {
        let upstream = if setting.path == "upstream" { "" } else { UPSTREAM };
        let path = setting
            .path
            .replace("route.", "route[0].")
            .replace("admin_token.", "admin_token[0].")
            .replace('*', "x");
        let found =
            load_all(format!("{upstream}{}", file_of(setting, "1.5")), &[], &[]).map(drop).unwrap_err();
        assert!(found.0.iter().any(|fault| fault.path == path), "{}: {found}", setting.path);
        let is_policys = setting.path.strip_prefix("policy.");
        if let Some(name) = is_policys {
            let file = format!("{UPSTREAM}[[route]]\nmatch = \"/x\"\n{name} = 1.5\n");
            let found = load_all(file, &[], &[]).map(drop).unwrap_err();
            assert!(found.0.iter().any(|fault| fault.path == format!("route[0].{name}")), "{name}: {found}");
        }
    }
}

#[test]
fn every_word_and_every_example_of_the_table_is_taken() {
    let is_file = |setting: &Setting| {
        matches!(&*setting.takes, "path of a file" | "secret" | "list of secrets" | "table of headers")
    };
    for setting in
        SETTINGS.iter().filter(|setting| !matches!(setting.standing, Standing::Refused) && !is_file(setting))
    {
        let upstream = if setting.path == "upstream" { "" } else { UPSTREAM };
        for word in values_of(setting) {
            let file = format!("{upstream}{}", file_of(setting, &word));
            let found = load_all(&file, &[("LONG", "0123456789abcdef")], &[]);
            let about: Vec<_> = found.err().into_iter().flat_map(|faults| faults.0).collect();
            let path = setting.split().1;
            assert!(!about.iter().any(|fault| fault.path.ends_with(path)), "{file}: {about:?}");
        }
    }
}

/// The example is without fault, and with every default of it spelt out nothing changes.
#[test]
fn the_example_is_the_defaults() {
    let example = page::example();
    let plain = load_all(&example, &[], &[]).unwrap_or_else(|faults| panic!("{faults}")).config;
    let mut spelt = String::from(UPSTREAM);
    let mut table = "";
    for setting in SETTINGS.iter().filter(|setting| matches!(setting.standing, Standing::Used)) {
        let Some(default) = setting.default else { continue };
        let (own, name) = setting.split();
        if matches!(own, "jwt" | "admin_token" | "webhooks.*") {
            continue;
        }
        if own != table {
            spelt.push_str(&format!("[{own}]\n"));
            table = own;
        }
        spelt.push_str(&format!("{name} = {default}\n"));
    }
    let spelt = load_all(&spelt, &[], &[]).unwrap_or_else(|faults| panic!("{faults}")).config;
    assert_eq!(format!("{plain:?}"), format!("{spelt:?}"));
    assert_eq!(plain.default.policy, Policy::default());
    assert_eq!(spelt.default.policy, Policy::default());
}

/// No depth of brackets is too much to be told.
#[test]
fn a_value_that_is_nested_without_end_is_a_fault() {
    let deep = "[".repeat(100_000);
    assert!(load_all(format!("a = {deep}"), &[], &[]).is_err());
    assert!(
        load_all(UPSTREAM, &[("ONLYONCE_POLICY__SCOPE", &deep)], &[&format!("policy.methods={deep}")])
            .is_err()
    );
    let closed = format!("{deep}{}", "]".repeat(100_000));
    assert!(load_all(UPSTREAM, &[], &[&format!("policy.methods={closed}")]).is_err());
}

proptest! {
    /// Whatever stands in a file, a variable or a `--set`, it is settings or faults.
    #[test]
    fn nothing_that_is_written_makes_loading_panic(file in ".{0,200}", value in ".{0,40}", set in ".{0,60}") {
        let _ = load_all(file, &[("ONLYONCE_POLICY__LEASE", &value), ("ONLYONCE___", &value)], &[&set]);
    }

    /// The same for what is nearly right: every setting with odd values, alone and in routes.
    #[test]
    fn no_value_of_a_setting_makes_loading_panic(
        at in 0..SETTINGS.len(),
        value in prop_oneof![
            Just("[]".to_owned()), Just("{}".to_owned()), Just("[[]]".to_owned()), Just("-1".to_owned()), Just("''".to_owned()),
            Just("'9223372036854775807d'".to_owned()), Just("9223372036854775807".to_owned()), Just("99999999999999999999".to_owned()),
            Just("nan".to_owned()), Just("[{}]".to_owned()), Just("{ x = {} }".to_owned()), "'[ -~&&[^']]{0,30}'", "[0-9a-zA-Z:/.%*\\[\\]{}\",= -]{0,30}",
        ],
    ) {
        let setting = &SETTINGS[at];
        let _ = load_all(format!("{UPSTREAM}{}", file_of(setting, &value)), &[], &[]);
        let _ = load_all(UPSTREAM, &[], &[&format!("{}={value}", setting.path.replace('*', "x"))]);
    }
}
