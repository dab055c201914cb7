//! What happens elsewhere is seen here: the stream, its end and its return, pausing, a hidden tab.

use onlyonce_core::record::StateName;
use onlyonce_testkit::wire::Wire;
use serde_json::json;

use super::{Page, world};

const EVENTS: &str = "/v1/events";
/// Whether the tab is hidden, as the browser would say it.
const HIDE: &str = "Object.defineProperty(document, 'hidden', { value: true, configurable: true }); \
                    document.dispatchEvent(new Event('visibilitychange'))";
const SHOW: &str = "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))";

/// O10: changes are seen without a reload, on every page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_seen_within_five_seconds() {
    let world = world(false).await;
    let made = world.record("acme", "lost-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.find("link", "lost-1");
    page.browser.see("Live");
    // Another operator settles it.
    let verdict = json!({ "verdict": "happened", "reason": "r" });
    assert_eq!(world.verdict(&made, "", &verdict).await.status, 200);
    page.browser.see("Nothing is stuck.");
    page.browser.press("link", "Unknown outcomes");
    page.browser.see("Nothing is unknown.");
    // A record that another node has made is found by the next figures.
    world.record("acme", "lost-2", StateName::Unknown).await;
    page.browser.find("link", "lost-2");
    assert_eq!(page.browser.under_way(EVENTS), (1, 1), "one stream a tab");
    page.is_clean();
    world.stop().await;
}

/// O10: a hidden tab and a paused one have no stream; a lost connection is told, and comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_is_closed_while_nobody_looks_and_a_loss_is_told() {
    let world = world(false).await;
    let wire = Wire::to(world.address().port()).unwrap();
    let mut page = Page::of(format!("http://{}", wire.address()));
    page.go("/", "Overview");
    page.browser.see("Live");
    assert_eq!(page.browser.under_way(EVENTS), (1, 1));
    page.browser.js(HIDE);
    until(&mut page, (1, 0));
    world.record("acme", "while-hidden", StateName::Unknown).await;
    page.browser.js(SHOW);
    page.browser.find("link", "while-hidden");
    until(&mut page, (2, 1));

    page.browser.press("button", "Pause");
    page.browser.see("Paused");
    until(&mut page, (2, 0));
    page.browser.press("button", "Pause");
    page.browser.see("Live");
    until(&mut page, (3, 1));

    page.is_clean();
    // The network fails for a while, as it does in trains.
    wire.vanish();
    page.browser.see("No connection since ");
    let text = page.browser.js("document.querySelector('header').innerText").to_string();
    let (_, since) = text.split_once("No connection since ").unwrap();
    assert!(since.as_bytes()[2] == b':' && since[5..].starts_with(" UTC"), "{text}");
    world.record("acme", "while-lost", StateName::Unknown).await;
    wire.mend();
    page.browser.see("Live");
    page.browser.press("link", "Unknown outcomes");
    page.browser.find("link", "while-lost");
    world.stop().await;
}

/// Waits until so many streams were opened, and so many are open.
fn until(page: &mut Page, wanted: (usize, usize)) {
    let began = std::time::Instant::now();
    loop {
        let seen = page.browser.under_way(EVENTS);
        if seen == wanted {
            return;
        }
        assert!(began.elapsed().as_secs() < 20, "{seen:?} instead of {wanted:?}");
    }
}
