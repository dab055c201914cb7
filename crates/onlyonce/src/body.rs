//! Bodies: held whole, passed on as they come, or both.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};

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

/// What reading a body came to.
pub(crate) enum Read<B> {
    /// All of it, within the bound.
    Whole(Bytes),
    /// More than the bound, or with trailers: what was read is in front of what is to come.
    Beyond(Body<B>),
}

/// Reads a body up to `bytes_max`. A body with trailers is passed on: bytes alone would not be the whole of it.
pub(crate) async fn read<B>(mut body: B, bytes_max: u64) -> Result<Read<B>, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max {
        return Ok(Read::Beyond(Body::passed(body)));
    }
    let mut pieces = Pieces::default();
    while let Some(frame) = next(&mut body).await? {
        match frame.into_data() {
            Ok(data) => pieces.push(data),
            Err(trailers) => return Ok(Read::Beyond(Body::behind(pieces.frames(Some(trailers)), body))),
        }
        if pieces.length > bytes_max {
            return Ok(Read::Beyond(Body::behind(pieces.frames(None), body)));
        }
    }
    Ok(Read::Whole(pieces.joined()))
}

/// Reads a request's body; none where it is above `bytes_max`. Its trailers are dropped, as any recipient may (RFC 9110,
/// 6.5.1): what runs is what was fingerprinted.
pub(crate) async fn read_request<B>(mut body: B, bytes_max: u64) -> Result<Option<Bytes>, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max {
        return Ok(None);
    }
    let mut pieces = Pieces::default();
    while let Some(frame) = next(&mut body).await? {
        let Ok(data) = frame.into_data() else { continue };
        pieces.push(data);
        if pieces.length > bytes_max {
            return Ok(None);
        }
    }
    Ok(Some(pieces.joined()))
}

async fn next<B: HttpBody<Data = Bytes> + Unpin>(body: &mut B) -> Result<Option<Frame<Bytes>>, B::Error> {
    std::future::poll_fn(|cx| Poll::Ready(ready!(Pin::new(&mut *body).poll_frame(cx)).transpose())).await
}

/// What has been read of a body. Most are one piece, which needs no list.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    more: Vec<Bytes>,
    length: u64,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        self.length += piece.len() as u64;
        if self.first.is_empty() {
            self.first = piece;
        } else {
            self.more.push(piece);
        }
    }

    /// One piece is passed on as it is; several are copied together once.
    fn joined(self) -> Bytes {
        if self.more.is_empty() {
            return self.first;
        }
        let length = self.first.len() + self.more.iter().map(Bytes::len).sum::<usize>();
        let mut bytes = BytesMut::with_capacity(length);
        for piece in std::iter::once(&self.first).chain(&self.more) {
            bytes.extend_from_slice(piece);
        }
        bytes.freeze()
    }

    /// As they came, with what came after them.
    fn frames(self, last: Option<Frame<Bytes>>) -> VecDeque<Frame<Bytes>> {
        let first = Some(self.first).filter(|first| !first.is_empty());
        first.into_iter().chain(self.more).map(Frame::data).chain(last).collect()
    }
}
