//! How a program of the cluster learns that it is to end.

use tokio::signal::unix::{SignalKind, signal};

/// Comes with the first signal by which containers and people end a program.
pub async fn told_to_stop() {
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(mut terminate), Ok(mut interrupt)] = signals else {
        // Without a way to hear it, the kubelet's second signal has to do.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
