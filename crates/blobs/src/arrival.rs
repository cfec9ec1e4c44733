//! Memory for an answer, taken when the answer begins to arrive instead of when it is asked for.
//!
//! Far stores take long to begin. Whoever sets memory aside for that time has little under way; whoever does not may be
//! flooded. So a caller puts an [`Admission`] around a read, and the stores wait for it before they take in the first byte.
//! What has not been taken in stays with the sender. The caller may hand out the memory itself, and so use it again.

use futures::future::BoxFuture;
use std::sync::Arc;

tokio::task_local! {
    static CURRENT: Arc<dyn Admission>;
}

/// Lets bytes in.
pub trait Admission: Send + Sync {
    /// Waits until there is room for the answer, and gives an empty buffer for it; the store sees to its capacity. A call
    /// that is repeated asks again, and gets the room that it has.
    fn admit(&self) -> BoxFuture<'_, Vec<u8>>;
}

/// Makes `call`, one read of a store, wait for `admission` before it takes bytes in.
pub async fn with_admission<T>(admission: Arc<dyn Admission>, call: impl Future<Output = T>) -> T {
    CURRENT.scope(admission, call).await
}

/// Waits for the admission around the current call, if there is one, and gives the buffer for its answer.
pub(crate) async fn admitted() -> Vec<u8> {
    match CURRENT.try_with(Arc::clone) {
        Ok(admission) => admission.admit().await,
        Err(_) => Vec::new(),
    }
}
