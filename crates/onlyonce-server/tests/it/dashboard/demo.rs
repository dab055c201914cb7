//! The demo's page: the ledger of the sample service, live.

use super::Page;
use crate::demo::Served;

/// O10: in the demo the page shows what was really charged, as it happens.
#[test]
fn the_demo_shows_the_ledger_and_settles_what_it_lost() {
    let mut served = Served::begin(&["--store", "memory:"]);
    let mut page = Page::of(format!("http://{}", served.admin()));
    page.go("/", "Overview");
    page.browser.named("region", "Ledger of the sample service");
    page.browser.see("Nothing was charged yet.");
    served.pay();
    page.browser.see("cards were really charged 1 time");
    served.pay();
    served.pay_with("lost-1", "crashing");
    page.browser.see("cards were really charged 2 times");
    page.browser.press("link", "lost-1");
    page.heading("lost-1");
    page.browser.press("button", "Happened");
    page.browser.fill("textbox", "Reason", "the ledger has it");
    page.browser.fill("textbox", "Status", "201");
    page.browser.press("button", "Confirm");
    page.told("status", "unknown → completed");
    let retried = served.pay_with("lost-1", "crashing");
    assert!(retried.starts_with("HTTP/1.1 201 Created\r\n"), "{retried}");
    page.go("/", "Overview");
    page.browser.find("image", "executed 2");
    page.browser.size(1280, 900);
    page.picture("demo-overview");
    page.is_clean();
    assert_eq!(served.terminate(), Some(0));
}
