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
    fn what_nobody_reads_is_an_error() {
        let error = arguments(&["--al"]).words(1).unwrap_err().to_string();
        assert!(error.contains("\"--al\""), "{error}");
        let error = arguments(&["a", "b"]).words(1).unwrap_err().to_string();
        assert!(error.contains("\"b\""), "{error}");
    }
}
