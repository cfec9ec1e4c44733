//! Doing something around each step of a listing, without holding anything while the consumer works.

use crate::{BlobMetadata, BlobStream, Result};
use futures::FutureExt;
use futures::stream::{self, StreamExt};

/// Enough that the price of a step is small beside its blobs.
const MOST: usize = 1000;

/// What one step of a listing delivered: blobs that were ready together, perhaps an error at the end.
pub(super) type Step = Vec<Result<BlobMetadata>>;

/// Waits for the next blob and takes those that are ready with it. Empty at the end of the listing.
///
/// An error ends the step, so that the caller can decide whether to poll again.
pub(super) async fn next_step(listing: &mut BlobStream<'_>) -> Step {
    let mut step = Vec::new();
    let mut next = listing.next().await;
    while let Some(blob) = next {
        let last = blob.is_err() || step.len() + 1 == MOST;
        step.push(blob);
        if last {
            break;
        }
        // An end or a wait is met again by the next call.
        next = listing.next().now_or_never().flatten();
    }
    step
}

/// The listing taken by `step`, which gets it, awaits its [`next_step`] and gives it back.
pub(super) fn in_steps<'a, F, Fut>(listing: BlobStream<'a>, step: F) -> BlobStream<'a>
where
    F: Fn(BlobStream<'a>) -> Fut + Send + 'a,
    Fut: Future<Output = (Step, BlobStream<'a>)> + Send + 'a,
{
    // A step that met the end leaves it to the next one to meet it again.
    let listing = listing.fuse().boxed();
    let steps = stream::unfold((listing, step), |(listing, step)| async move {
        let (blobs, listing) = step(listing).await;
        (!blobs.is_empty()).then(|| (stream::iter(blobs), (listing, step)))
    });
    steps.flatten().boxed()
}
