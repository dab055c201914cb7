//! How a command of the project ends: exit 0 for yes, 1 for no, 2 where it could not be done.

use std::process::ExitCode;

use anyhow::Result;

/// What a command found. A `No` has been explained where it was found; an error is something the command could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything holds.
    Yes,
    /// Something does not.
    No,
}

/// The exit code of a command; an error is printed, with its causes on one line.
pub fn exit_code(done: &Result<Verdict>) -> ExitCode {
    ExitCode::from(number(done))
}

fn number(done: &Result<Verdict>) -> u8 {
    match done {
        Ok(Verdict::Yes) => 0,
        Ok(Verdict::No) => 1,
        Err(error) => {
            eprintln!("error: {error:#}");
            2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_neither_yes_nor_no() {
        let done = [Ok(Verdict::Yes), Ok(Verdict::No), Err(anyhow::anyhow!("no disk"))];
        assert_eq!(done.map(|done| number(&done)), [0, 1, 2]);
    }
}
