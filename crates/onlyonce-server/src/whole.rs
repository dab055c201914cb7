//! Bodies that are read whole, into one buffer: a piece that is kept alone costs its place in a list, and keeps the buffer that it
//! came in.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    TooLarge,
    /// More than there is room for beside all others.
    NoRoom,
    Broken,
}

/// Reads a body of at most `bytes_max`. `hold` is told how many more bytes are held, and says whether there is room for them: seldom,
/// since the buffer grows by doubling.
pub(crate) async fn read<B>(
    mut body: Pin<&mut B>,
    bytes_max: u64,
    mut hold: impl FnMut(u64) -> bool,
) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes>,
{
    let (mut whole, mut held) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
        if (whole.len() + data.len()) as u64 > bytes_max {
            return Err(Unread::TooLarge);
        }
        whole.extend_from_slice(&data);
        let holds = whole.capacity() as u64;
        if holds > held && !hold(holds - held) {
            return Err(Unread::NoRoom);
        }
        held = held.max(holds);
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const KIBIBYTE: u64 = 1 << 10;

    async fn read_pieces(pieces: u64, room: u64) -> Result<(Bytes, u64), Unread> {
        let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")));
        let body = pin!(StreamBody::new(futures_util::stream::iter((0..pieces).map(|_| piece()))));
        let mut held = 0;
        let hold = |bytes| {
            held += bytes;
            held <= room
        };
        let whole = read(body, KIBIBYTE, hold).await?;
        Ok((whole, held))
    }

    /// L06
    #[tokio::test]
    async fn a_body_in_pieces_of_one_byte_is_held_as_one_of_its_size() {
        let (whole, held) = read_pieces(KIBIBYTE, u64::MAX).await.unwrap();
        assert_eq!(whole.len() as u64, KIBIBYTE);
        assert!((KIBIBYTE..=2 * KIBIBYTE).contains(&held), "{held} bytes are held");
        assert_eq!(read_pieces(KIBIBYTE + 1, u64::MAX).await, Err(Unread::TooLarge));
        assert_eq!(read_pieces(KIBIBYTE, KIBIBYTE / 2).await, Err(Unread::NoRoom));
    }
}
