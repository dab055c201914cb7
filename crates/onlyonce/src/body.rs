//! Bodies: held whole, passed on as they come, or both.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::buffered::Held;

/// The body that handlers and clients are given: bytes we hold, or another body passed on untouched.
#[derive(Debug)]
pub struct Body<B>(Inner<B>);

#[derive(Debug)]
enum Inner<B> {
    /// Held whole.
    Whole(Option<Bytes>),
    /// Passed on as it comes, behind what was read of it already.
    Rest { read: VecDeque<Frame<Bytes>>, rest: B },
}

impl<B> Body<B> {
    /// A body held whole.
    pub fn whole(bytes: Bytes) -> Self {
        Self(Inner::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// Another body, passed on as it comes.
    pub fn passed(body: B) -> Self {
        Self(Inner::Rest { read: VecDeque::new(), rest: body })
    }

    /// The bytes, where they are held whole.
    pub(crate) fn held(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Whole(bytes) => Some(bytes.as_deref().unwrap_or_default()),
            Inner::Rest { .. } => None,
        }
    }

    fn behind(read: VecDeque<Frame<Bytes>>, rest: B) -> Self {
        Self(Inner::Rest { read, rest })
    }
}

impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::passed(B::default())
    }
}

impl<B> HttpBody for Body<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.0 {
            Inner::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Rest { read, rest } => match read.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None => Pin::new(rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_none(),
            Inner::Rest { read, rest } => read.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Rest { read, rest } => {
                let read: u64 = read.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
                let mut hint = rest.size_hint();
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper.saturating_add(read));
                }
                hint.set_lower(hint.lower().saturating_add(read));
                hint
            }
        }
    }
}

/// A request's body as the layer gets it.
pub(crate) enum Incoming<B> {
    /// It is still to be read.
    Coming(B),
    /// It was read for its key, and this much is held of it.
    Read(Bytes, Held),
}

impl<B> Incoming<B> {
    /// The same for whoever is called with it, and what is held of it until the answer.
    pub(crate) fn passed(self) -> (Body<B>, Option<Held>) {
        match self {
            Self::Coming(body) => (Body::passed(body), None),
            Self::Read(bytes, held) => (Body::whole(bytes), Some(held)),
        }
    }
}

/// What reading a body came to.
pub(crate) enum Read<B> {
    /// All of it, within the bound.
    Whole(Bytes),
    /// More than the bound, or with trailers: what was read is in front of what is to come.
    Beyond(Body<B>),
}

/// Reads a body up to `bytes_max`. A body with trailers is passed on: bytes alone would not be the whole of it. So is one that
/// `hold` leaves no room for, which is told how many more bytes are about to be held.
pub(crate) async fn read<B>(
    mut body: B,
    bytes_max: u64,
    hold: impl Fn(u64) -> bool,
) -> Result<Read<B>, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max {
        return Ok(Read::Beyond(Body::passed(body)));
    }
    let mut gathered = Gathered::default();
    while let Some(frame) = next(&mut body).await? {
        match frame.into_data() {
            Ok(data) => gathered.push(data),
            Err(trailers) => return Ok(Read::Beyond(Body::behind(gathered.frames(Some(trailers)), body))),
        }
        if gathered.length() > bytes_max || !gathered.is_held(&hold) {
            return Ok(Read::Beyond(Body::behind(gathered.frames(None), body)));
        }
    }
    Ok(Read::Whole(gathered.joined()))
}

/// What reading a request's body came to.
pub(crate) enum Request {
    /// All of it.
    Whole(Bytes),
    /// More than one may have.
    TooLarge,
    /// More than there is room for beside all others.
    NoRoom,
}

/// Reads a request's body up to `bytes_max`, as far as `hold` allows. Its trailers are dropped, as any recipient may (RFC 9110,
/// 6.5.1): what runs is what was fingerprinted.
pub(crate) async fn read_request<B>(
    mut body: B,
    bytes_max: u64,
    hold: impl Fn(u64) -> bool,
) -> Result<Request, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max {
        return Ok(Request::TooLarge);
    }
    let mut gathered = Gathered::default();
    while let Some(frame) = next(&mut body).await? {
        let Ok(data) = frame.into_data() else { continue };
        gathered.push(data);
        if gathered.length() > bytes_max {
            return Ok(Request::TooLarge);
        }
        if !gathered.is_held(&hold) {
            return Ok(Request::NoRoom);
        }
    }
    Ok(Request::Whole(gathered.joined()))
}

