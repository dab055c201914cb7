//! Every page of docs/ can be reached, and every relative link leads to a file and, after a `#`, to a heading of that page.

use onlyonce_testkit::repository;

use super::Fault;
use crate::files::File;

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let links: Vec<Link<'_>> = files.iter().filter(|file| file.ends_with(".md")).flat_map(links).collect();
    let mut faults: Vec<Fault> = links.iter().filter(|link| !exists(&link.to, files)).map(broken).collect();
    faults.extend(links.iter().filter(|link| !has_heading(link, files)).map(without_heading));
    let pages = files.iter().filter(|file| file.path.starts_with("docs/"));
    let unreachable =
        pages.filter(|page| !links.iter().any(|link| link.to == page.path && link.from.path != page.path));
    faults.extend(unreachable.map(|page| {
        Fault::of(&page.path, "links", "no other page links here; link it from README.md or a page of docs/")
    }));
    faults
}

struct Link<'a> {
    from: &'a File,
    line: usize,
    /// From the top of the repository.
    to: String,
    /// The heading, as it is written in a link; empty for the whole page.
    heading: &'a str,
}

fn broken(link: &Link<'_>) -> Fault {
    Fault::at(link.from, link.line, "links", format!("\"{}\" does not exist; correct the link", link.to))
}

fn without_heading(link: &Link<'_>) -> Fault {
    let message = format!("\"{}\" has no heading \"#{}\"; correct the link", link.to, link.heading);
    Fault::at(link.from, link.line, "links", message)
}

fn has_heading(link: &Link<'_>, files: &[File]) -> bool {
    let page = files.iter().find(|file| file.path == link.to && file.ends_with(".md"));
    link.heading.is_empty() || page.is_none_or(|page| headings(page).any(|heading| heading == link.heading))
}

/// The headings of a page as links write them: in lower case, with dashes for spaces, without punctuation.
fn headings(page: &File) -> impl Iterator<Item = String> {
    let lines = outside_fences(page).filter_map(|(_, line)| line.strip_prefix('#'));
    lines.map(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    })
}

fn outside_fences(page: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    page.lines().filter(move |(_, text)| {
        let is_fence = text.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// Pictures are not among `files`, so the disk is asked as well.
fn exists(path: &str, files: &[File]) -> bool {
    files.iter().any(|file| file.path == path || file.path.starts_with(&format!("{path}/")))
        || repository::root().join(path).exists()
}

/// The relative links of a page, outside fenced code: `](target)`, `src="target"` and `[name]: target`.
fn links(page: &File) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (line, text) in outside_fences(page) {
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let attributes = ["src=\"", "href=\"", "srcset=\""]
            .into_iter()
            .flat_map(|attribute| text.split(attribute).skip(1))
            .filter_map(|rest| rest.split('"').next());
        let reference =
            text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
        for target in inline.chain(attributes).chain(reference) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            if target.is_empty() || path.contains(':') || path.contains('<') {
                continue;
            }
            let to = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
            links.push(Link { from: page, line, to, heading });
        }
    }
    links
}

fn resolve(page: &str, target: &str) -> String {
    if let Some(from_top) = target.strip_prefix('/') {
        return from_top.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn found(files: &[File]) -> Vec<String> {
        faults(files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_page_nobody_links_to_is_found() {
        let page = file("docs/lonely.md", "# Alone\nsee [itself](lonely.md)");
        assert_eq!(found(std::slice::from_ref(&page)).len(), 1);
        let readme = file("README.md", "See [it](docs/lonely.md#alone).");
        assert_eq!(found(&[readme, page]), Vec::<String>::new());
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let page = file(
            "README.md",
            "a\n[gone](docs/gone.md) [web](https://example.org/x) [here](#part)\n```\n[no](no.md)\n```\n## Part",
        );
        let found = found(&[page]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("README.md:2: "), "{found:?}");
    }

    #[test]
    fn a_link_to_a_heading_that_the_page_does_not_have_is_found() {
        let page =
            file("docs/a.md", "# A page\n## `[route]` and PostgreSQL, for many\n```sh\n# no heading\n```");
        let readme = file(
            "README.md",
            "[a](docs/a.md#route-and-postgresql-for-many)\n[b](docs/a.md#postgresql)\n[c](docs/a.md#no-heading)\n[d](#own)",
        );
        let found = found(&[readme, page]);
        let lines: Vec<_> = found.iter().map(|fault| &fault[..12]).collect();
        assert_eq!(lines, ["README.md:2:", "README.md:3:", "README.md:4:"], "{found:?}");
    }

    #[test]
    fn pictures_and_upward_links_count() {
        let files = [
            file("docs/a/b.md", "![bars](../bars.svg) and [up](../../README.md)"),
            file("docs/bars.svg", "<svg/>"),
            file("README.md", "[b](docs/a/b.md)"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
