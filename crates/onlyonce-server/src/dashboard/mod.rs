//! The dashboard: a page, a script, a style sheet and an icon, in the program.
//!
//! 1. The page is a client of the admin API and knows nothing else: no data is in these files, and no rule. What an operator
//!    may do about a record is what the API says in `actions`.
//! 2. Nothing is loaded from anywhere else. The policy that comes with every file forbids inline scripts and styles, forms,
//!    frames and other origins.
//! 3. Text that others have written (keys, labels, routes, reasons) becomes text nodes, never markup.
//! 4. The page is told whether the settings have tokens, so that it asks for one instead of being refused first.

use axum::body::Body;
use axum::response::Response;
use http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS,
};

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("app.js");
const STYLE: &str = include_str!("style.css");
const ICON: &str = include_str!("icon.svg");

/// Stands in the page for whether a token is needed.
const TOKEN: &str = "{token}";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The page itself.
pub(crate) fn page(has_tokens: bool) -> Response {
    let token = if has_tokens { "required" } else { "none" };
    file("text/html; charset=utf-8", PAGE.replacen(TOKEN, token, 1).into())
}

pub(crate) fn script() -> Response {
    file("text/javascript; charset=utf-8", SCRIPT.into())
}

pub(crate) fn style() -> Response {
    file("text/css; charset=utf-8", STYLE.into())
}

pub(crate) fn icon() -> Response {
    file("image/svg+xml", ICON.into())
}

fn file(media: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    for (name, value) in [
        (CONTENT_TYPE, media),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L04: the policy of the page would refuse these; here a reader of the files finds them first.
    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for forbidden in ["<style", " style=", " onclick=", " onload=", "http://", "https://", "<iframe"] {
            assert!(!PAGE.contains(forbidden), "page.html: {forbidden}");
        }
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches(TOKEN).count(), 1);
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "localStorage",
            "document.cookie",
            "setAttribute(\"style\"",
        ] {
            assert!(!SCRIPT.contains(forbidden), "app.js: {forbidden}");
        }
        for forbidden in ["@import", "url(", "http://", "https://"] {
            assert!(!STYLE.contains(forbidden), "style.css: {forbidden}");
        }
    }
}
