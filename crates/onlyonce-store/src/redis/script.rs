//! The scripts, and how they are loaded and called.
//!
//! 1. All keys of a script have one hash tag. On a request's way a script has one key.
//! 2. Moments and revisions are text of a fixed width, which compares as it should: a number of Lua has 53 bits, and prints
//!    as `1.79e+15`.
//! 3. None of them knows a rule: they compare revisions and stamps, and what they delete was judged before.

use std::sync::LazyLock;

use redis::Pipeline;

/// A script, and the digest that it is called by.
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), digest: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// A write of a record that stands there. KEYS: record. ARGV: expected revision, value, whether the due time is listed.
///
/// Answers 1. Or 0 where it is due earlier than before and that is not listed. Or the stamp of the last write, where the new
/// one is before it. Or, where the swap is lost, the value or nil. What was reserved may complete when memory is full.
pub(super) static SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
local head = redis.call('GETRANGE', KEYS[1], 0, 47)
if string.sub(head, 1, 16) ~= ARGV[1] then return redis.call('GET', KEYS[1]) end
if string.sub(head, 17, 32) > string.sub(ARGV[2], 17, 32) then return tonumber(string.sub(head, 17, 32)) end
if ARGV[3] == '0' and string.sub(head, 33, 48) > string.sub(ARGV[2], 33, 48) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1",
    )
});

/// A write of a record with what goes with it. KEYS: record, and those of the commands. ARGV: expected revision (empty: it must
/// not exist), value, and commands: how many words, and the words. Answers as [`SWAP`], but never 0.
const SWAP_WITH: &str = "
local head = redis.call('GETRANGE', KEYS[1], 0, 31)
if string.sub(head, 1, 16) ~= ARGV[1] then return redis.call('GET', KEYS[1]) end
if string.sub(head, 17, 32) > string.sub(ARGV[2], 17, 32) then return tonumber(string.sub(head, 17, 32)) end
local place = 3
while place <= #ARGV do
  local words = tonumber(ARGV[place])
  redis.call(unpack(ARGV, place + 1, place + words))
  place = place + words + 1
end
redis.call('SET', KEYS[1], ARGV[2])
return 1";

/// [`SWAP_WITH`] of a record that must not exist: refused when memory is full.
pub(super) static INSERT_WITH: LazyLock<Script> = LazyLock::new(|| Script::new(&format!("#!lua{SWAP_WITH}")));
/// [`SWAP_WITH`] of a record that stands there.
pub(super) static UPDATE_WITH: LazyLock<Script> =
    LazyLock::new(|| Script::new(&format!("#!lua flags=allow-oom{SWAP_WITH}")));

/// Lists a record by its due time, where the entry was early. KEYS: list, record. ARGV: revision, id, due time.
pub(super) static RELIST: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
if redis.call('GETRANGE', KEYS[2], 0, 15) ~= ARGV[1] then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
return 1",
    )
});

/// Takes an entry off a list where its record is still as it was looked at: gone (an empty revision), or at a revision that does
/// not belong on that list. KEYS: list, record. ARGV: revision, id.
pub(super) static UNLIST: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
if redis.call('GETRANGE', KEYS[2], 0, 15) ~= ARGV[1] then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[2])",
    )
});

/// Deletes a record that was judged at this revision, and all that goes with it. KEYS: record, its results, its request, the
/// list of what is due, that of what is open, the set of requests. ARGV: revision, id.
pub(super) static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('ZREM', KEYS[5], ARGV[2])
redis.call('SREM', KEYS[6], ARGV[2])
return 1",
    )
});

/// Writes an entry of the log anew, where it is still there. KEYS: entries. ARGV: id, entry.
pub(super) static REPLACE_ENTRY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 1",
    )
});

/// Raises the epoch to one more, or to this time where that is more. KEYS: epoch. ARGV: the store's time in microseconds.
pub(super) static RAISE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
local epoch = math.max((tonumber(redis.call('GET', KEYS[1])) or 0) + 1, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%.0f', epoch))
return 1",
    )
});

/// Writes something, so that replicas have something to confirm; also when memory is full. KEYS: marker. ARGV: value.
pub(super) static MARK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "#!lua flags=allow-oom
redis.call('SET', KEYS[1], ARGV[1])
return 1",
    )
});

/// The first trip on a connection: which role the server has, whose history it continues, and all scripts.
pub(super) fn load() -> Pipeline {
    let mut trip = Pipeline::new();
    trip.cmd("ROLE");
    trip.cmd("INFO").arg("replication");
    let of_records = [&SWAP, &INSERT_WITH, &UPDATE_WITH, &DELETE];
    for script in of_records.into_iter().chain([&RELIST, &UNLIST, &REPLACE_ENTRY, &RAISE, &MARK]) {
        trip.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
    trip.cmd("TIME");
    trip.ignore_errors();
    trip
}

/// Adds a call of a script to a trip; its arguments follow.
pub(super) fn call<'a>(trip: &'a mut Pipeline, script: &Script, keys: &[Vec<u8>]) -> &'a mut Pipeline {
    trip.cmd("EVALSHA").arg(&script.digest).arg(keys.len());
    for key in keys {
        trip.arg(key);
    }
    trip
}
