//! Tokens: asked for, kept in the tab alone, sent as a header; roles.

use onlyonce_core::record::StateName;

use super::{Page, world};
use crate::admin_world::{OPERATOR, READER};

/// L04: with tokens in the settings the page asks for one; it is in no URL, cookie or lasting storage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_asks_for_a_token_and_a_reader_sees_no_buttons() {
    let world = world(true).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    world.record("acme", "done-1", StateName::Completed).await;
    world.dead_message("mail-1").await;
    let mut page = Page::at(&world);
    page.browser.open(&page.origin.clone());
    page.heading("Sign in");
    page.is_clean();
    page.picture("sign-in");
    assert_eq!(page.focused().name, "Token");
    page.browser.fill("textbox", "Token", "a-token-that-nobody-has");
    page.browser.press("button", "Sign in");
    page.told("alert", "this token is not in the settings");
    page.browser.problems();

    page.browser.fill("textbox", "Token", READER.trim_start_matches("Bearer "));
    page.browser.press("button", "Sign in");
    page.heading("Overview");
    page.browser.find("link", "lost-1");
    page.browser.see("you are rob, role read");
    page.browser.see("Live");
    page.record(&made);
    page.browser.see("It is unknown whether attempt 1 did the work");
    for button in ["Happened", "Did not happen", "Ask again", "Forget", "Show answer"] {
        assert!(!page.has("button", button), "{button}");
    }
    page.go("/dead", "Dead letters");
    page.browser.see("it answered 410");
    assert!(!page.has("button", "Redrive") && !page.has("button", "Discard"));
    assert_eq!(page.browser.js("document.cookie + JSON.stringify(localStorage)"), "{}");
    assert_eq!(page.browser.js("Object.values(sessionStorage).length"), 1);
    let token = READER.trim_start_matches("Bearer ");
    assert!(!page.browser.requested().iter().any(|url| url.contains(token)));

    page.browser.press("button", "Sign out");
    page.heading("Sign in");
    assert_eq!(page.browser.js("Object.values(sessionStorage).length"), 0);
    page.browser.fill("textbox", "Token", OPERATOR.trim_start_matches("Bearer "));
    page.browser.key("Enter");
    page.browser.see("you are ann, role operate");
    page.record(&made);
    assert!(!page.browser.named("button", "Happened").is_disabled);
    page.is_clean();
    // A token that is no longer good: the page asks again.
    page.browser.js("sessionStorage.setItem('onlyonce-token', 'an-old-one')");
    page.browser.open(&format!("{}/?again", page.origin));
    page.heading("Sign in");
    page.told("alert", "this token is not in the settings");
    world.stop().await;
}

/// L04: the files are for everybody where there are tokens, and under the loopback rule where there are none; each with
/// the page's policy.
#[tokio::test]
async fn the_files_come_with_the_policy_of_the_page() {
    let tokens = world(true).await;
    let local = world(false).await;
    for (path, media) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/style.css", "text/css; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
    ] {
        for (world, host) in [(&tokens, "admin.example.com"), (&local, "localhost")] {
            let answer = world.ask("GET", path).header("host", host).send().await;
            assert_eq!(answer.status, 200, "{path}");
            for (name, value) in [
                ("content-type", media),
                (
                    "content-security-policy",
                    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                ),
                ("x-frame-options", "DENY"),
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-opener-policy", "same-origin"),
                ("cross-origin-resource-policy", "same-origin"),
                ("cache-control", "no-store"),
            ] {
                assert_eq!(answer.header(name), Some(value), "{path}: {name}");
            }
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
        let rebound = local.ask("GET", path).header("host", "127.0.0.1.evil.com").send().await;
        assert_eq!(rebound.told(), (421, "admin_host_refused".to_owned()), "{path}");
        assert_eq!(local.ask("POST", path).send().await.status, 405, "{path}");
        assert_eq!(local.ask("OPTIONS", path).send().await.status, 405, "{path}");
    }
    tokens.stop().await;
    local.stop().await;
}
