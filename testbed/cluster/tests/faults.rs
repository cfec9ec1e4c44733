//! The proxy makes a good connection bad in each of the ways it promises.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use lifeboat_testbed::faults::{Fault, FaultProxy, Mode, Shape};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BODY: usize = 100_000;

/// A server that answers every request with the same body and closes.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                // The client may be gone: that is what some tests are about.
                let _ = stream.write_all(&vec![b'x'; BODY]).await;
            });
        }
    });
    address
}

async fn proxy(mode: Mode) -> FaultProxy {
    FaultProxy::start("127.0.0.1:0".parse().unwrap(), server().await, mode).await.unwrap()
}

async fn get(proxy: &FaultProxy) -> reqwest::Result<(u16, usize)> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
    let answer = client.get(format!("http://{}/bucket/key", proxy.address())).send().await?;
    let status = answer.status().as_u16();
    Ok((status, answer.bytes().await?.len()))
}

#[tokio::test]
async fn without_faults_everything_passes_in_both_modes() {
    for mode in [Mode::Tcp, Mode::Http] {
        let proxy = proxy(mode).await;
        assert_eq!(get(&proxy).await.unwrap(), (200, BODY));
        assert_eq!(proxy.faults(), 0);
    }
}

#[tokio::test]
async fn the_plan_decides_by_method_path_and_number() {
    let proxy = proxy(Mode::Http).await;
    proxy
        .plan(Box::new(|method, path, number| {
            assert_eq!((method, path), ("GET", "/bucket/key"));
            match number {
                1 => Some(Fault::Unavailable),
                2 => Some(Fault::Full),
                _ => None,
            }
        }))
        .unwrap();
    assert_eq!(get(&proxy).await.unwrap().0, 200);
    assert_eq!(get(&proxy).await.unwrap().0, 503);
    assert_eq!(get(&proxy).await.unwrap().0, 507);
    assert_eq!(get(&proxy).await.unwrap().0, 200);
    assert_eq!((proxy.requests(), proxy.faults()), (4, 2));
}

#[tokio::test]
async fn resets_and_truncation_reach_the_client_as_broken_connections() {
    let proxy = proxy(Mode::Http).await;
    for fault in [Fault::ResetBefore, Fault::ResetAfter, Fault::Truncate(1000)] {
        proxy.plan(Box::new(move |_, _, _| Some(fault))).unwrap();
        let problem = get(&proxy).await.unwrap_err();
        assert!(!problem.is_timeout(), "{fault:?}: {problem:?}");
        assert_eq!(
            problem.is_body() || problem.is_decode(),
            matches!(fault, Fault::Truncate(_)),
            "{problem:?}"
        );
    }
    assert_eq!(proxy.faults(), 3);
}

#[tokio::test]
async fn latency_and_bandwidth_take_at_least_their_time() {
    let proxy = proxy(Mode::Tcp).await;
    proxy.shape(Shape { latency: Duration::from_millis(100), bandwidth: None });
    let start = Instant::now();
    get(&proxy).await.unwrap();
    // There and back again; a lower bound only, as a busy machine may take any time.
    assert!(start.elapsed() >= Duration::from_millis(200));
    proxy.shape(Shape { latency: Duration::ZERO, bandwidth: Some(BODY as u64 * 2) });
    let start = Instant::now();
    get(&proxy).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(500));
}

#[tokio::test]
async fn a_dropped_proxy_is_gone() {
    let proxy = proxy(Mode::Tcp).await;
    let address = proxy.address();
    drop(proxy);
    for _ in 0..100 {
        if TcpStream::connect(address).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the listener is still there");
}
