//! README's links, for pages that show it elsewhere.

use super::About;

/// With every link to a file of the repository made one to that file at its release.
pub(super) fn absolute(page: &str, about: &About) -> String {
    let mut is_code = false;
    let line = |line: &str| {
        is_code ^= line.trim_start().starts_with("```");
        if is_code { line.to_owned() } else { absolute_line(line, about) }
    };
    page.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn absolute_line(line: &str, about: &About) -> String {
    let About { repository, version, .. } = about;
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        out.push_str("](");
        let is_image = before.rfind('[').is_some_and(|at| before[..at].ends_with('!'));
        if !after.starts_with('#') && !after.starts_with("https://") && !after.starts_with("http://") {
            let view = if is_image { "raw" } else { "blob" };
            out.push_str(&format!("{repository}/{view}/v{version}/"));
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::super::tests::about;
    use super::*;

    #[test]
    fn files_of_the_repository_are_named_at_their_release_and_other_links_stay() {
        let page = "[a](docs/a.md#b), [c](#c) and [d](https://example.org/d)\n![e](f.png)\n```rust\nx[0](y)\n```\n[g](G.md)\n";
        let expected = "[a](https://example.org/o/blob/v1.2.3-rc.1/docs/a.md#b), [c](#c) and [d](https://example.org/d)\n\
                        ![e](https://example.org/o/raw/v1.2.3-rc.1/f.png)\n```rust\nx[0](y)\n```\n\
                        [g](https://example.org/o/blob/v1.2.3-rc.1/G.md)\n";
        assert_eq!(absolute(page, &about()), expected);
    }
}
