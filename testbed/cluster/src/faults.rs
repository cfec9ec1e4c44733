//! A proxy that makes a good network and a good object store bad: slow, narrow, broken off, refusing.
//!
//! Bytes are shaped on the way between client and proxy (latency, bandwidth). In [`Mode::Http`] the proxy also takes
//! part in the conversation, so that single requests can fail the way an object store under stress fails them.

use crate::{Error, Result};
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// How much is read at once; small enough for the bandwidth limit to be smooth.
const CHUNK: usize = 16 * 1024;
/// How many chunks may be under way in one direction: the product of a fast link and a long way.
const IN_FLIGHT: usize = 1024;

/// Whether the proxy understands what it passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Any bytes, TLS too: shaping and resets of whole connections.
    Tcp,
    /// Plain HTTP/1.1: also faults of single requests.
    Http,
}

/// How the way to the server behaves. Takes effect at once, also on open connections.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Added to every byte's travel time, each way.
    pub latency: Duration,
    /// Bytes per second of each connection, each way; no limit if absent.
    pub bandwidth: Option<u64>,
}

/// What happens to a request instead of a good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The store says that it is too busy (503 SlowDown); the server never sees the request.
    Unavailable,
    /// The store says that it is full (507 XMinioStorageFull); the server never sees the request.
    Full,
    /// The connection is reset before an answer; the server has carried out the request.
    ResetAfter,
    /// The connection is reset; the server never sees the request.
    ResetBefore,
    /// The answer breaks off after this many bytes of its body, with the connection.
    Truncate(u64),
    /// The answer comes this much later.
    Stall(Duration),
}

/// Which fault each request meets: asked with the request's method, path and running number.
pub type Plan = Box<dyn Fn(&str, &str, u64) -> Option<Fault> + Send + Sync>;

/// A running proxy; dropping it closes the listener and every connection.
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

struct State {
    upstream: SocketAddr,
    mode: Mode,
    shape: Mutex<Shape>,
    plan: Mutex<Plan>,
    requests: AtomicU64,
    faults: AtomicU64,
}

impl std::fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultProxy")
            .field("address", &self.address)
            .field("upstream", &self.state.upstream)
            .finish()
    }
}

