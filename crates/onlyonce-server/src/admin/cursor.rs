//! Cursors of the API's lists: where a page ended, for whoever asks for the next one.
//!
//! A cursor is a store's own, wrapped: it says until when it is good, and carries a digest of what it belongs to (the store,
//! the list and its filters). One that is too old, was changed, or comes from another list or store is refused; it would
//! leave records out. It holds no secret, and forging one only shows what its maker may see anyway.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use onlyonce::store::Cursor;
use sha2::{Digest, Sha256};

/// How long a cursor is good.
const GOOD_FOR: Duration = Duration::from_secs(3600);
const SECONDS_BYTES: usize = 8;
const DIGEST_BYTES: usize = 16;

/// What a cursor belongs to.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// The store's name.
    pub(super) store: [u8; 16],
    /// The path of the list.
    pub(super) path: &'static str,
    /// Its filters.
    pub(super) filters: String,
}

/// Why a cursor is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Stale,
    Foreign,
}

impl Unusable {
    pub(super) fn says(self) -> &'static str {
        match self {
            Self::Stale => "is more than an hour old; start the list again without a cursor",
            Self::Foreign => {
                "does not belong to this list and its filters; start the list again without a cursor"
            }
        }
    }
}

impl List {
    /// The cursor as a client is given it.
    pub(super) fn seal(&self, cursor: &Cursor, now: SystemTime) -> String {
        let good_until = seconds(now + GOOD_FOR).to_be_bytes();
        let digest = self.digest(good_until, &cursor.0);
        URL_SAFE_NO_PAD.encode([&good_until[..], &digest[..], &cursor.0[..]].concat())
    }

    /// The store's cursor in what a client gave back.
    pub(super) fn open(&self, text: &str, now: SystemTime) -> Result<Cursor, Unusable> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Unusable::Foreign)?;
        let (good_until, rest) = bytes.split_first_chunk::<SECONDS_BYTES>().ok_or(Unusable::Foreign)?;
        let (digest, cursor) = rest.split_first_chunk::<DIGEST_BYTES>().ok_or(Unusable::Foreign)?;
        if self.digest(*good_until, cursor) != *digest {
            return Err(Unusable::Foreign);
        }
        if seconds(now) > u64::from_be_bytes(*good_until) {
            return Err(Unusable::Stale);
        }
        Ok(Cursor(cursor.into()))
    }

    fn digest(&self, good_until: [u8; SECONDS_BYTES], cursor: &[u8]) -> [u8; DIGEST_BYTES] {
        let whole = Sha256::new()
            .chain_update(b"onlyonce cursor 1\0")
            .chain_update(self.store)
            .chain_update(good_until)
            .chain_update(self.path)
            .chain_update(b"\0")
            .chain_update(Sha256::digest(&self.filters))
            .chain_update(cursor)
            .finalize();
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&whole[..DIGEST_BYTES]);
        digest
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(filters: &str) -> List {
        List { store: [7; 16], path: "/v1/keys", filters: filters.to_owned() }
    }

    #[test]
    fn a_cursor_is_good_for_an_hour_in_the_list_it_came_from() {
        let (now, inner) = (UNIX_EPOCH + Duration::from_secs(1_763_350_000), Cursor(Box::new([1, 2, 3])));
        let sealed = list("state=unknown").seal(&inner, now);
        let open = |list: List, after: u64| list.open(&sealed, now + Duration::from_secs(after));
        assert_eq!(open(list("state=unknown"), 0), Ok(inner.clone()));
        assert_eq!(open(list("state=unknown"), 3600), Ok(inner));
        assert_eq!(open(list("state=unknown"), 3601), Err(Unusable::Stale));
        assert_eq!(open(list("state=running"), 0), Err(Unusable::Foreign));
        assert_eq!(open(List { path: "/v1/audit", ..list("state=unknown") }, 0), Err(Unusable::Foreign));
        assert_eq!(open(List { store: [8; 16], ..list("state=unknown") }, 0), Err(Unusable::Foreign));
    }

    #[test]
    fn a_changed_cursor_is_refused() {
        let now = UNIX_EPOCH + Duration::from_secs(1_763_350_000);
        let sealed = list("").seal(&Cursor(Box::new([0; 40])), now);
        for place in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(list("").open(&changed, now), Err(Unusable::Foreign), "{place}");
        }
        for text in ["", "AAAA", "not base64!", &sealed[1..], &format!("{sealed}A"), &format!("{sealed}=")] {
            assert_eq!(list("").open(text, now), Err(Unusable::Foreign), "{text:?}");
        }
    }
}
