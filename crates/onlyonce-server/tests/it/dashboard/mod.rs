//! The dashboard in a real browser: found by role and name, and by the text that can be seen, never by class or id.
//!
//! One browser and one admin port for each story. Pictures of every page go to `target/dashboard/`, for people to look at.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod demo;
mod hostile;
mod live;
mod looks;
mod needs;
mod pages;
mod signing_in;
mod verdicts;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use onlyonce_testkit::browser::{Browser, Node};

use crate::admin_world::{Made, World, encoded};
use crate::engines::Engine;

/// Roles of what a person can use.
const CONTROLS: [&str; 8] =
    ["button", "link", "textbox", "searchbox", "combobox", "checkbox", "DisclosureTriangle", "menuitem"];

/// A browser at an admin port.
struct Page {
    browser: Browser,
    origin: String,
}

impl Page {
    fn at(world: &World) -> Self {
        Self::of(format!("http://{}", world.address()))
    }

    fn of(origin: String) -> Self {
        let mut browser = Browser::start();
        browser.size(1280, 900);
        browser.scheme("light");
        Self { browser, origin }
    }

    /// Goes to a page of the dashboard and waits for its heading.
    fn go(&mut self, path: &str, heading: &str) {
        self.browser.open(&format!("{}/#{path}", self.origin));
        self.heading(heading);
        self.loaded();
    }

    /// Waits for the one heading of level 1.
    fn heading(&mut self, name: &str) {
        self.browser.wait(&format!("the heading \"{name}\""), |tree| {
            let first: Vec<_> =
                tree.iter().filter(|node| node.role == "heading" && node.level == Some(1)).collect();
            matches!(first[..], [only] if only.name == name).then_some(())
        });
    }

    fn loaded(&mut self) {
        self.browser.wait_js("document.querySelector('[aria-busy=true]') === null");
    }

    fn record(&mut self, made: &Made) {
        let key = made.seen.record.key.as_str().to_owned();
        self.go(&record_path(made), &key);
    }

    /// Whether there is an element with this role and name now.
    fn has(&mut self, role: &str, name: &str) -> bool {
        self.browser.tree().iter().any(|node| node.role == role && node.name == name)
    }

    /// Waits until there is none.
    fn has_no(&mut self, role: &str, name: &str) {
        self.browser.wait(&format!("no {role} \"{name}\""), |tree| {
            (!tree.iter().any(|node| node.role == role && node.name == name)).then_some(())
        });
    }

    /// Waits until a region of this role (`status`, `alert`) says something like this.
    fn told(&mut self, role: &str, text: &str) {
        let said = format!(
            "[...document.querySelectorAll('[role={role}]')].some((region) => region.textContent.includes({}))",
            serde_json::Value::from(text)
        );
        self.browser.wait_js(&said);
        // And assistive technology is told about the region.
        self.browser.wait(role, |tree| tree.iter().any(|node| node.role == role).then_some(()));
    }

    fn focused(&mut self) -> Node {
        self.browser.wait("something with the focus", |tree| {
            tree.iter().rfind(|node| node.is_focused && node.role != "RootWebArea").cloned()
        })
    }

    /// A picture for people to look at.
    fn picture(&mut self, name: &str) {
        let folder = pictures();
        std::fs::create_dir_all(&folder).unwrap();
        let png = STANDARD.decode(self.browser.picture()).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), png).unwrap();
    }

    /// Nothing went wrong, and nothing came from elsewhere.
    fn is_clean(&mut self) {
        let problems = self.browser.problems();
        assert!(problems.is_empty(), "{problems:?}");
        for url in self.browser.requested() {
            assert!(url.starts_with(&self.origin) || url == "about:blank", "{url}");
        }
    }
}

fn pictures() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../dashboard")
}

fn record_path(made: &Made) -> String {
    let record = &made.seen.record;
    format!("/keys/{}/{}", record.scope, encoded(record.key.as_str()))
}

/// How far the world's clock is behind this machine's at first: so much may pass in a test before it is ahead.
const BEHIND: Duration = Duration::from_secs(13 * 60 + 5);

/// A world in memory whose clock is somewhat behind this machine's.
async fn world(has_tokens: bool) -> World {
    let world = match has_tokens {
        true => World::with_tokens(Engine::Memory).await,
        false => World::new(Engine::Memory).await,
    };
    let start = Duration::from_secs(1_767_225_600);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    world.pass(now - start - BEHIND).await;
    world
}