impl FaultProxy {
    /// Listens on `address` (port 0 for any) and passes everything on to `upstream`, faithfully until told otherwise.
    ///
    /// Needs a runtime around it, in the network that shall reach the proxy.
    pub async fn start(address: SocketAddr, upstream: SocketAddr, mode: Mode) -> Result<Self> {
        let failed = |problem: io::Error| Error::unexpected(format!("proxy on {address}"), problem);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = Arc::new(State {
            upstream,
            mode,
            shape: Mutex::new(Shape::default()),
            plan: Mutex::new(Box::new(|_, _, _| None)),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept_forever(listener, Arc::clone(&state)));
        Ok(Self { address, state, accepting })
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how the way behaves.
    pub fn shape(&self, shape: Shape) {
        *self.state.shape.lock() = shape;
    }

    /// Changes which faults requests meet; only in [`Mode::Http`].
    pub fn plan(&self, plan: Plan) -> Result<()> {
        if self.state.mode != Mode::Http {
            return Err(Error::Invalid("a proxy of bare connections does not see requests".to_owned()));
        }
        *self.state.plan.lock() = plan;
        Ok(())
    }

    /// How many requests came so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// How many of them met a fault.
    pub fn faults(&self) -> u64 {
        self.state.faults.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept_forever(listener: TcpListener, state: Arc<State>) {
    // Connections end with the set, and the set with this task.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                connections.spawn(serve(client, Arc::clone(&state)));
                while connections.try_join_next().is_some() {}
            }
            // Out of file descriptors, most likely: later calls may succeed.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// One connection. Its errors are those of its two ends, who see them; the proxy has nobody to tell.
async fn serve(mut client: TcpStream, state: Arc<State>) {
    let _ = client.set_nodelay(true);
    let broken = match state.mode {
        Mode::Tcp => match TcpStream::connect(state.upstream).await {
            Ok(mut server) => {
                let _ = server.set_nodelay(true);
                shaped(&mut client, &mut server, &state).await.is_err()
            }
            Err(_) => true,
        },
        Mode::Http => {
            let (mut outer, inner) = tokio::io::duplex(CHUNK * 4);
            let (reset, mut resets) = mpsc::channel(1);
            let answering = hyper::server::conn::http1::Builder::new().serve_connection(
                TokioIo::new(inner),
                hyper::service::service_fn(|request| answer(request, Arc::clone(&state), reset.clone())),
            );
            // Awaited by value: its end closes the inner stream, which the copying then sees.
            let answering = async {
                let _ = answering.await;
            };
            tokio::select! {
                (copied, ()) = async { tokio::join!(shaped(&mut client, &mut outer, &state), answering) } => copied.is_err(),
                _ = resets.recv() => true,
            }
        }
    };
    if broken {
        // Closing with nothing to linger for sends a reset, which is what the peer of a broken connection sees.
        let _ = client.set_zero_linger();
    }
}

/// Copies both ways at once, each way delayed and slowed down.
async fn shaped(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    server: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
) -> io::Result<()> {
    let (client_read, client_write) = tokio::io::split(client);
    let (server_read, server_write) = tokio::io::split(server);
    let there = one_way(client_read, server_write, state);
    let back = one_way(server_read, client_write, state);
    tokio::try_join!(there, back).map(drop)
}

/// Reading runs ahead of writing by the latency, so that a long way does not make a narrow one.
async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let reading = async move {
        let mut free_at = Instant::now();
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = from.read(&mut chunk).await?;
            if read == 0 {
                return Ok(());
            }
            chunk.truncate(read);
            let shape = state.shape.lock().clone();
            if let Some(bandwidth) = shape.bandwidth {
                let nanoseconds = (read as u64).saturating_mul(1_000_000_000) / bandwidth.max(1);
                free_at = free_at.max(Instant::now()) + Duration::from_nanos(nanoseconds);
                sleep_until(free_at).await;
            }
            if sender.send((Instant::now() + shape.latency, chunk)).await.is_err() {
                return Ok::<(), io::Error>(());
            }
        }
    };
    let writing = async move {
        while let Some((due, chunk)) = receiver.recv().await {
            sleep_until(due).await;
            to.write_all(&chunk).await?;
            to.flush().await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(reading, writing).map(drop)
}

type Body = BoxBody<Bytes, io::Error>;

/// Answers one request: by the plan, or by the server.
async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
    reset: mpsc::Sender<()>,
) -> io::Result<Response<Body>> {
    let number = state.requests.fetch_add(1, Ordering::Relaxed);
    let fault = (*state.plan.lock())(request.method().as_str(), request.uri().path(), number);
    if fault.is_some() {
        state.faults.fetch_add(1, Ordering::Relaxed);
    }
    match fault {
        Some(Fault::Unavailable) => {
            receive(request).await;
            return Ok(refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "SlowDown",
                "Please reduce your request rate.",
            ));
        }
        Some(Fault::Full) => {
            receive(request).await;
            let words = "Storage backend has reached its minimum free drive threshold.";
            return Ok(refusal(StatusCode::INSUFFICIENT_STORAGE, "XMinioStorageFull", words));
        }
        Some(Fault::ResetBefore) => return break_off(&reset).await,
        Some(Fault::Stall(delay)) => sleep(delay).await,
        _ => {}
    }
    let response = forward(request, state.upstream).await?;
    match fault {
        Some(Fault::ResetAfter) => {
            // The whole answer first: the server must have finished.
            let _ = response.into_body().collect().await;
            break_off(&reset).await
        }
        Some(Fault::Truncate(keep)) => Ok(response.map(|body| truncated(body, keep, reset))),
        _ => Ok(response.map(|body| body.map_err(io::Error::other).boxed())),
    }
}

async fn break_off(reset: &mpsc::Sender<()>) -> io::Result<Response<Body>> {
    let _ = reset.send(()).await;
    Err(io::ErrorKind::ConnectionReset.into())
}

/// Takes a request to its end: who is refused half way sees a broken connection, not the refusal.
async fn receive(request: Request<Incoming>) {
    let _ = request.into_body().collect().await;
}

fn refusal(status: StatusCode, code: &str, words: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{words}</Message></Error>"
    );
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/xml"));
    response
}

async fn forward(request: Request<Incoming>, upstream: SocketAddr) -> io::Result<Response<Incoming>> {
    let stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(io::Error::other)
}

/// Passes on the first `keep` bytes, then breaks the connection off.
fn truncated(mut body: Incoming, keep: u64, reset: mpsc::Sender<()>) -> Body {
    let (sender, receiver) = mpsc::channel::<io::Result<Frame<Bytes>>>(4);
    tokio::spawn(async move {
        let mut left = keep;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(mut data) = frame.into_data() else { continue };
            let whole = data.len() as u64 <= left;
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left = left.saturating_sub(data.len() as u64);
            if sender.send(Ok(Frame::data(data))).await.is_err() {
                return;
            }
            if !whole {
                // Long enough for what was kept to leave, so that the break is inside the body and not before it.
                sleep(Duration::from_millis(50)).await;
                let _ = reset.send(()).await;
                return;
            }
        }
    });
    let frames = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    StreamBody::new(frames).boxed()
}
