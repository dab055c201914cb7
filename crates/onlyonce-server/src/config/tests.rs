//! Settings as users write them.

use std::time::Duration;

use http::Method;
use onlyonce::policy::{Mode, On5xx};
use onlyonce::scope::Source;
use onlyonce::{Effects, Policy};
use proptest::prelude::*;

use super::setting::{SETTINGS, Setting};
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

pub(super) const UPSTREAM: &str = "upstream = \"http://127.0.0.1:3000\"\n";

/// What comes of a file, `NAME=VALUE` of the environment, and `--set`.
pub(super) fn load_all(
    file: impl AsRef<[u8]>,
    environment: &[(&str, &str)],
    sets: &[&str],
) -> Result<Loaded, Faults> {
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
    assert_eq!(
        told(misspelt),
        ["lissen: is an unknown setting; did you mean listen? (environment ONLYONCE_LISSEN)"]
    );
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
    assert!(left.remedy.contains("set: syntax, on_5xx;"), "{left}");
}

/// K01
#[test]
fn where_the_key_stands_is_one_thing_with_two_names() {
    let key_from = |file: &str| {
        let loaded = load_file(file).unwrap_or_else(|faults| panic!("{file}: {faults}"));
        let again = load_all(&loaded.effective, &[], &[]);
        let again = again.unwrap_or_else(|faults| panic!("{}: {faults}", loaded.effective));
        let shown = |loaded: &Loaded| {
            let routes = loaded.config.routes.iter().chain([&loaded.config.default]);
            let policies = routes.map(|route| {
                let sources = route.policy.key_from.iter().map(ToString::to_string);
                sources.collect::<Vec<_>>().join(" ")
            });
            policies.collect::<Vec<_>>()
        };
        assert_eq!(shown(&again), shown(&loaded), "{}", loaded.effective);
        shown(&loaded)
    };
    let header = "header:idempotency-key";
    assert_eq!(key_from(""), [header]);
    assert_eq!(key_from("[policy]\nheader = 'X-Key'"), ["header:x-key"]);
    assert_eq!(key_from("[policy]\nkey_from = ['json:/id', 'query:id']"), ["json:/id query:id"]);
    let both = "[policy]\nheader = 'X-Key'\nkey_from = ['json:/id', 'header:x-key']";
    assert_eq!(key_from(both), ["json:/id header:x-key"]);
    let routes = "[policy]\nkey_from = ['json:/id']\n\
                  [[route]]\nmatch = '/a'\nheader = 'X-Key'\n\
                  [[route]]\nmatch = '/b'\ndialect = 'paypal'\n\
                  [[route]]\nmatch = '/c'\ndialect = 'paypal'\nheader = 'X-Key'\n\
                  [[route]]\nmatch = '/d'\n";
    let found = key_from(routes);
    assert_eq!(found, ["header:x-key", "header:paypal-request-id", "header:x-key", "json:/id", "json:/id"]);
}

