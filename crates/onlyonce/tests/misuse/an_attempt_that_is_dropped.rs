// An attempt that nobody completes leaves nothing on record.
#![deny(unused_must_use)]

fn attempt(begun: onlyonce::Begun) -> onlyonce::OpenAttempt {
    match begun {
        onlyonce::Begun::Run(attempt) => attempt,
        onlyonce::Begun::Answered(_) => unreachable!("this request is the first of its key"),
    }
}

fn transfer(begun: onlyonce::Begun) {
    attempt(begun);
}

fn main() {}
