//! Settling from the page: the dialog, its words, its keyboard, what is told, and what the store has afterwards.

use std::time::Duration;

use onlyonce_core::record::StateName;
use serde_json::json;

use super::{Page, world};

/// O10, U06, U08: a person settles an unknown outcome, with a reason, and retries get the answer that was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_is_given_with_a_reason_and_is_the_answer_of_retries() {
    let world = world(false).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.record(&made);
    page.browser.press("button", "Happened");
    let dialog = page.browser.named("dialog", "Happened");
    assert!(dialog.description.contains("Retries get this answer. Nothing runs again."), "{dialog:?}");
    let reason = page.focused();
    assert_eq!((&*reason.role, &*reason.name), ("textbox", "Reason"), "the focus goes into the dialog");
    assert!(page.browser.named("button", "Confirm").is_disabled, "there is no reason yet");
    page.browser.fill("textbox", "Reason", "   ");
    assert!(page.browser.named("button", "Confirm").is_disabled, "blanks are none");
    page.browser.fill("textbox", "Reason", "the bank says so");
    page.browser.fill("textbox", "Status", "201");
    page.browser.fill("textbox", "Content type", "text/plain");
    page.browser.fill("textbox", "Answer", "<script>alert(1)</script>");
    assert!(!page.browser.named("button", "Confirm").is_disabled);
    page.picture("dialog-happened");
    page.browser.press("button", "Confirm");
    page.told("status", "unknown → completed");
    page.has_no("dialog", "Happened");
    page.browser.see("The work is done. Retries get the stored answer, 201.");
    page.has_no("button", "Did not happen");
    // The answer is shown as text, and that somebody looked is in the log.
    page.browser.press("button", "Show answer");
    page.browser.see("<script>alert(1)</script>");
    let seen = world.seen(&made).await.unwrap();
    let facts = onlyonce_core::machine::facts(&seen.record);
    let response = facts.response.unwrap();
    assert_eq!((response.status, &response.body[..]), (201, &b"<script>alert(1)</script>"[..]));
    let log = world.audit().await;
    let told: Vec<_> =
        log.iter().map(|entry| (&*entry.action, entry.reason.as_deref().unwrap_or_default())).collect();
    assert_eq!(told, [("verdict", "the bank says so"), ("read_response", "")]);
    page.browser.press("link", "Audit log");
    page.heading("Audit log");
    page.browser.see("the bank says so");
    page.browser.see("unknown → completed");
    page.is_clean();
    world.stop().await;
}

/// O10: the focus stays in the dialog, Escape and Cancel change nothing, and the focus returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialog_keeps_the_focus_and_gives_it_back() {
    let world = world(false).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.record(&made);
    page.browser.js("document.activeElement.blur()");
    // By keyboard alone: to the button, into the dialog, round it, and out.
    for _ in 0..40 {
        page.browser.key("Tab");
        if page.focused().name == "Happened" {
            break;
        }
    }
    assert_eq!(page.focused().name, "Happened");
    page.browser.key("Enter");
    page.browser.named("dialog", "Happened");
    let is_inside = "document.querySelector('dialog').contains(document.activeElement)";
    let mut names = Vec::new();
    for step in 0..16 {
        if step < 8 {
            page.browser.key("Tab");
        } else {
            page.browser.shift_key("Tab");
        }
        assert_eq!(page.browser.js(is_inside), true);
        names.push(page.focused().name);
    }
    for name in ["Reason", "Status", "Content type", "Answer", "I do not have the answer", "Cancel"] {
        assert!(names.iter().any(|reached| reached == name), "{name}: {names:?}");
    }
    page.browser.key("Escape");
    page.has_no("dialog", "Happened");
    assert_eq!(page.focused().name, "Happened", "back to the button");
    page.browser.key("Enter");
    page.browser.press("button", "Cancel");
    page.has_no("dialog", "Happened");
    assert_eq!(page.focused().name, "Happened");
    assert!(world.audit().await.is_empty(), "nothing was changed");
    // Without an answer: the fields are off, and the sentence says what follows.
    page.browser.key("Enter");
    page.browser.press("checkbox", "I do not have the answer");
    page.browser.see("without an answer. Nothing runs again.");
    assert!(page.browser.named("textbox", "Status").is_disabled);
    page.browser.fill("textbox", "Reason", "seen in the ledger");
    page.browser.key("Enter");
    page.told("status", "unknown → completed");
    page.browser.see("its answer was not stored");
    page.is_clean();
    world.stop().await;
}