async fn next<B: HttpBody<Data = Bytes> + Unpin>(body: &mut B) -> Result<Option<Frame<Bytes>>, B::Error> {
    std::future::poll_fn(|cx| Poll::Ready(ready!(Pin::new(&mut *body).poll_frame(cx)).transpose())).await
}

/// What has been read of a body. Most are one piece, which is kept as it came. More are copied together as they come: a piece
/// kept alone costs its place in a list, and keeps the buffer that it came in.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    /// All of it, once there is a second piece.
    joined: BytesMut,
    /// How many bytes are known to be held.
    held: u64,
}

impl Gathered {
    fn length(&self) -> u64 {
        (self.first.len() + self.joined.len()) as u64
    }

    fn push(&mut self, piece: Bytes) {
        if self.length() == 0 {
            self.first = piece;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.joined.extend_from_slice(&first);
        self.joined.extend_from_slice(&piece);
    }

    /// Tells `hold` of what is held beyond what it knows: seldom, since what is joined grows by doubling.
    fn is_held(&mut self, hold: impl Fn(u64) -> bool) -> bool {
        let holds = (self.first.len() + self.joined.capacity()) as u64;
        if holds <= self.held {
            return true;
        }
        let more = holds - self.held;
        self.held = holds;
        hold(more)
    }

    fn joined(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }

    /// In one piece, with what came after it.
    fn frames(self, last: Option<Frame<Bytes>>) -> VecDeque<Frame<Bytes>> {
        let whole = Some(self.joined()).filter(|whole| !whole.is_empty());
        whole.into_iter().map(Frame::data).chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    /// A body in pieces of this many bytes, each in a buffer of its own.
    struct Pieces {
        size: usize,
        left: u64,
    }

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= self.size as u64;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; self.size])))))
        }
    }

    /// L01, L06
    #[tokio::test]
    async fn a_body_in_pieces_of_one_byte_is_held_as_one_of_its_size() {
        let held = Cell::new(0);
        let hold = |bytes| {
            held.set(held.get() + bytes);
            true
        };
        let body = Pieces { size: 1, left: MEBIBYTE };
        let Ok(Request::Whole(bytes)) = read_request(body, MEBIBYTE, hold).await else {
            panic!("it is as large as it may be");
        };
        assert_eq!(bytes.len() as u64, MEBIBYTE);
        assert!((MEBIBYTE..=2 * MEBIBYTE).contains(&held.get()), "{} bytes are held", held.get());
        let body = Pieces { size: 1, left: MEBIBYTE + 1 };
        assert!(matches!(read_request(body, MEBIBYTE, |_| true).await, Ok(Request::TooLarge)));
    }

    /// L06
    #[tokio::test]
    async fn a_body_that_there_is_no_room_for_is_not_read_on() {
        let room = |bytes_max| {
            let held = Cell::new(0);
            move |bytes| {
                held.set(held.get() + bytes);
                held.get() <= bytes_max
            }
        };
        let body = || Pieces { size: 1024, left: MEBIBYTE };
        assert!(matches!(read_request(body(), MEBIBYTE, room(64 * 1024)).await, Ok(Request::NoRoom)));
        assert!(matches!(read_request(body(), MEBIBYTE, room(2 * MEBIBYTE)).await, Ok(Request::Whole(_))));
        let Ok(Read::Beyond(passed)) = read(body(), MEBIBYTE, room(64 * 1024)).await else {
            panic!("it is passed on");
        };
        let Ok(Read::Whole(whole)) = read(passed, MEBIBYTE, |_| true).await else {
            panic!("nothing of it is lost");
        };
        assert_eq!(whole.len() as u64, MEBIBYTE);
    }
}
