//! A write-ahead log (WAL) whose tail is torn: what a power failure leaves of a commit that nobody was told of.
//!
//! What was acknowledged was synced before, so a tear is always behind it. A file consists of a header of 32 bytes and
//! frames of a page each, with 24 bytes in front; the last frame of a transaction commits it.

use std::path::Path;

use crate::death::die;
use crate::failpoints::{Failpoint, Left};
use crate::judge::judge;
use crate::order::{Kind, Wish};
use crate::process::Life;
use crate::world::World;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// What is wrong with the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tear {
    /// Bytes that mean nothing.
    Noise,
    /// A frame that was valid once, in another place.
    OldFrame,
    /// The first half of a frame.
    HalfFrame,
    /// The last commit, of which nobody was told, lacks its end.
    CutCommit,
}

impl Tear {
    pub(crate) const ALL: [Self; 4] = [Self::Noise, Self::OldFrame, Self::HalfFrame, Self::CutCommit];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Noise => "noise_behind_the_wal_is_ignored",
            Self::OldFrame => "an_old_frame_behind_the_wal_is_ignored",
            Self::HalfFrame => "half_a_frame_behind_the_wal_is_ignored",
            Self::CutCommit => "a_commit_cut_short_never_was",
        }
    }
}

/// E01, P05, U03
pub(crate) async fn opens_and_continues(tear: Tear, kind: Kind) {
    let mut world = World::new(kind).await;
    let victim = world.ready(Life::USUAL).await;
    for _ in 0..3 {
        world.acknowledge(&victim, Wish::None).await;
    }
    world.kill_while_working(victim).await;
    if matches!(tear, Tear::CutCommit) {
        complete_unheard(&mut world).await;
    }
    tear_tail(&world.wal(), tear);
    judge(&mut world).await;
}

/// A completion that is in the WAL, and of which nobody was told. Its end is about to be cut off: so the work is done,
/// and only the reservation is left.
async fn complete_unheard(world: &mut World) {
    world.doubtful.clear();
    die(world, Failpoint::named("sqlite.commit.after:2")).await;
    world.doubtful.iter_mut().for_each(|(_, left)| *left = Some(Left::Worked));
}

fn tear_tail(path: &Path, tear: Tear) {
    let mut wal = std::fs::read(path).expect("a killed process leaves its WAL");
    let page = u32::from_be_bytes([wal[8], wal[9], wal[10], wal[11]]) as usize;
    let frame = page + FRAME_HEADER_BYTES;
    assert!(wal.len() > HEADER_BYTES + frame, "there are frames");
    assert_eq!((wal.len() - HEADER_BYTES) % frame, 0, "the WAL ends with a whole frame");
    let first = HEADER_BYTES..HEADER_BYTES + frame;
    match tear {
        Tear::Noise => wal.extend((1..=251u8).cycle().take(3 * frame + 17)),
        Tear::OldFrame => wal.extend_from_within(first),
        Tear::HalfFrame => wal.extend_from_within(HEADER_BYTES..HEADER_BYTES + frame / 2),
        Tear::CutCommit => wal.truncate(wal.len() - frame / 3),
    }
    std::fs::write(path, wal).expect("the WAL can be written");
}