/// D04, S04
#[test]
fn a_preset_brings_its_settings_and_leaves_the_caller_to_those_who_know_him() {
    let secret = [("S", "a secret of more than thirty-two bytes")];
    let file = "ambiguous_paths = 'refuse'\n[jwt]\nkeys = ['env:S']\n[policy]\nscope = ['jwt:sub']\n\
                [[route]]\nmatch = '/acp'\ndialect = 'acp'\n\
                [[route]]\nmatch = '/ucp'\ndialect = 'ucp'\nretention = '72h'\n\
                [[route]]\nmatch = '/github'\ndialect = 'github-webhooks'\n\
                [[route]]\nmatch = '/azure'\ndialect = 'azure'\n";
    let loaded =
        load_all(format!("{UPSTREAM}{file}"), &secret, &[]).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let policies: Vec<_> = loaded.config.routes.iter().map(|route| &route.policy).collect();
    let [acp, ucp, github, azure] = policies[..] else { panic!("four routes") };
    assert_eq!(acp.scope, [Source::Jwt("sub".into()), Source::Route]);
    assert_eq!((&acp.methods[..], &acp.required[..]), (&[Method::POST][..], &[Method::POST][..]));
    assert_eq!(
        (ucp.retention, &ucp.scope[..]),
        (Duration::from_secs(72 * 3600), &[Source::Jwt("sub".into())][..])
    );
    assert_eq!(github.scope, [Source::Route]);
    assert_eq!(azure.request_age_max, Some(Duration::from_secs(300)));
    for name in onlyonce::Dialect::names() {
        let loaded = load_file(&format!("[policy]\ndialect = '{name}'\n"));
        let loaded = loaded.unwrap_or_else(|faults| panic!("{name}: {faults}"));
        assert!(loaded.warnings.is_empty(), "{name}: {:?}", loaded.warnings);
        let again = load_all(&loaded.effective, &[], &[]);
        let again = again.unwrap_or_else(|faults| panic!("{}: {faults}", loaded.effective));
        assert_eq!(again.config.default.policy, loaded.config.default.policy, "{}", loaded.effective);
        let preset = onlyonce::Dialect::named(name).unwrap();
        assert_eq!(loaded.config.default.policy, Policy::of(preset), "{name}: settings and library agree");
    }
}

