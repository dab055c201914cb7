//! Every page: landmarks, one heading, names of all controls, what it shows.

use std::time::Duration;

use onlyonce_core::record::StateName;

use super::{CONTROLS, Page, world};

const MINUTE: Duration = Duration::from_secs(60);

/// O10: what is stuck is named by key on the first screen, with its age, and every page is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_screen_names_what_is_stuck_and_every_page_shows_its_subject() {
    let world = world(false).await;
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.see("Nothing is stuck.");
    page.browser.named("region", "Needs you");

    // 13 minutes ago two outcomes became unknown, one of them a dead letter by now.
    let stuck = world.record("acme", "order-4711", StateName::Unknown).await;
    world.pass(Duration::from_secs(1)).await;
    world.dead_letter("globex", "order-4712").await;
    world.record("acme", "order-1", StateName::Completed).await;
    world.dead_message("mail-1").await;
    world.broken_probe();
    world.pass(13 * MINUTE).await;
    // The page lags behind the store by less than a minute.
    page.go("/", "Overview");
    let key = page.browser.find("link", "order-4711");
    assert!(key.name.contains("order-4711"), "{key:?}");
    for text in
        ["13 min", "POST /payments/*", "acme", "1 more unknown outcome", "Find out whether it happened"]
    {
        page.browser.see(text);
    }
    page.browser.find("link", "1 dead letter");
    page.browser.find("link", "1 message");
    for region in ["Needs you", "Traffic", "Added latency", "Records", "Workers", "Node"] {
        page.browser.named("region", region);
    }
    page.browser.find("image", "Requests by decision.");
    page.browser.find("image", "Added latency.");
    is_whole(&mut page);

    page.browser.press("link", "Unknown outcomes");
    page.heading("Unknown outcomes");
    page.browser.see("connection lost");
    page.browser.see("no probe");
    page.browser.find("link", "order-4711");
    page.browser.fill("searchbox", "Filter", "order-4712");
    page.has_no("link", "order-4711");
    page.browser.find("link", "order-4712");
    is_whole(&mut page);

    page.browser.press("link", "Keys");
    page.heading("Keys");
    page.browser.find("link", "order-1");
    page.browser.fill("searchbox", "Search", "order-471");
    page.has_no("link", "order-1");
    page.browser.find("link", "order-4711");
    // What an operator has in hand may be a token.
    page.browser.fill("searchbox", "Search", &stuck.token());
    page.has_no("link", "order-4712");
    page.browser.find("link", "order-4711");
    is_whole(&mut page);

    page.browser.press("link", "order-4711");
    page.heading("order-4711");
    page.browser.see("It is unknown whether attempt 1 did the work");
    page.browser.named("list", "Time line");
    for button in ["Happened", "Did not happen", "Ask again", "Forget"] {
        page.browser.named("button", button);
    }
    is_whole(&mut page);

    page.browser.press("link", "Dead letters");
    page.heading("Dead letters");
    page.browser.find("link", "order-4712");
    page.browser.see("it answered 410");
    page.browser.named("button", "Redrive");
    page.browser.named("button", "Discard");
    is_whole(&mut page);

    page.browser.press("link", "Audit log");
    page.heading("Audit log");
    page.browser.see("Nothing was changed yet.");
    is_whole(&mut page);

    page.go("/nowhere", "Not found");
    page.browser.press("link", "Overview");
    page.heading("Overview");
    page.is_clean();
    world.stop().await;
}

/// Landmarks, one heading of level 1, a name for every control.
fn is_whole(page: &mut Page) {
    let tree = page.browser.tree();
    for landmark in ["main", "navigation", "banner"] {
        assert_eq!(tree.iter().filter(|node| node.role == landmark).count(), 1, "{landmark}");
    }
    let headings = tree.iter().filter(|node| node.role == "heading" && node.level == Some(1));
    assert_eq!(headings.count(), 1);
    let controls: Vec<_> = tree.iter().filter(|node| CONTROLS.contains(&&*node.role)).collect();
    assert!(controls.len() > 5, "{controls:?}");
    for control in controls {
        assert!(!control.name.trim().is_empty(), "{control:?} has no name");
    }
}

/// L04: everything by keyboard, and nothing is in the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_reaches_everything() {
    let world = world(false).await;
    world.record("acme", "order-1", StateName::Unknown).await;
    let mut page = Page::at(&world);
    page.go("/", "Overview");
    page.browser.key("Tab");
    let skip = page.focused();
    assert_eq!((&*skip.role, &*skip.name), ("link", "Skip to content"));
    page.browser.key("Enter");
    page.browser.wait_js("document.activeElement.tagName === 'MAIN'");
    page.browser.key("Tab");
    let first = page.focused();
    assert!(first.name.contains("order-1"), "the first link behind the navigation: {first:?}");
    page.browser.key("Enter");
    page.heading("order-1");
    // From anywhere `/` goes to the search field, and what is typed there is a search.
    page.browser.key("/");
    page.heading("Keys");
    let search = page.focused();
    assert_eq!((&*search.role, &*search.name), ("searchbox", "Search"));
    page.browser.key("/");
    page.browser.wait("a slash in the field", |tree| {
        tree.iter().any(|node| node.role == "searchbox" && node.value == "/").then_some(())
    });
    // Every control can be reached by Tab.
    page.go("/", "Overview");
    let tree = page.browser.tree();
    let controls: Vec<_> =
        tree.iter().filter(|node| CONTROLS.contains(&&*node.role) && !node.is_disabled).collect();
    let mut reached = Vec::new();
    // Once round, and past the end of the page, where the browser's own controls would be.
    for _ in 0..controls.len() + 2 {
        page.browser.key("Tab");
        reached.push(page.browser.js("document.activeElement.outerHTML").to_string());
    }
    reached.retain(|element| !element.starts_with("\"<body"));
    reached.sort();
    reached.dedup();
    assert_eq!(reached.len(), controls.len(), "{controls:#?} {reached:#?}");
    page.is_clean();
    world.stop().await;
}
