//! The comparison with published libraries is what was seen: README's table and `docs/field.md` follow from the kept results.

use serde_json::Value;

use super::Fault;
use crate::field::page;
use crate::files::File;

const RULE: &str = "field";

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let Some(kept) = find(page::RESULTS) else {
        return vec![Fault::of(page::RESULTS, RULE, "is missing; run `cargo xtask field`")];
    };
    let Ok(results) = serde_json::from_str::<Vec<Value>>(&kept.text) else {
        return vec![Fault::of(page::RESULTS, RULE, "is no JSON list; run `cargo xtask field`")];
    };
    let written = find(page::PAGE).is_some_and(|file| file.text == page::page(&results));
    let shown = find(page::README).is_some_and(|file| {
        let table = page::table(&results, page::PAGE);
        page::with_table(&file.text, &table).is_some_and(|expected| expected == file.text)
    });
    let fault =
        |path| Fault::of(path, RULE, format!("differs from {}; run `cargo xtask field`", page::RESULTS));
    [(page::PAGE, written), (page::README, shown)]
        .into_iter()
        .filter(|(_, is_same)| !is_same)
        .map(|(path, _)| fault(path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn a_table_that_was_edited_is_a_fault() {
        let results =
            r#"[{"name":"lib","version":"1","settings":"defaults","folder":"lib","untested":"why"}]"#;
        let parsed: Vec<Value> = serde_json::from_str(results).unwrap();
        let readme = format!("{}\n{}", page::BEGIN, page::END);
        let readme = page::with_table(&readme, &page::table(&parsed, page::PAGE)).unwrap();
        let files = [
            file(page::RESULTS, results),
            file(page::PAGE, &page::page(&parsed)),
            file(page::README, &readme),
        ];
        assert!(faults(&files).is_empty());
        let [kept, written, _] = files;
        let edited = file(page::README, &readme.replace("why", "because"));
        let found = faults(&[kept, written, edited]);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("README.md: field: differs"), "{}", found[0]);
        assert_eq!(faults(&[]).len(), 1, "results that are missing are a fault");
    }
}
