//! docs/requirements.md is what would be generated, and no test names a promise that does not exist.

use super::Fault;
use crate::files::File;
use crate::requirements::{self, LIST, PAGE};

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    // A tree without the list is one of the other rules' tests.
    let Some(list) = files.iter().find(|file| file.path == LIST) else { return Vec::new() };
    unknown_ids(files, list).into_iter().chain(stale_page(files)).collect()
}

fn unknown_ids(files: &[File], list: &File) -> Vec<Fault> {
    let ids: Vec<&str> = requirements::ids(&list.text).collect();
    let unknown = requirements::proofs(files).into_iter().filter(|proof| !ids.contains(&proof.id.as_str()));
    unknown
        .map(|proof| Fault {
            path: proof.path,
            line: Some(proof.line),
            rule: "promises",
            message: format!("{} is no promise of ours; correct the id, or add it to {LIST}", proof.id),
        })
        .collect()
}

fn stale_page(files: &[File]) -> Option<Fault> {
    let page = files.iter().find(|file| file.path == PAGE).map_or("", |file| &file.text);
    let expected = requirements::expected(files)?;
    let differs = expected.lines().zip(page.lines()).position(|(expected, page)| expected != page);
    let line = differs.unwrap_or_else(|| expected.lines().count().min(page.lines().count())) + 1;
    (expected != page).then(|| Fault {
        path: PAGE.to_owned(),
        line: Some(line),
        rule: "promises",
        message: "differs from what is generated; run `cargo xtask requirements` and commit the page"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn tree(page: &str) -> Vec<File> {
        let test = "/// K01\n#[test]\nfn a() {}\n";
        vec![file(LIST, "## K\nK01 One.\n"), file("crates/onlyonce/src/a.rs", test), file(PAGE, page)]
    }

    #[test]
    fn a_page_that_is_not_fresh_is_found() {
        let page = requirements::expected(&tree("")).unwrap();
        assert_eq!(faults(&tree(&page)), []);
        let edited = page.replace("One.", "Two.");
        let found = faults(&tree(&edited));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("cargo xtask requirements"), "{}", found[0]);
        assert_eq!(faults(&tree("")).len(), 1);
    }

    #[test]
    fn an_id_that_does_not_exist_is_found() {
        let mut tree = tree("");
        tree[1].text = tree[1].text.replace("K01", "K77");
        tree[2].text = requirements::expected(&tree).unwrap();
        let found = faults(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, Some(3));
    }
}
