//! What "Needs you" shows beside unknown outcomes and dead letters: a probe that fails, sources that disagree, a store that is down.

use std::time::Duration;

use onlyonce_core::record::{StateName, Verdict};

use super::{Page, world};

/// What the navigation says beside its link.
const ONE_UNKNOWN: &str = r"/Unknown outcomes\s*1/.test(document.querySelector('nav').innerText)";

/// O10: a probe that fails is named by its route, with its answer, and gone from the page once it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_probe_needs_somebody_until_it_answers() {
    let world = world(false).await;
    for number in 0..5 {
        world.record("acme", &format!("order-{number}"), StateName::Unknown).await;
    }
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.find("link", "order-");
    assert!(!text(&mut page).contains("The probe of"));
    world.broken_probe();
    world.ask_probes().await;
    // The page is told by the stream.
    page.browser.see("The probe of POST /payments/* has been failing since ");
    page.browser.see("the bank answered 503");
    page.browser.see("stay open until it answers, or a person decides");
    page.picture("needs-probe");
    world.probe(Verdict::Happened(None));
    world.ask_probes().await;
    page.browser.see("Nothing is stuck.");
    page.is_clean();
    world.stop().await;
}

/// O10, U07: a provider that contradicts what is on record is shown with a link to the record, whose time line has both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contradiction_needs_somebody() {
    let world = world(false).await;
    let made = world.record("acme", "order-4711", StateName::Completed).await;
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.see("Nothing is stuck.");
    world.contradict(&made).await;
    page.browser.see("1 contradiction in the last day");
    page.browser.see("Two sources disagree");
    page.browser.see("order-4711 from bank");
    page.picture("needs-contradiction");
    page.browser.press("link", "order-4711");
    page.heading("order-4711");
    page.browser.see("the bank's event evt_1");
    // A day later it is history.
    world.pass(Duration::from_secs(24 * 3600 + 60)).await;
    page.go("/", "Overview");
    page.browser.see("Nothing is stuck.");
    page.is_clean();
    world.stop().await;
}

/// O10: the store fails while the page is open. The page says so and keeps what it has, and recovers by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_down_is_told_and_the_page_recovers() {
    let world = world(false).await;
    world.record("acme", "order-4711", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.find("link", "order-4711");
    page.browser.wait_js(ONE_UNKNOWN);
    page.is_clean();

    world.switch_off();
    page.browser.see("The store has failed");
    page.browser.see("Requests with a key are refused until it answers.");
    page.browser.see("Live");
    assert!(!text(&mut page).contains("Nothing is stuck."));
    page.browser.wait_js(ONE_UNKNOWN);
    page.picture("store-down");
    // A page that cannot be loaded says why, in the server's words, and one that was shown already is kept.
    page.browser.press("link", "Keys");
    page.told("alert", "the store");
    page.browser.see("This could not be loaded. It is tried again.");
    page.browser.press("link", "Overview");
    page.heading("Overview");
    page.browser.see("The store has failed");
    page.told("alert", "the store");

    world.switch_on();
    page.browser.find("link", "order-4711");
    page.browser.wait_js("document.querySelector('[role=alert]').textContent === ''");
    assert!(!text(&mut page).contains("The store has failed"));
    // Only the refusals of the store that was down.
    for problem in page.browser.problems() {
        assert!(problem.contains("503"), "{problem}");
    }
    world.stop().await;
}

fn text(page: &mut Page) -> String {
    page.browser.js("document.body.innerText").as_str().unwrap().to_owned()
}
