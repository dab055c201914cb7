//! The expiry given to an engine whose server deletes rows by itself agrees with `may_reap`.

use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::time::Timestamp;
use onlyonce_store::conformance::random::Random;

/// T03
#[test]
fn a_row_must_stand_until_it_expires_and_may_go_from_then_on() {
    let now = Timestamp::from_micros(1_762_000_000_000_000);
    for seed in 0..2_000 {
        let draft = Random::new(seed).draft();
        let expires_at = draft.expires().map(|when| when.stamp(now));
        let record = draft.stamp(now);
        match expires_at {
            Some(at) => {
                assert!(machine::may_reap(&record, at), "{record:?}");
                let before = Timestamp::from_micros(at.as_micros() - 1);
                assert!(!machine::may_reap(&record, before), "{record:?}");
            }
            None => {
                let far = now.plus(Duration::from_secs(1_000 * 366 * 86_400));
                assert!(!machine::may_reap(&record, far), "{record:?}");
            }
        }
    }
}
