//! `onlyonce conform`, pointed at a service that does it right, at the same with one fault at a time, at our own gateway, and at
//! services that know nothing of keys.

mod reference;

use std::process::Output;
use std::thread;

use serde_json::Value;

use self::reference::{Fault, Reference};
use crate::program::{Folder, onlyonce, run, text};
use crate::serve::Serving;

/// The faults, each with the check that must find it, and the group it is in.
const FAULTS: [(Fault, &str, &str); 43] = [
    (Fault::NoKeys, "replay", "replay-once"),
    (Fault::KeyIgnored, "key", "key-separate"),
    (Fault::CaseFolded, "key", "key-case"),
    (Fault::ShortKeysOnly, "key", "key-length"),
    (Fault::EmptyKeyTaken, "key", "key-empty"),
    (Fault::TwoKeysTaken, "key", "key-two"),
    (Fault::LongKeyTaken, "key", "key-too-long"),
    (Fault::UnclosedTaken, "key", "key-unclosed"),
    (Fault::MalformedIs500, "key", "key-no-5xx"),
    (Fault::MalformedIs422, "key", "key-malformed-says-why"),
    (Fault::MissingIs403, "key", "key-missing"),
    (Fault::ReplayIs200, "replay", "replay-status"),
    (Fault::ReplayRewritten, "replay", "replay-body"),
    (Fault::ReplayedOnce, "replay", "replay-third"),
    (Fault::ReplayIsText, "replay", "replay-content-type"),
    (Fault::ReplayWithoutLocation, "replay", "replay-location"),
    (Fault::Unmarked, "replay", "replay-marked"),
    (Fault::ReplaySetsCookie, "replay", "replay-no-cookie"),
    (Fault::BodyIgnored, "body", "reuse-refused"),
    (Fault::OtherBodyRuns, "body", "reuse-not-run"),
    (Fault::OtherBodyForgets, "body", "reuse-untouched"),
    (Fault::RefusalQuotesFirst, "body", "reuse-no-leak"),
    (Fault::ReusedIs409, "body", "reuse-status"),
    (Fault::ReusedIsHtml, "body", "reuse-form"),
    (Fault::BytesCompared, "body", "json-meaning"),
    (Fault::QueryIgnored, "body", "reuse-query"),
    (Fault::CallersShared, "scope", "scope-no-leak"),
    (Fault::OtherCallerRefused, "scope", "scope-runs"),
    (Fault::LastCallerWins, "scope", "scope-untouched"),
    (Fault::NobodyServed, "scope", "scope-nobody"),
    (Fault::NoReservation, "at-once", "at-once-one-run"),
    (Fault::InProgressIs200, "at-once", "at-once-answers"),
    (Fault::InProgressIs500, "at-once", "at-once-no-5xx"),
    (Fault::StormForgets, "at-once", "at-once-later"),
    (Fault::InProgressIs423, "at-once", "at-once-status"),
    (Fault::NoRetryAfter, "at-once", "at-once-retry-after"),
    (Fault::HangUpForgets, "middle", "hang-up-once"),
    (Fault::HangUpLocks, "middle", "hang-up-answered"),
    (Fault::HalfRuns, "middle", "half-not-run"),
    (Fault::HalfLocks, "middle", "half-retried"),
    (Fault::KeptASecond, "time", "kept"),
    (Fault::ExpiryUntold, "time", "expiry-told"),
    (Fault::NeverExpires, "time", "expired"),
];

const CALLERS: [&str; 4] =
    ["--header", "Authorization: Bearer ann", "--other-caller", "Authorization: Bearer bob"];

fn conform(url: &str, arguments: &[&str]) -> Output {
    onlyonce().args(["conform", url]).args(arguments).output().expect("the program can be started")
}

/// The report on a service that counts its runs.
fn report(service: &Reference, arguments: &[&str]) -> Value {
    let [url, count] = ["pay", "count"].map(|path| format!("http://{}/{path}", service.address));
    let counted = ["--json", "--allow-writes", "200", "--retention", "1", "--count", &count];
    let output = conform(&url, &[&counted[..], &CALLERS, arguments].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

/// The verdict on one check.
fn verdict(report: &Value, id: &str) -> String {
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("{id} in {report}"));
    check["verdict"].as_str().expect("a word").to_owned()
}

fn broken(report: &Value) -> Vec<&Value> {
    let checks = report["checks"].as_array().expect("a list");
    checks.iter().filter(|check| check["verdict"] == "broken").collect()
}

/// The names of the checks with this verdict.
fn checks<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().expect("a list").iter();
    checks.filter(|check| check["verdict"] == verdict).filter_map(|check| check["id"].as_str()).collect()
}