/// U06: what is not believed yet is there, disabled, with the time; force takes a box of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_verdict_says_from_when_and_takes_force() {
    let world = world(false).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    let running = world.record("acme", "running-1", StateName::Running).await;
    let asked = world.record("acme", "asked-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.record(&made);
    let early = page.browser.named("button", "Did not happen");
    assert!(
        early.is_disabled && early.description.starts_with("from ") && early.description.ends_with(" UTC"),
        "{early:?}"
    );
    let ask = page.browser.named("button", "Ask again");
    assert!(ask.is_disabled && ask.description == "its route has no probe", "{ask:?}");
    let forget = page.browser.named("button", "Forget");
    assert!(forget.is_disabled && forget.description == "give a verdict instead", "{forget:?}");
    page.browser.press("DisclosureTriangle", "Settle early");
    page.browser.press("button", "Did not happen (force)");
    page.browser.named("dialog", "Did not happen");
    page.browser.see("The next retry runs the work again.");
    page.browser.fill("textbox", "Reason", "the bank was never called");
    assert!(page.browser.named("button", "Confirm").is_disabled, "not without the box");
    page.picture("dialog-early");
    page.browser.press("checkbox", "It cannot still happen (force)");
    page.browser.press("button", "Confirm");
    page.told("status", "unknown → retryable");
    assert!(world.audit().await.last().unwrap().forced);
    // A running one says until when it is presumed alive.
    page.record(&running);
    let happened = page.browser.named("button", "Happened");
    assert!(happened.is_disabled && happened.description.starts_with("it runs; not before "), "{happened:?}");
    // Later it is believed without force; and with a probe there is something to ask.
    world.pass(Duration::from_secs(3_600)).await;
    world.broken_probe();
    page.record(&asked);
    assert!(!page.browser.named("button", "Did not happen").is_disabled);
    page.browser.press("button", "Ask again");
    page.browser.named("dialog", "Ask again");
    page.browser.fill("textbox", "Reason", "the bank is back");
    page.browser.press("button", "Confirm");
    page.told("status", "noted");
    page.is_clean();
    world.stop().await;
}

/// O10: of two operators the second is told, in the server's words, and sees the record as it is now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_operators_is_refused_and_sees_what_the_first_did() {
    let world = world(false).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.record(&made);
    page.browser.press("button", "Happened");
    page.browser.fill("textbox", "Reason", "mine");
    let first = json!({ "verdict": "did-not-happen", "final": true, "reason": "the other's" });
    assert_eq!(world.verdict(&made, "", &first).await.status, 200);
    page.browser.press("button", "Confirm");
    page.told("alert", "no longer has the revision");
    page.browser.see("The next retry runs it.");
    let entries = world.audit().await;
    assert_eq!((&*entries[0].result, &*entries[1].result), ("applied", "refused"));
    // A mistake in the form keeps the dialog, and what was typed.
    page.browser.press("button", "Happened");
    page.browser.fill("textbox", "Reason", "it did after all");
    page.browser.fill("textbox", "Status", "two hundred");
    page.browser.press("button", "Confirm");
    page.told("alert", "body.response.status");
    page.browser.fill("textbox", "Status", "200");
    page.browser.press("button", "Confirm");
    page.told("status", "retryable → completed");
    // The browser logs both refusals itself, and nothing else went wrong.
    let problems = page.browser.problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.contains("Failed to load resource")), "{problems:?}");
    world.stop().await;
}

/// O10: dead letters are redriven and discarded, each with a reason; a settled record is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_redriven_and_discarded_and_records_forgotten() {
    let world = world(false).await;
    world.dead_message("mail-1").await;
    world.dead_message("mail-2").await;
    let made = world.record("acme", "done-1", StateName::Completed).await;
    let mut page = Page::at(&world);
    page.go("/dead", "Dead letters");
    page.browser.press("button", "Redrive");
    page.browser.named("dialog", "Redrive message 1");
    page.browser.fill("textbox", "Reason", "the server is back");
    page.browser.press("button", "Confirm");
    page.told("status", "Message 1 was redriven.");
    page.browser.press("button", "Discard");
    page.browser.named("dialog", "Discard message 2");
    page.browser.fill("textbox", "Reason", "nobody wants it");
    page.browser.press("button", "Confirm");
    page.told("status", "Message 2 was discarded.");
    page.browser.see("No message is a dead letter.");
    page.record(&made);
    page.browser.press("button", "Forget");
    page.browser.fill("textbox", "Reason", "a test order");
    page.browser.press("button", "Confirm");
    page.told("status", "forgotten");
    page.browser.see("All keys");
    let told: Vec<_> = world.audit().await.iter().map(|entry| entry.action.to_string()).collect();
    assert_eq!(told, ["redrive", "discard", "forget"]);
    world.stop().await;
}