/// D04
#[test]
fn a_dialect_of_ones_own_is_a_table() {
    use onlyonce::refusal::Code;
    let file = "[dialects.house]\nlike = 'acp'\nversion = '7'\nbody = '{\"fault\":{code},\"group\":{kind},\"help\":{detail}}'\n\
                content_type = 'application/vnd.house+json'\nreplayed_header = 'X-Replayed'\nreplayed_member = 'again'\n\
                echo_header = 'X-Key'\nresult_header = 'X-Result'\nresult_rejected = 'no'\nkind = 'client'\n\
                statuses = { idempotency_key_reused = 412, upstream_outcome_unknown = 500 }\n\
                codes = { idempotency_key_reused = 'DUPLICATE' }\nkinds = { idempotency_store_unavailable = 'server' }\n\
                [[route]]\nmatch = '/a'\ndialect = 'house'\n";
    let loaded = load_file(file).unwrap_or_else(|faults| panic!("{faults}"));
    let policy = &loaded.config.routes[0].policy;
    let house = &policy.dialect;
    assert_eq!((&*house.name, &*house.version), ("house", "7"));
    assert_eq!((house.status(Code::KeyReused), house.code(Code::KeyReused)), (412, "DUPLICATE"));
    assert_eq!((house.status(Code::UpstreamLost), house.status(Code::UpstreamTimedOut)), (500, 500));
    assert_eq!(house.code(Code::InProgress), "idempotency_in_flight", "as in the one it is like");
    assert_eq!((house.kind(Code::StoreUnavailable), house.kind(Code::KeyReused)), ("server", "client"));
    assert_eq!((house.replayed.as_str(), house.replayed_member.as_deref()), ("x-replayed", Some("again")));
    let result = house.result.as_ref().unwrap();
    assert_eq!((result.accepted.as_bytes(), result.rejected.as_bytes()), (&b"accepted"[..], &b"no"[..]));
    assert_eq!(policy.required, [Method::POST], "with the settings it brings");
    let again = load_all(&loaded.effective, &[], &[]).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(again.config.routes[0].policy, *policy, "{}", loaded.effective);
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
                [limits]\nin_flight = 0\n";
    let found =
        told(load_all(file, &[("ONLYONCE_POLICY__EFFECTS", "magic")], &["policy.retention=0s", "oops"]));
    assert_eq!(
        found,
        [
            "--set: \"oops\" has no value; write it like policy.lease=5s (--set)",
            "lease: is an unknown setting; lease belongs to [policy] (line 2)",
            "policy.laese: is an unknown setting; did you mean lease? (line 4)",
            "listen: \"localhost:80\" is a host name; write an address, like 127.0.0.1:80 (line 1)",
            "upstream: is missing; give --upstream http://HOST:PORT, or set it in the file",
            "policy.effects: \"magic\" is not one of local, keyed, queryable, opaque (environment ONLYONCE_POLICY__EFFECTS)",
            "policy.release: \"99\" is not a final HTTP status; use 200 to 599 (line 6)",
            "policy.release: \"x\" is not an HTTP status; write it like 429 (line 6)",
            "policy.retention: \"0s\" is shorter than 1s; keep answers at least that long (--set)",
            "policy.lease: \"5ms\" is too short to be renewed in time; set at least 1s (line 5)",
            "policy.accept: \"always\" stores requests with their credentials, which must be encrypted; set encryption.keys (line 7)",
            "limits.in_flight: \"0\" lets nothing run; raise it, or remove it for no limit (line 13)",
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
        ("admin = \"127.0.0.1:8080\"", "admin: \"127.0.0.1:8080\" is also the address for clients"),
        ("listen = \"0.0.0.0:8081\"", "admin: \"127.0.0.1:8081\" is also the address for clients"),
        ("listen = \":80\"", "write 127.0.0.1:80"),
        ("listen = 80", "is not a string"),
        ("listen = \"127.0.0.1:3000\"", "upstream: \"http://127.0.0.1:3000/\" is the gateway's own address"),
        ("store = \"mongo://ann:hunter2@h\"", "store \"mongo://…\" is of an unknown kind"),
        ("trusted_from = \"10.0.0.0/8\"", "trusted_from: \"10.0.0.0/8\" is not a list"),
        ("trusted_from = [\"10.0.0.1/8\"]", "write 10.0.0.0/8"),
        ("upstream_ca = \"/nowhere.pem\"", "cannot be read"),
        (&format!("upstream_ca = \"{key}\""), "has no \"CERTIFICATE\" in PEM"),
        ("policy = 3", "policy: is not a table; write [policy]"),
        ("route = 3", "route: is not a list of tables; write [[route]]"),
        ("route = [3]", "route[0]: \"3\" is not a list of tables"),
        ("webhooks = 3", "is not a table of tables; write [webhooks.NAME]"),
        ("[webhooks]\nbank = 3", "webhooks.bank: is not a table of tables"),
        ("[[route]]\nlease = \"5s\"", "route[0].match: is missing"),
        ("[policy]\ndialect = \"ucb\"", "did you mean ucp?"),
        (
            "[policy]\ndialect = \"house\"",
            "policy.dialect: \"house\" is not one of ietf, stripe, conflict, acp, ucp,",
        ),
        (
            "[policy]\nkey_from = [\"json:id\"]",
            "policy.key_from: \"json:id\" has no JSON Pointer: pointer \"id\" does not start with a slash; write \"/id\"",
        ),
        ("[policy]\nkey_from = [\"json:/a~\"]", "lone tilde"),
        ("[policy]\nkey_from = [\"Idempotency-Key\"]", "write header:NAME, json:/POINTER or query:NAME"),
        ("[policy]\nkey_from = \"json:/id\"", "is not a list; write it like [\"header:Idempotency-Key\"]"),
        ("[policy]\nkey_from = []", "policy.key_from: \"[]\" has no place for a key"),
        ("[policy]\nkey_from = [\"json:/id\", \"json:/id\"]", "\"json:/id\" is listed twice; remove one"),
        (
            "[policy]\nheader = \"X-Key\"\nkey_from = [\"json:/id\"]",
            "policy.header: \"x-key\" is not among key_from; add header:x-key there, or remove header",
        ),
        (
            "[policy]\nscope = [\"header:X-B\"]\nkey_from = [\"header:X-A\", \"header:X-B\"]",
            "is the header of the key, which does not identify a caller",
        ),
        ("dialects = 3", "is not a table of tables; write [dialects.NAME]"),
        ("[dialects.acp]\nkind = \"x\"", "dialects.acp: \"acp\" is the name of a preset"),
        ("[dialects.a]\nlike = \"acb\"", "dialects.a.like: \"acb\" is not one of"),
        (
            "[dialects.a]\nbody = '{\"a\":{coed}}'",
            "dialects.a.body: \"{coed}\" is no placeholder; use one of type",
        ),
        ("[dialects.a]\nbody = '{\"a\":\"{code}\"}'", "is not JSON once its placeholders are filled"),
        ("[dialects.a]\nstatuses = { idempotency_key_reused = 200 }", "is not an error status"),
        (
            "[dialects.a]\nstatuses = { idempotency_key_reusd = 412 }",
            "\"idempotency_key_reusd\" is not one of our codes; did you mean idempotency_key_reused?",
        ),
        ("[dialects.a]\ncodes = { idempotency_key_reused = 3 }", "is not a string"),
        ("[dialects.a]\nreplayed_header = \"a b\"", "is not a header name"),
        ("[dialects.a]\nshape = \"x\"", "dialects.a.shape: is an unknown setting"),
        (
            "[[route]]\nmatch = \"/a\"\n[[route]]\nmatch = \"* /a\"",
            "route[1].match of \"* /a\": \"* /a\" is also the match of route[0]",
        ),
        ("[[route]]\nmatch = \"/a\"\nupstream = \"h:80\"", "route[0].upstream"),
        ("[[route]]\nmatch = \"/a\"\nprobe = \"h:80\"", "route[0].probe"),
        ("[[route]]\nmatch = \"/a\"\nlisten = \"h:80\"", "listen belongs outside any table"),
        (
            "[policy]\nscope = [\"jwt:sub\"]",
            "policy.scope: \"jwt:sub\" needs keys to verify tokens with; set jwt.keys",
        ),
        (
            "[policy]\nscope = [\"certificate\"]",
            "policy.scope: \"certificate\" needs the CA of clients' certificates",
        ),
        ("[policy]\nscope = [\"route\"]", "does not identify a caller"),
        ("[policy]\nscope = [\"header:Idempotency-Key\"]", "is the header of the key,"),
        ("[policy]\nscope = [\"cookie:a\"]", "is unknown; use header:NAME"),
        ("trusted_from = []\n[policy]\nscope = [\"trusted:x-user\"]", "is never accepted"),
        (
            "[[route]]\nmatch = \"/a\"\nscope = [\"jwt:sub\"]",
            "route[0].scope of \"/a\": \"jwt:sub\" needs keys",
        ),
        (
            "[policy]\nrequest_age_max = \"5m\"",
            "policy.request_age_max: \"5m\" has no effect without policy.request_time_header",
        ),
        (
            "[policy]\nrequest_time_header = \"X-Time\"",
            "policy.request_time_header: \"x-time\" has no effect without policy.request_age_max",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nrequest_age_max = \"5m\"",
            "route[0].request_age_max of \"/a\": \"5m\" has no effect without request_time_header",
        ),
        (
            "[policy]\nrequest_time_header = \"X-Time\"\nrequest_age_max = \"0s\"",
            "policy.request_age_max: \"0s\" is too short for a request to arrive",
        ),
        ("[limits]\nkeys_per_second = 0", "limits.keys_per_second: \"0\" lets nothing run"),
        ("[limits]\nnodes = 0", "limits.nodes: \"0\" is not a number of gateways"),
        ("[limits]\nkeys_alive = -1", "limits.keys_alive: \"-1\" is below 0"),
        ("[limits]\nkeys_alive = \"many\"", "limits.keys_alive: \"many\" is not a whole number"),
        ("[limits]\nkeys_a_second = 3", "limits.keys_a_second: is an unknown setting"),
        ("[encryption]\nkeys = [\"env:MISSING\"]", "encryption.keys: variable MISSING is not set"),
        (
            "[encryption]\nkeys = [\"env:KEY\", \"env:LONG\"]",
            "encryption.keys: \"env:LONG\" is not base64 of 32 bytes",
        ),
        (
            "[encryption]\nkeys = [\"env:KEY\", \"env:SAME\"]",
            "encryption.keys: \"env:SAME\" is the same key as env:KEY",
        ),
        ("[encryption]\nkeys = []", "encryption.keys: has no key"),
        ("[policy]\nkey_chars_min = -1", "is below 0"),
        ("[policy]\nheader = \"a b\"", "is not a header name"),
        ("[policy]\nfingerprint.ignore = [\"a\"]", "does not start with a slash"),
        (
            "[policy]\nfingerprint.secrets = [\"hunter2\"]",
            "policy.fingerprint.secrets: does not say where a secret is",
        ),
        (&format!("[policy]\nfingerprint.secrets = [\"file:{empty}\"]"), "is empty"),
        ("[policy]\nlease = 1979-05-27", "is not a duration"),
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
            "is also the name of token",
        ),
        ("[background]\nsweep_every = \"0s\"", "would run without a pause"),
        ("[background]\nreap_batch = 0", "is not from 1 to 100000"),
        ("[background]\naccepted_at_once = 0", "background.accepted_at_once: \"0\" is not from 1 to 10000"),
        ("pending_max = 0", "pending_max: \"0\" is not from 1 to 1000000"),
        (
            "[[route]]\nmatch = \"/a\"\naccept = \"allowed\"",
            "route[0].accept of \"/a\": \"allowed\" stores requests with their credentials",
        ),
        ("[log]\nfilter = \"onlyonce=loud\"", "is not a log filter"),
        (
            "[background]\nreconcile_first = \"0s\"",
            "background.reconcile_first: \"0s\" would run without a pause",
        ),
        (
            "[background]\nreconcile_max = \"0ms\"",
            "background.reconcile_max: \"0ms\" would run without a pause",
        ),
        ("[background]\nreconcile_tries_max = 0", "background.reconcile_tries_max: \"0\" is not from 1"),
        ("[background]\nprobes_at_once = 0", "background.probes_at_once: \"0\" is not from 1 to 1024"),
        ("audit_retention = \"23h\"", "audit_retention: \"23h\" is shorter than 1d"),
        ("[log]\ndecisions = \"yes\"", "log.decisions: \"yes\" is not true or false"),
        ("[webhooks.bank]\nsecrets = [\"hunter2\"]", "webhooks.bank.secrets: does not say where a secret is"),
        ("[webhooks.bank]\npublic = true", "webhooks.bank.secrets: has no secret, so anybody"),
        ("[webhooks.bank]\nsecrets = []", "webhooks.bank.secrets: has no secret, so anybody"),
        (&bank("preset = \"paypal\""), "webhooks.bank.preset: \"paypal\" is not one of none, stripe"),
        (&bank("scheme = \"md5\""), "webhooks.bank.scheme: \"md5\" is not one of onlyonce, stripe, standard"),
        (&bank("header = \"a b\""), "webhooks.bank.header: \"a b\" is not a header name"),
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
        (&bank("declined_status = 200"), "webhooks.bank.declined_status: \"200\" is not an error status"),
        (&bank("declined_status = 99"), "webhooks.bank.declined_status: \"99\" is not a final HTTP status"),
        (&bank("verdicts = \"PAID\""), "webhooks.bank.verdicts: is not a table"),
        (
            &bank("verdicts = { PAID = \"paid\" }"),
            "webhooks.bank.verdicts: \"PAID = paid\" is not one of happened, declined, did-not-happen, did-not-happen-final, unknown, ignore",
        ),
        (&bank("verdict = \"/x\""), "webhooks.bank.verdict: is an unknown setting; did you mean verdicts?"),
        ("[webhooks.\"a/b\"]\nsecrets = [\"env:LONG\"]", "webhooks.a/b: \"a/b\" cannot be used in a path"),
        (
            "[webhooks.x]\nscheme = \"standard\"\nsecrets = [\"env:WHSEC\"]",
            "webhooks.x.secrets: \"env:WHSEC\" begins with whsec_, but what follows is not base64",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://ann:hunter2@h\"",
            "route[0].probe of \"/a\": contains credentials",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { authorization = \"env:MISSING\" }",
            "route[0].probe_headers of \"/a\": authorization variable MISSING is not set",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { host = \"hunter2\" }",
            "route[0].probe_headers of \"/a\": host is set by the gateway",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = { a = \"hunter2\\n\" }",
            "route[0].probe_headers of \"/a\": a has a value that is not allowed",
        ),
        (
            "[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"\nprobe_headers = \"hunter2\"",
            "route[0].probe_headers of \"/a\": is not a table",
        ),
        ("[destinations.mail]\nurl = \"mail\"", "destinations.mail.url"),
        ("[destinations.mail]\ntimeout = \"1s\"", "destinations.mail.url: is missing"),
        ("[destinations.mail]\nurl = \"http://h\"\nsecrets = [\"env:SHORT\"]", "destinations.mail.secrets"),
        ("[destinations.mail]\nurl = \"http://h\"\nsecrets = [\"env:LONG\"]", "is not base64"),
        ("[destinations.mail]\nurl = \"http://h\"\nattempts_max = 0", "is not from 1 to 10000"),
        ("[destinations.mail]\nurl = \"http://h\"\nat_once = 0", "is not from 1 to 1024"),
        ("[destinations.mail]\nurl = \"http://h\"\ntimeout = \"0s\"", "destinations.mail.timeout"),
        ("[destinations.mail]\nurl = \"http://h\"\ndead = [200]", "is not a status of a failure"),
        (
            "[destinations.mail]\nurl = \"http://h\"\nprovider_id = \"body\"",
            "is neither header:NAME nor json:/pointer",
        ),
        ("[destinations.mail]\nurl = \"http://h\"\nprovider_id = \"json:id\"", "is not a JSON Pointer"),
        ("[destinations.mail]\nurl = \"http://h\"\nretry_max = \"1s\"", "is shorter than retry_first"),
        (
            "[destinations.mail]\nurl = \"http://h\"\nkey_header = \"Content-Type\"",
            "something else in every delivery",
        ),
        (
            "[destinations.mail]\nurl = \"http://h\"\nkey_header = \"content-length\"",
            "something else in every delivery",
        ),
        (
            "[destinations.mail]\nurl = \"http://h\"\nkey_header = \"webhook-signature\"",
            "something else in every delivery",
        ),
    ] {
        let environment = [
            ("LONG", "a secret of more than thirty-two bytes"),
            ("SHORT", "short"),
            ("WHSEC", "whsec_%%%"),
            ("KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
            ("SAME", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
        ];
        let found = told(load_all(format!("{UPSTREAM}{file}"), &environment, &[]));
        assert!(found.len() == 1 && found[0].contains(expected), "{file}: {found:#?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
}

#[test]
fn an_upstream_must_be_one() {
    for (upstream, expected) in [
        ("ftp://h", "is neither http:// nor https://"),
        ("h:80", "does not begin with http:// or https://"),
        ("http://h/?a=b", "has a query"),
        ("http://ann:hunter2@h", "contains credentials"),
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
    assert!(
        found[0].contains("is not valid TOML: ") && found[0].contains("fix line 2, column 9"),
        "{found:?}"
    );
    assert!(told(load_all(b"a = \"\xff\"", &[], &[]))[0].contains("is not UTF-8 text"));
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
        ("[destinations.mail]\nurl = \"http://h\"", "destinations.mail.secrets -"),
        ("[[route]]\nmatch = \"/a\"\nprobe = \"http://h\"", "route[0].probe http://h/"),
        ("[[route]]\nmatch = \"/a\"\nprobe_headers = { a = \"b\" }", "route[0].probe_headers -"),
        ("[[route]]\nmatch = \"/a\"\neffects = \"local\"", "route[0].effects local"),
        ("[[route]]\nmatch = \"/a\"\neffects = \"queryable\"", "route[0].effects queryable"),
        ("[[route]]\nmatch = \"PUT /a\"\nrequired = true", "route[0].required true"),
        ("[[route]]\nmatch = \"/a/**\"\n[[route]]\nmatch = \"POST /a/b\"", "route[1].match POST /a/b"),
    ] {
        assert_eq!(warned(file), [expected], "{file}");
    }
    // Where the service can be in the store's transaction, it is what is asked for.
    let local = "store = \"postgres://h/d\"\n[[route]]\nmatch = \"/a\"\neffects = \"local\"";
    assert!(warned(local).is_empty());
    let long = "[webhooks.bank]\nsecrets = [\"env:S\"]\ntolerance = \"2h\"";
    let loaded = load_all(format!("{UPSTREAM}{long}"), &[("S", "secret")], &[]).unwrap();
    assert_eq!(loaded.warnings[0].path, "webhooks.bank.tolerance");
    let asked = "[[route]]\nmatch = \"/a\"\neffects = \"queryable\"\nprobe = \"http://h\"";
    assert_eq!(warned(asked), Vec::<String>::new());
    let demanded_by_a_preset = "[[route]]\nmatch = \"/a\"\ndialect = \"github-webhooks\"";
    assert_eq!(warned(demanded_by_a_preset), ["route[0].dialect github-webhooks"]);
    assert_eq!(warned("[dialects.a]\nresult_accepted = \"yes\""), ["dialects.a.result_accepted -"]);
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
    let needs_others = |setting: &Setting| {
        matches!(setting.split().0, "tls" | "jwt" | "admin_token" | "webhooks.*" | "destinations.*")
    };
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

/// L02, T06
#[test]
fn limits_and_ages_that_may_be_regretted_are_warned_about() {
    let limits = "[limits]\nkeys_per_second = 5\nlookups_per_second = 5\nkeys_alive = 5\nin_flight = 5\n";
    let about = |file: &str, part: &str| -> Vec<String> {
        let loaded = load_file(file).unwrap_or_else(|faults| panic!("{faults}"));
        let warnings = loaded.warnings.iter().filter(|warning| warning.path.contains(part));
        warnings.map(ToString::to_string).collect()
    };
    let of_limits = |file: &str| about(file, "limits.");
    let told = of_limits(limits);
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].contains("limits.keys_per_second: \"5\" is a limit per scope, but header:authorization"));
    assert!(told.iter().all(|warning| warning.contains("_total too")), "{told:?}");
    assert_eq!(of_limits(&format!("[policy]\nscope = [\"trusted:x-user\"]\n{limits}")), [""; 0]);
    let shared = |limits: &str| {
        of_limits(&format!(
            "store = \"postgres://h/d\"\n[policy]\nscope = [\"trusted:x-user\"]\n[limits]\n{limits}"
        ))
    };
    for limit in ["keys_per_second", "lookups_per_second", "in_flight"]
        .map(|limit| [limit.to_owned(), format!("{limit}_total")])
        .concat()
    {
        let told = shared(&format!("{limit} = 5\n"));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("limits.nodes: is not set") && told[0].contains(&limit), "{told:?}");
        assert_eq!(shared(&format!("{limit} = 5\nnodes = 1\n")), [""; 0]);
    }
    assert_eq!(shared("keys_alive = 5\n"), [""; 0], "the store counts these for all");
    let totals = "keys_per_second_total = 5\nlookups_per_second_total = 5\nkeys_alive_total = 5\nin_flight_total = 5\n";
    assert_eq!(of_limits(&format!("{limits}{totals}")), [""; 0]);
    let ages = |age: &str| {
        let file = format!(
            "[policy]\nretention = \"24h\"\nrequest_time_header = \"X-Time\"\nrequest_age_max = \"{age}\""
        );
        about(&file, "request_age_max")
    };
    assert_eq!(ages("24h"), [""; 0]);
    assert!(ages("25h")[0].contains("policy.request_age_max: \"25h\" is longer than retention \"24h\""));
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
        ("release = [502]\nunknown = [502]", "policy.unknown: \"502\" is also in policy.release"),
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
pub(super) fn file_of(setting: &Setting, value: &str) -> String {
    let (table, name) = setting.split();
    let table = match table {
        "" => return format!("{name} = {value}\n"),
        "route" => "[[route]]\nmatch = \"/x\"".to_owned(),
        "admin_token" => "[[admin_token]]\ntoken = \"env:LONG\"".to_owned(),
        table => format!("[{}]", table.replace('*', "x")),
    };
    if setting.path == "route.match" {
        return format!("[[route]]\nmatch = {value}\n");
    }
    if setting.path == "admin_token.token" {
        return format!("[[admin_token]]\ntoken = {value}\n");
    }
    format!("{table}\n{name} = {value}\n")
}

/// The path that [`file_of`] gives it.
pub(super) fn path_of(setting: &Setting) -> String {
    let path = setting.path.replace("route.", "route[0].").replace("admin_token.", "admin_token[0].");
    path.replace('*', "x")
}

/// Values that a setting takes: all of its words, or its example.
pub(super) fn values_of(setting: &Setting) -> Vec<String> {
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
        let path = path_of(setting);
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
    for setting in SETTINGS.iter().filter(|setting| !is_file(setting)) {
        let upstream = if setting.path == "upstream" { "" } else { UPSTREAM };
        for word in values_of(setting) {
            let file = format!("{upstream}{}", file_of(setting, &word));
            let found = load_all(&file, &[("LONG", "0123456789abcdef")], &[]);
            let about: Vec<_> = found.err().into_iter().flat_map(|faults| faults.0).collect();
            let path = setting.split().1;
            // Each of these two is a fault without the other.
            if path.starts_with("request_")
                && about.iter().all(|fault| fault.remedy.contains("has no effect without"))
            {
                continue;
            }
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
    for setting in SETTINGS.iter() {
        let Some(default) = setting.default else { continue };
        let (own, name) = setting.split();
        if matches!(own, "jwt" | "admin_token" | "webhooks.*" | "destinations.*" | "dialects.*") {
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

/// L06
#[test]
fn the_bounds_of_the_listener_are_read_and_checked() {
    assert_eq!(load_file("").unwrap().config.listener, Listener::default());
    let set = "[listener]\nhead_timeout = \"1s\"\nbody_timeout = \"2s\"\nidle_timeout = \"3s\"\nconnections_max = 4\nbuffered_bytes_max = \"5MiB\"\n";
    let expected = Listener {
        head_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_secs(3),
        connections_max: 4,
        buffered_bytes_max: 5 << 20,
    };
    assert_eq!(load_file(set).unwrap().config.listener, expected);
    let wrong = told(load_file(
        "[listener]\nhead_timeout = \"0s\"\nconnections_max = 0\nbuffered_bytes_max = \"1MiB\"\n",
    ));
    for name in ["listener.head_timeout", "listener.connections_max", "listener.buffered_bytes_max"] {
        assert!(wrong.iter().any(|fault| fault.contains(name)), "{name}: {wrong:?}");
    }
    // A large body alone conflicts with no default.
    let large = load_file("[policy]\nrequest_bytes_max = \"200MiB\"\n").unwrap().config;
    assert_eq!(large.listener.buffered_bytes_max, 800 << 20);
}

/// G01
#[test]
fn a_required_route_that_another_spelling_may_dodge_is_warned_of() {
    let route = "[[route]]\nmatch = \"POST /payments\"\nrequired = true\n";
    assert_eq!(warned(route), ["route[0].required -"]);
    for decided in
        ["ambiguous_paths = \"refuse\"\n", "ambiguous_paths = \"allow\"\n", "[policy]\nrequired = true\n"]
    {
        assert!(warned(&format!("{decided}{route}")).is_empty(), "{decided}");
    }
    assert!(warned("[[route]]\nmatch = \"POST /payments\"\n").is_empty());
    let config = load_file("path_case = \"fold\"\nambiguous_paths = \"refuse\"\n").unwrap().config;
    assert_eq!((config.path_case, config.ambiguous_paths), (PathCase::Fold, AmbiguousPaths::Refuse));
}
