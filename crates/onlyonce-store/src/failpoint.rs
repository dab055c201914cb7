//! Named steps at which a test lets the process die.
//!
//! What a crash leaves behind is decided between two durable steps, and no test finds that instant by luck. So the
//! steps have names, and a driver starts a real process with one of them:
//!
//! ```text
//! ONLYONCE_FAILPOINT=sqlite.commit.before       dies the first time it comes there
//! ONLYONCE_FAILPOINT=sqlite.commit.before:7     dies the seventh time
//! ```
//!
//! 1. The process sends itself SIGKILL, which cannot be caught: nothing is flushed, no destructor runs. Data already
//!    handed to the kernel survives. It does not simulate a power failure: `fsync` is for that. On systems without SIGKILL
//!    it aborts.
//! 2. Without the feature `failpoints` a step is an empty function that the compiler removes. Never ship with it.
//! 3. A malformed number panics at the first step: a crash test that kills nothing must not pass.
//!
//! ```
//! onlyonce_store::failpoint!("demo.write.before");
//! ```

/// The variable with the name of the step to die at.
pub const VARIABLE: &str = "ONLYONCE_FAILPOINT";

/// A named step; see [`mod@crate::failpoint`].
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::reach($name)
    };
}

/// The process reached the step `name`. Called by the macro.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reach(_name: &'static str) {}

/// The process reached the step `name`. Called by the macro.
///
/// # Panics
///
/// If the variable has a malformed number.
#[cfg(feature = "failpoints")]
pub fn reach(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PLAN: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);
    let plan = PLAN.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text)));
    let Some((step, count)) = plan else { return };
    if step == name && REACHED.fetch_add(1, Ordering::AcqRel) + 1 == *count {
        die();
    }
}

/// As by `kill -9`.
#[cfg(all(feature = "failpoints", unix))]
fn die() -> ! {
    use rustix::process::{Signal, getpid, kill_process};

    kill_process(getpid(), Signal::KILL).expect("a process may send itself any signal");
    unreachable!("the thread that sends its process SIGKILL does not come back from it")
}

#[cfg(all(feature = "failpoints", not(unix)))]
fn die() -> ! {
    std::process::abort()
}

#[cfg(feature = "failpoints")]
fn parse(text: &str) -> (String, u64) {
    let Some((name, count)) = text.split_once(':') else { return (text.to_owned(), 1) };
    let count = count.parse().ok().filter(|count| *count > 0);
    (name.to_owned(), count.unwrap_or_else(|| panic!("{VARIABLE} \"{text}\" has no number after its colon")))
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::parse;

    #[test]
    fn a_plan_has_a_name_and_may_have_a_number() {
        assert_eq!(parse("a.b"), ("a.b".to_owned(), 1));
        assert_eq!(parse("a.b:7"), ("a.b".to_owned(), 7));
    }

    #[test]
    #[should_panic = "no number"]
    fn a_malformed_number_is_not_ignored() {
        parse("a.b:x");
    }
}
