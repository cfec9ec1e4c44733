//! Serves gRPC on Unix sockets.

use futures::{FutureExt, stream};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tonic::transport::server::Router;

/// Why a socket could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The server broke.
    #[error("serving {} failed: {source}", path.display())]
    Serve {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: tonic::transport::Error,
    },
}

/// The path in an endpoint, which may be written as a path or as `unix://path`.
pub fn socket_path(endpoint: &str) -> PathBuf {
    endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint).into()
}

/// How long calls that are under way may take to end once the server is to stop.
const GRACE: Duration = Duration::from_secs(2);

/// Serves `router` on a socket until `stop` completes; a socket left by an earlier process is replaced.
pub async fn serve<S>(path: &Path, router: Router, stop: S) -> Result<(), ServeError>
where
    S: Future<Output = ()> + Clone,
{
    let listen = |source| ServeError::Listen { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(listen)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(listen(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(listen)?;
    tracing::info!(socket = %path.display(), "listening");
    let connections = stream::unfold(listener, |listener| async {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let overdue = stop.clone().then(|()| tokio::time::sleep(GRACE));
    let served = tokio::select! {
        served = router.serve_with_incoming_shutdown(connections, stop) => served,
        () = overdue => Ok(()),
    };
    // Without the socket the kubelet knows that the driver is gone.
    let _ = std::fs::remove_file(path);
    served.map_err(|source| ServeError::Serve { path: path.to_owned(), source })
}
