//! The words after a command's name. By hand: an argument parser would be most of what a newcomer's machine has to build.

use anyhow::{Result, bail};

pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self(words)
    }

    /// Whether this flag is given; it is taken out.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let count = self.0.len();
        self.0.retain(|word| word != name);
        self.0.len() < count
    }

    /// What is given as `NAME=VALUE`; it is taken out.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>> {
        let is_it = |word: &String| word.split_once('=').map_or(word.as_str(), |(own, _)| own) == name;
        let Some(place) = self.0.iter().position(is_it) else { return Ok(None) };
        let word = self.0.remove(place);
        match word.split_once('=') {
            Some((_, value)) if !value.is_empty() => Ok(Some(value.to_owned())),
            _ => bail!("\"{word}\" has no value; write {name}=VALUE"),
        }
    }

    /// The remaining words. An error if one of them is a flag, or if there are more than `words_max`.
    pub(crate) fn words(self, words_max: usize) -> Result<Vec<String>> {
        if let Some(flag) = self.0.iter().find(|word| word.starts_with('-')) {
            bail!("unknown flag \"{flag}\"; see --help");
        }
        if let Some(word) = self.0.get(words_max) {
            bail!("unexpected argument \"{word}\"; see --help");
        }
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Arguments {
        Arguments::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_flag_may_stand_anywhere() {
        for words in [["--all", "a"], ["a", "--all"]] {
            let mut arguments = arguments(&words);
            assert!(arguments.flag("--all"));
            assert_eq!(arguments.words(1).unwrap(), ["a"]);
        }
        assert!(!arguments(&["all"]).flag("--all"));
    }

    #[test]
    fn a_value_follows_its_name() {
        let mut given = arguments(&["a", "--program=b=c"]);
        assert_eq!(given.value("--program").unwrap().as_deref(), Some("b=c"));
        assert_eq!(given.words(1).unwrap(), ["a"]);
        assert_eq!(arguments(&["a"]).value("--program").unwrap(), None);
        assert!(arguments(&["--program", "b"]).value("--program").is_err());
    }

    #[test]
    fn what_nobody_reads_is_an_error() {
        let error = arguments(&["--al"]).words(1).unwrap_err().to_string();
        assert!(error.contains("\"--al\""), "{error}");
        let error = arguments(&["a", "b"]).words(1).unwrap_err().to_string();
        assert!(error.contains("\"b\""), "{error}");
    }
}
