//! Every page of docs/ can be reached, and every relative link leads somewhere.

use onlyonce_testkit::repository;

use super::Fault;
use crate::files::File;

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let links: Vec<Link<'_>> = files.iter().filter(|file| file.ends_with(".md")).flat_map(links).collect();
    let mut faults: Vec<Fault> = links.iter().filter(|link| !exists(&link.to, files)).map(broken).collect();
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
}

fn broken(link: &Link<'_>) -> Fault {
    Fault::at(link.from, link.line, "links", format!("\"{}\" does not exist; correct the link", link.to))
}

/// Files that are no text (pictures) are not among `files`, so the disk is asked as well.
fn exists(path: &str, files: &[File]) -> bool {
    files.iter().any(|file| file.path == path || file.path.starts_with(&format!("{path}/")))
        || repository::root().join(path).exists()
}

/// The relative links of a page, outside fenced code: `](target)`, `src="target"` and `[name]: target`.
fn links(page: &File) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    let mut is_fenced = false;
    for (line, text) in page.lines() {
        if text.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        if is_fenced {
            continue;
        }
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let attributes = ["src=\"", "href=\"", "srcset=\""]
            .into_iter()
            .flat_map(|attribute| text.split(attribute).skip(1))
            .filter_map(|rest| rest.split('"').next());
        let reference =
            text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
        for target in inline.chain(attributes).chain(reference) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains(':') && !path.contains('<') && !path.contains("::") {
                links.push(Link { from: page, line, to: resolve(&page.path, path) });
            }
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
        let page = file("docs/lonely.md", "# Alone, see [itself](lonely.md)");
        assert_eq!(found(std::slice::from_ref(&page)).len(), 1);
        let readme = file("README.md", "See [it](docs/lonely.md#part).");
        assert_eq!(found(&[readme, page]), Vec::<String>::new());
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let page = file(
            "README.md",
            "a\n[gone](docs/gone.md) [web](https://example.org/x) [here](#part)\n```\n[no](no.md)\n```",
        );
        let found = found(&[page]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("README.md:2: "), "{found:?}");
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
