//! Texts that others have written: markup, control characters, marks that change directions, and very long ones. All are
//! shown as the text they are.

use onlyonce_core::record::StateName;
use serde_json::json;

use super::{Page, world};

const MARKUP: &str = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;\"'";
const MARKS: &str = "pay\u{202e}gnp.exe\u{2066}\u{200f}\u{200b}end";
const CONTROLS: &str = "bell\u{7}null\u{1}esc\u{1b}[31mred";

/// O10, L04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_texts_are_shown_as_text() {
    let world = world(false).await;
    let emoji = "🦀".repeat(255);
    let texts =
        [MARKUP, MARKS, CONTROLS, &emoji, "javascript:alert(1)", "../../v1/audit?x=#/log", "%2e%2e%2f%00"];
    let mut all = Vec::new();
    for text in texts {
        // The label of the scope is the same text.
        all.push(world.record(text, text, StateName::Unknown).await);
    }
    let mut page = Page::at(&world);
    page.browser.size(360, 800);
    for (path, heading) in [("/", "Overview"), ("/unknown", "Unknown outcomes"), ("/keys", "Keys")] {
        page.go(path, heading);
        if path != "/" {
            for text in texts {
                is_shown(&mut page, text);
            }
        }
        fits(&mut page);
    }
    page.picture("hostile-360");
    for (made, text) in all.iter().zip(texts) {
        page.browser.open(&format!("{}/#{}", page.origin, super::record_path(made)));
        page.browser.see("It is unknown whether attempt 1 did the work");
        is_shown(&mut page, text);
        fits(&mut page);
        // The title is text as well.
        let title = page.browser.js("document.title").as_str().unwrap_or_default().to_owned();
        assert!(title.ends_with(" · Onlyonce"), "{title}");
    }
    // A reason and an answer.
    let verdict =
        json!({ "verdict": "happened", "reason": MARKUP, "response": { "status": 200, "body": MARKS } });
    assert_eq!(world.verdict(&all[0], "", &verdict).await.status, 200);
    page.go("/log", "Audit log");
    is_shown(&mut page, MARKUP);
    page.browser.size(1280, 900);
    page.go("/unknown", "Unknown outcomes");
    page.picture("hostile-1280");
    // Nothing of it has become an element, or was asked for.
    assert_eq!(page.browser.js("document.querySelectorAll('main script, main img, main iframe').length"), 0);
    page.is_clean();
    world.stop().await;
}

/// Every character is there, in the order it came, and characters that cannot be seen are marked.
fn is_shown(page: &mut Page, text: &str) {
    let json = serde_json::Value::from(text);
    page.browser.wait_js(&format!(
        "[...document.querySelectorAll('main bdi')].some((element) => element.textContent === {json})"
    ));
    let marks = page.browser.js(&format!(
        "[...[...document.querySelectorAll('main bdi')].find((element) => element.textContent === {json}).querySelectorAll('span')].length"
    ));
    let invisible =
        text.chars().filter(|char| char.is_control() || "\u{202e}\u{2066}\u{200f}\u{200b}".contains(*char));
    assert_eq!(marks, invisible.count(), "{text:?}");
}

fn fits(page: &mut Page) {
    let width = page.browser.js("[document.scrollingElement.scrollWidth, window.innerWidth]");
    assert!(width[0].as_u64() <= width[1].as_u64(), "{width}");
}
