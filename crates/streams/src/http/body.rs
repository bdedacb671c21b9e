//! The body of an answer: a few bytes, or a stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::clients::Permit;
use super::session::LaneInUse;
use super::{Activity, HttpState};
use crate::service::Stream;

/// What is sent.
pub enum Body {
    /// These bytes.
    Short(Bytes),
    /// What a stream gives, as it comes.
    Stream {
        /// What comes before it.
        front: Bytes,
        /// The stream, closed when the answer is dropped.
        held: Held,
        /// Bytes that are still to come.
        left: u64,
        /// Noted whenever the client has taken something.
        activity: Arc<Activity>,
        /// For its clock.
        shared: Arc<HttpState>,
    },
}

/// A stream, and the client's share of all. Of a session it goes back there at the end.
pub struct Held(Option<(Box<Stream>, Permit, Option<LaneInUse>)>);

impl Held {
    pub fn new(stream: Stream, permit: Permit, lane: Option<LaneInUse>) -> Self {
        Self(Some((Box::new(stream), permit, lane)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((stream, permit, Some(lane))) = self.0.take() {
            lane.give_back(*stream, permit);
        }
    }
}

/// A stream that broke off; the connection is closed, so that the client sees it.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off: {0}")]
pub struct Broken(String);

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Body::Short(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Short(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Stream { left: 0, .. } => Poll::Ready(None),
            Body::Stream { front, left, activity, shared, .. } if !front.is_empty() => {
                let bytes = std::mem::take(front);
                activity.took(shared.begun, Some(bytes.len() as u64));
                *left = left.saturating_sub(bytes.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Stream { held, left, activity, shared, .. } => {
                let Some((stream, ..)) = &mut held.0 else { return Poll::Ready(None) };
                // Being asked for more means that the client has taken what it was sent.
                let next = stream.poll_read(context);
                let bytes = match &next {
                    Poll::Ready(Some(Ok(bytes))) => Some(bytes.len() as u64),
                    _ => None,
                };
                activity.took(shared.begun, bytes);
                match next {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Some(Ok(bytes))) => {
                        *left = left.saturating_sub(bytes.len() as u64);
                        Poll::Ready(Some(Ok(Frame::data(bytes))))
                    }
                    Poll::Ready(Some(Err(error))) => {
                        Poll::Ready(Some(Err(Broken(error.to_string()))))
                    }
                    Poll::Ready(None) => {
                        Poll::Ready(Some(Err(Broken("the file has become shorter".into()))))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Short(bytes) => bytes.is_empty(),
            Body::Stream { left, .. } => *left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Body::Short(bytes) => bytes.len() as u64,
            Body::Stream { left, .. } => *left,
        })
    }
}