#[test]
fn a_service_that_does_it_right_breaks_nothing() {
    let report = report(&Reference::start(Fault::None), &[]);
    assert_eq!(broken(&report), Vec::<&Value>::new(), "{report:#}");
    // Only what nobody was told about cannot be told: the document.
    assert_eq!(report["cannot_tell"], 1, "{report:#}");
}

#[test]
fn every_planted_fault_is_found_by_the_check_named_for_it() {
    let missed: Vec<_> = thread::scope(|scope| {
        let played = FAULTS.map(|(fault, group, id)| {
            scope.spawn(move || {
                let report = report(&Reference::start(fault), &["--only", group]);
                (verdict(&report, id) != "broken").then(|| format!("{fault:?}: {id}: {report:#}"))
            })
        });
        played.into_iter().filter_map(|played| played.join().expect("a test does not panic")).collect()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// What a profile cannot tell, at any level; every other check must hold. Nobody was told of a document or of a short retention.
fn untold(profile: &str) -> Vec<&'static str> {
    let of_profile: &[_] = match profile {
        // A quote is an ordinary character of a key there.
        "stripe" | "acp" | "ucp" => &["key-unclosed"],
        // The key is a member of the body.
        "adcp" => {
            &["key-empty", "key-two", "key-too-long", "key-unclosed", "key-no-5xx", "key-malformed-says-why"]
        }
        _ => &[],
    };
    [of_profile, &["expired", "openapi"]].concat()
}

/// A service that knows nothing of keys, behind our gateway: every check of every level holds, in every profile that clients of a
/// payments API meet.
///
/// D01, D02, D03, D04
#[test]
fn behind_our_gateway_every_check_of_every_profile_holds() {
    thread::scope(|scope| {
        for profile in ["ietf", "stripe", "conflict", "acp", "ucp", "adcp"] {
            scope.spawn(move || {
                let service = Reference::start(Fault::NoKeys);
                let (upstream, dialect) =
                    (format!("http://{}", service.address), format!("policy.dialect={profile}"));
                let arguments = ["--store", "memory:", "--upstream", &upstream, "--set", &dialect];
                let gateway = Serving::start(&[&arguments[..], &["--set", "policy.retention=1h"]].concat());
                let count = format!("{upstream}/count");
                let url = format!("http://{}/pay", gateway.address());
                let counted = ["--json", "--allow-writes", "200", "--profile", profile, "--count", &count];
                let output = conform(&url, &[&counted[..], &CALLERS].concat());
                let report: Value = serde_json::from_slice(&output.stdout)
                    .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
                assert_eq!(broken(&report), Vec::<&Value>::new(), "{profile}: {report:#}");
                // Where all of those at once were answered, nobody was refused.
                let by_chance = ["at-once-status", "at-once-retry-after"];
                let mut silent: Vec<_> = checks(&report, "cannot tell");
                silent.retain(|id| !by_chance.contains(id));
                assert_eq!(silent, untold(profile), "{profile}: {report:#}");
                assert_eq!(output.status.code(), Some(0), "{profile}");
            });
        }
    });
}

/// The end of a key's retention, which the others do not wait for.
#[test]
fn behind_our_gateway_a_key_ends_with_its_retention() {
    let service = Reference::start(Fault::NoKeys);
    let upstream = format!("http://{}", service.address);
    let arguments = ["--store", "memory:", "--upstream", &upstream, "--set", "policy.retention=4s"];
    let gateway = Serving::start(&arguments);
    let (url, count) = (format!("http://{}/pay", gateway.address()), format!("{upstream}/count"));
    let counted = ["--json", "--allow-writes", "20", "--only", "time", "--retention", "4", "--count", &count];
    let output = conform(&url, &[&counted[..], &CALLERS].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(checks(&report, "held"), ["kept", "expiry-told", "expired"], "{report:#}");
}

/// Every rule that makes a retry safe is broken where nobody knows of keys.
#[test]
fn a_plain_service_breaks_every_must_about_retries() {
    let report = report(&Reference::start(Fault::NoKeys), &[]);
    for id in [
        "replay-once",
        "replay-body",
        "replay-third",
        "reuse-refused",
        "reuse-not-run",
        "reuse-untouched",
        "scope-untouched",
        "at-once-one-run",
        "at-once-answers",
        "at-once-later",
        "hang-up-once",
    ] {
        assert_eq!(verdict(&report, id), "broken", "{id}: {report:#}");
    }
}

/// By the answers alone, where nobody counts.
#[test]
fn without_a_count_the_answers_tell() {
    let arguments = [&["--json", "--allow-writes", "50", "--only", "replay,at-once"], &CALLERS[..]].concat();
    for (fault, expected) in [(Fault::None, "held"), (Fault::NoKeys, "broken")] {
        let url = format!("http://{}/pay", Reference::start(fault).address);
        let report: Value = serde_json::from_slice(&conform(&url, &arguments).stdout).expect("a report");
        assert_eq!(verdict(&report, "replay-once"), expected, "{fault:?}: {report:#}");
        assert_eq!(verdict(&report, "at-once-one-run"), expected, "{fault:?}: {report:#}");
    }
}

#[test]
fn nothing_is_sent_without_leave_and_no_more_than_was_allowed() {
    let service = Reference::start(Fault::None);
    let [url, count] = ["pay", "count"].map(|path| format!("http://{}/{path}", service.address));
    let refused = conform(&url, &CALLERS);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--allow-writes"), "{}", text(&refused.stderr));
    let planned = conform(&url, &["--dry-run"]);
    assert_eq!(planned.status.code(), Some(0));
    assert!(text(&planned.stdout).contains("at-once-one-run"), "{}", text(&planned.stdout));
    let ran = || {
        let arguments = ["--json", "--allow-writes", "4", "--count", &count];
        let output = conform(&url, &[&arguments[..], &CALLERS].concat());
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert!(text(&output.stderr).contains("--allow-writes 4 is used up"), "{}", text(&output.stderr));
        (output.status.code(), report["writes"].as_u64(), verdict(&report, "replay-once"))
    };
    // A test that was not made is no success.
    assert_eq!(ran(), (Some(2), Some(4), "cannot tell".to_owned()));
}

#[test]
fn what_is_wrong_with_the_arguments_or_the_api_is_said() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a port");
    let service = Reference::start(Fault::None);
    let (gone, pay) = (format!("http://{gone}/pay"), format!("http://{}/pay", service.address));
    let cases: [(&[&str], &str); 8] = [
        (&[&gone, "--allow-writes", "99"], "does not answer"),
        (&["ftp://x/y", "--allow-writes", "99"], "is not a URL"),
        (&[&pay, "--allow-writes", "99", "--profile", "ietff"], "is unknown"),
        (&[&pay, "--allow-writes", "99", "--only", "keys"], "is not a group"),
        (&[&pay, "--allow-writes", "1", "--header", "Authorization: Bearer ann"], "which is the least"),
        // Without credentials.
        (&[&pay, "--allow-writes", "99"], "the request itself is answered with 401"),
        (
            &[&pay, "--allow-writes", "99", "--header", "Authorization: Bearer ann", "--count", &gone],
            "--count",
        ),
        (&[&pay, "--allow-writes", "99", "--body", "{}", "--other-body", "{}"], "is the same as --body"),
    ];
    for (arguments, says) in cases {
        let output = run(&[&["conform"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_count_that_goes_backwards_is_not_believed() {
    let service = Reference::start(Fault::None);
    let url = format!("http://{}/pay", service.address);
    let folder = Folder::new();
    std::fs::write(folder.path().join("n"), "1000000").expect("writable");
    // Each look shows less: twice the same, then one below.
    let command = "n=$(cat n); echo $((n / 10)); echo $((n - 5)) > n";
    let arguments =
        ["conform", &url, "--json", "--allow-writes", "20", "--only", "replay", "--count-command", command];
    let output = folder.run(&[&arguments[..], &CALLERS].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(verdict(&report, "replay-once"), "cannot tell", "{report:#}");
    assert_eq!(broken(&report).len(), 0, "{report:#}");
}

#[test]
fn reports_are_text_junit_markdown_and_har_with_secrets_masked() {
    let service = Reference::start(Fault::ReplayIs200);
    let url = format!("http://{}/pay", service.address);
    let folder = Folder::new();
    let report = |form: &str| {
        let arguments = [
            "conform",
            &url,
            "--allow-writes",
            "20",
            "--only",
            "replay",
            "--report",
            form,
            "--har",
            "all.har",
        ];
        let output = folder.run(&[&arguments[..], &CALLERS].concat());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(report("text").contains("BROKEN       must    replay-status"), "{}", report("text"));
    let junit = report("junit");
    assert!(junit.contains("<failure type=\"must\" message=\"201, then 200\"/>"), "{junit}");
    assert!(report("markdown").contains("| replay | `replay-status`:"));
    let har = text(&folder.contents()["all.har"]);
    let parsed: Value = serde_json::from_str(&har).expect("JSON");
    assert_eq!(parsed["log"]["entries"].as_array().map(Vec::len), Some(5));
    assert!(har.contains("(masked)") && !har.contains("Bearer ann"), "{har}");
}
