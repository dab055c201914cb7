//! Light and dark, wide and narrow: nothing scrolls sideways, every text can be read, and pictures for people.

use std::time::Duration;

use onlyonce_core::record::StateName;

use super::{Page, world};

/// The texts whose contrast with what is behind them is below 4.5:1.
const FAINT: &str = r#"(() => {
    const pencil = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const paint = (colour) => {
        pencil.clearRect(0, 0, 1, 1);
        pencil.fillStyle = colour;
        pencil.fillRect(0, 0, 1, 1);
        return [...pencil.getImageData(0, 0, 1, 1).data];
    };
    const light = ([red, green, blue]) => {
        const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
    };
    const behind = (element) => {
        for (let at = element; at !== null; at = at.parentElement) {
            const colour = paint(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll('body *')) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== '');
        if (!hasText || !element.checkVisibility() || element.closest('svg, option')) continue;
        const [one, two] = [light(paint(getComputedStyle(element).color)), light(behind(element))];
        const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        if (ratio < 4.5) faint.push(`${element.tagName} "${element.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
    }
    return faint;
})()"#;

/// O10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_can_be_read_in_light_and_dark_wide_and_narrow() {
    let world = world(false).await;
    for number in 1..=9 {
        world.record("acme", &format!("order-{number}"), StateName::Completed).await;
    }
    let done = world.record("globex", "invoice-2026-11", StateName::Completed).await;
    let stuck = world.record("acme", "8e03978e-40d5-43e8-bc93-6894a57f9324", StateName::Unknown).await;
    world.dead_letter("globex", "transfer-77").await;
    world.record("acme", "order-10", StateName::Running).await;
    world.record("acme", "order-11", StateName::Retryable).await;
    world.dead_message("receipt-1").await;
    world.pass(Duration::from_secs(12 * 60)).await;
    let verdict =
        serde_json::json!({ "verdict": "happened", "reason": "charged, says the ledger of the bank" });
    let settled = world.record("acme", "order-12", StateName::Unknown).await;
    world.verdict(&settled, "", &verdict).await;
    let mut page = Page::at(&world);
    let key = |made: &crate::admin_world::Made| made.seen.record.key.as_str().to_owned();
    let pages = [
        ("overview", "/".to_owned(), "Overview".to_owned()),
        ("unknown", "/unknown".to_owned(), "Unknown outcomes".to_owned()),
        ("keys", "/keys".to_owned(), "Keys".to_owned()),
        ("record-unknown", super::record_path(&stuck), key(&stuck)),
        ("record-completed", super::record_path(&done), key(&done)),
        ("dead", "/dead".to_owned(), "Dead letters".to_owned()),
        ("log", "/log".to_owned(), "Audit log".to_owned()),
    ];
    let mut grounds = Vec::new();
    for (name, path, heading) in &pages {
        page.go(path, heading);
        for scheme in ["light", "dark"] {
            page.browser.scheme(scheme);
            for width in [1280, 390] {
                page.browser.size(width, 900);
                page.picture(&format!("{name}-{scheme}-{width}"));
                let seen = page.browser.js("document.scrollingElement.scrollWidth");
                assert!(seen.as_u64() <= Some(u64::from(width)), "{name} {scheme}: {seen} of {width}");
            }
            let faint = page.browser.js(FAINT);
            assert_eq!(faint, serde_json::json!([]), "{name} {scheme}");
            grounds.push((scheme, page.browser.js("getComputedStyle(document.body).backgroundColor")));
        }
    }
    let ground = |scheme: &str| grounds.iter().find(|(own, _)| *own == scheme).unwrap().1.clone();
    assert_ne!(ground("light"), ground("dark"));
    page.browser.size(360, 800);
    for (name, path, heading) in &pages {
        page.go(path, heading);
        let seen = page.browser.js("document.scrollingElement.scrollWidth");
        assert!(seen.as_u64() <= Some(360), "{name}: {seen}");
    }
    // Every moment says its zone, and has the exact one beside it.
    let vague = page.browser.js(
        "[...document.querySelectorAll('time')].filter((time) => !time.title.endsWith('Z') || time.dateTime !== time.title || \
         !(time.dataset.age || time.textContent.endsWith('UTC'))).length",
    );
    assert_eq!(vague, 0);
    page.is_clean();
    world.stop().await;
}
