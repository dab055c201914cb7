//! A tape whose tail is torn: what a power failure leaves of a write that nobody was told of.
//!
//! What was acknowledged was synced before, so a tear is always behind it. A tape consists of a head of 48 bytes and batches of
//! a length (4), a digest (16) and so many bytes; the digest, the first half of a SHA-256, is over identity and round as they
//! stand in the head, the place of the batch, and its bytes.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::death::die;
use crate::failpoints::{Failpoint, Left};
use crate::judge::judge;
use crate::order::{Kind, Wish};
use crate::process::Life;
use crate::world::World;

const HEAD_BYTES: usize = 48;
const BATCH_HEAD_BYTES: usize = 20;

/// What is wrong with the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tear {
    /// Bytes that mean nothing.
    Noise,
    /// A batch that was valid once, in another place.
    OldBatch,
    /// The first half of a batch.
    HalfBatch,
    /// The last commit, of which nobody was told, lacks its end.
    CutCommit,
}

impl Tear {
    pub(crate) const ALL: [Self; 4] = [Self::Noise, Self::OldBatch, Self::HalfBatch, Self::CutCommit];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Noise => "noise_behind_a_tape_is_ignored",
            Self::OldBatch => "an_old_batch_behind_a_tape_is_ignored",
            Self::HalfBatch => "half_a_batch_behind_a_tape_is_ignored",
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
    tear_tail(world.tapes(), tear);
    judge(&mut world).await;
}

/// A completion that is on a tape, and of which nobody was told. Its end is about to be cut off: so the work is done,
/// and only the reservation is left.
async fn complete_unheard(world: &mut World) {
    world.doubtful.clear();
    die(world, Failpoint::named("sqlite.commit.after:2")).await;
    world.doubtful.iter_mut().for_each(|(_, left)| *left = Some(Left::Worked));
}

fn tear_tail(paths: [PathBuf; 2], tear: Tear) {
    let tapes = paths.map(|path| {
        let bytes = std::fs::read(&path).expect("a killed process leaves its tapes");
        (path, bytes)
    });
    let (path, mut tape) = tapes.into_iter().max_by_key(|(_, tape)| round(tape)).expect("there are two");
    let ends = ends(&tape);
    let [.., last, end] = ends[..] else { panic!("there is no batch: {ends:?}") };
    let first = HEAD_BYTES..ends[1];
    let behind = match tear {
        Tear::Noise => (1..=251u8).cycle().take(1_017).collect(),
        Tear::OldBatch => tape[first].to_vec(),
        Tear::HalfBatch => tape[HEAD_BYTES..first.start + first.len() / 2].to_vec(),
        Tear::CutCommit => {
            let cut = end - (end - last) / 3;
            tape[cut..end].fill(0xa5);
            Vec::new()
        }
    };
    tape.resize(tape.len().max(end + behind.len()), 0);
    tape[end..end + behind.len()].copy_from_slice(&behind);
    std::fs::write(path, tape).expect("the tape can be written");
}

/// The round on a tape; none on one that was never written.
fn round(tape: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(tape.get(24..32)?.try_into().ok()?))
}

/// Where the head and each batch of the round ends.
fn ends(tape: &[u8]) -> Vec<usize> {
    let mut ends = vec![HEAD_BYTES];
    while let Some(end) = end_of_batch(tape, ends[ends.len() - 1]) {
        ends.push(end);
    }
    ends
}

fn end_of_batch(tape: &[u8], at: usize) -> Option<usize> {
    let length = u32::from_le_bytes(tape.get(at..at + 4)?.try_into().ok()?);
    let start = at + BATCH_HEAD_BYTES;
    let end = start + usize::try_from(length).ok()?;
    let place = (at as u64).to_le_bytes();
    let digest =
        Sha256::new().chain_update(&tape[8..32]).chain_update(place).chain_update(tape.get(start..end)?);
    (tape[at + 4..start] == digest.finalize()[..16]).then_some(end)
}
