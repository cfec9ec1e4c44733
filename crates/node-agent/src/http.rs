//! The page for Prometheus, and two for the kubelet.

use crate::metrics::Metrics;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Answers on `listener` until it is dropped: `/metrics`, `/healthz`, and `/readyz` once `ready` is set.
pub(crate) async fn serve(listener: TcpListener, metrics: Metrics, ready: Arc<AtomicBool>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the metrics address failed");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let (metrics, ready) = (metrics.clone(), Arc::clone(&ready));
        let service = service_fn(move |request| {
            let answer = answer(&request, &metrics, ready.load(Ordering::Relaxed));
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection to the metrics address ended early");
            }
        });
    }
}

fn answer(request: &Request<Incoming>, metrics: &Metrics, ready: bool) -> Response<Full<Bytes>> {
    let (status, body) = match request.uri().path() {
        "/metrics" => match metrics.page() {
            Ok(page) => (StatusCode::OK, page),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
        },
        "/healthz" => (StatusCode::OK, b"ok".to_vec()),
        "/readyz" if ready => (StatusCode::OK, b"ok".to_vec()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, b"not all objects have been listed yet".to_vec()),
        _ => (StatusCode::NOT_FOUND, Vec::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}
