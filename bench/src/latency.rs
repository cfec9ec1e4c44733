//! A long way to a server nearby: passes connections on, and every byte arrives later.

use anyhow::{Context, Result};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How much is passed on at once, if there is so much. Large, because the proxy shares the processors with what is measured.
const CHUNK: usize = 512 << 10;
/// How many chunks may be under way each way, so that a long way does not make a narrow one.
const IN_FLIGHT: usize = 256;

/// A proxy that adds half of a round trip each way; it lives as long as the process.
#[derive(Debug)]
pub struct LongWay {
    address: SocketAddr,
}

impl LongWay {
    /// Listens on a port of loopback and passes everything on to `upstream`.
    pub fn to(upstream: &str, round_trip: Duration) -> Result<LongWay> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen on loopback")?;
        let address = listener.local_addr()?;
        let upstream: SocketAddr = upstream.parse().with_context(|| format!("parse {upstream}"))?;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || pass_on(client, upstream, round_trip));
            }
        });
        Ok(LongWay { address })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

/// One connection. Its errors are those of its two ends, who see them; the proxy has nobody to tell.
fn pass_on(client: TcpStream, upstream: SocketAddr, round_trip: Duration) {
    // Our kernel greeted the client at once; over a long way that takes a round trip, too.
    thread::sleep(round_trip);
    let Ok(server) = TcpStream::connect(upstream) else { return };
    let halves = (client.set_nodelay(true), server.set_nodelay(true), client.try_clone(), server.try_clone());
    if let (Ok(()), Ok(()), Ok(client_again), Ok(server_again)) = halves {
        one_way(client, server, round_trip / 2);
        one_way(server_again, client_again, round_trip / 2);
    }
}

/// Holds bytes that are under way. The kernel moves pages from a connection into it, and out of it into another, and
/// copies nothing.
struct Pipe {
    outlet: OwnedFd,
    inlet: OwnedFd,
}

impl Pipe {
    fn new() -> rustix::io::Result<Pipe> {
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Pipe { outlet, inlet })
    }
}

/// Moves up to `most` bytes, and waits until there is one; 0 is the end.
fn move_bytes(from: impl AsFd, to: impl AsFd, most: usize) -> rustix::io::Result<usize> {
    retry_on_intr(|| splice(&from, None, &to, None, most, SpliceFlags::MOVE))
}

/// Pipes go round between the thread that fills them and the one that empties them.
fn one_way(from: TcpStream, to: TcpStream, delay: Duration) {
    let (full, filled) = mpsc::sync_channel::<(Instant, Pipe, usize)>(IN_FLIGHT);
    let (empty, emptied) = mpsc::channel::<Pipe>();
    thread::spawn(move || {
        loop {
            let Ok(pipe) = emptied.try_recv().or_else(|_| Pipe::new()) else { break };
            let Ok(length @ 1..) = move_bytes(&from, &pipe.inlet, CHUNK) else { break };
            if full.send((Instant::now() + delay, pipe, length)).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        'passing: for (due, pipe, length) in filled {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut left = length;
            while left > 0 {
                let Ok(moved @ 1..) = move_bytes(&pipe.outlet, &to, left) else { break 'passing };
                left -= moved;
            }
            // If nothing comes any more, nobody wants it back.
            let _ = empty.send(pipe);
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn what_is_sent_arrives_both_ways_and_not_before_its_time() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = LongWay::to(&server.local_addr().unwrap().to_string(), Duration::from_millis(40)).unwrap();
        thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut bytes = Vec::new();
            connection.read_to_end(&mut bytes).unwrap();
            connection.write_all(&bytes).unwrap();
        });
        let sent: Vec<u8> = (0..3 * CHUNK).map(|number| number as u8).collect();
        let started = Instant::now();
        let mut client = TcpStream::connect(way.address()).unwrap();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(sent == received);
        assert!(started.elapsed() >= Duration::from_millis(80));
    }
}
