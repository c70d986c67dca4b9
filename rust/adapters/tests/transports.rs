//! Both ways to send and receive do the same: each case runs over epoll and over io_uring, against
//! a plain server in a thread.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_adapters::drivers::epoll::Epoll;
use bedplate_adapters::drivers::uring::Uring;
use bedplate_core::load::{Completion, Transport};
use bedplate_core::seam::Address;
use tempfile::TempDir;

/// More than a Unix socket holds, and more than all receive buffers of a small ring.
const LARGE: usize = 4 << 20;

trait Make: Transport + Sized {
    fn make(address: &Address, connections: usize) -> Self;
}

impl Make for Epoll {
    fn make(address: &Address, connections: usize) -> Self {
        Self::new(address, connections).expect("this kernel has epoll")
    }
}

impl Make for Uring {
    fn make(address: &Address, connections: usize) -> Self {
        Self::new(address, connections).expect("this kernel has io_uring and allows it")
    }
}

/// The directory of a socket, the server that listens there, and the client's side.
fn pair<T: Make>(
    connections: usize,
    serve: impl FnOnce(UnixListener) + Send + 'static,
) -> (TempDir, JoinHandle<()>, T) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || serve(listener));
    let transport = T::make(&Address::Unix(path), connections);
    (directory, server, transport)
}

/// Everything that happens until `done`, in order; panics after ten seconds.
fn until<T: Transport>(
    transport: &mut T,
    mut done: impl FnMut(&mut T, &Completion) -> bool,
) -> Vec<Completion> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut all, mut completions) = (Vec::new(), Vec::new());
    loop {
        assert!(Instant::now() < deadline, "nothing more came after {all:?}");
        transport.wait(Instant::now() + Duration::from_millis(100), &mut completions);
        let mut over = false;
        for completion in completions.drain(..) {
            over |= done(transport, &completion);
            all.push(completion);
        }
        if over {
            return all;
        }
    }
}

/// Takes what was received.
fn take<T: Transport>(transport: &mut T, connection: usize) -> Vec<u8> {
    let bytes = transport.received(connection).to_vec();
    transport.consume(connection, bytes.len());
    bytes
}

fn connect<T: Transport>(transport: &mut T, connection: usize) {
    transport.connect(connection);
    until(transport, |_, completion| *completion == Completion::Connected(connection));
}

fn echo(mut stream: UnixStream) {
    let mut buffer = vec![0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Bytes that tell their place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

/// Runs a case over both.
macro_rules! over_both {
    ($($case:ident),* $(,)?) => {
        mod epoll {
            $(#[test] fn $case() { super::$case::<super::Epoll>(); })*
        }
        mod uring {
            $(#[test] fn $case() { super::$case::<super::Uring>(); })*
        }
    };
}

over_both!(
    many_connections_get_their_own_bytes,
    a_large_statement_and_its_reply_arrive_whole,
    submits_keep_their_order_behind_a_full_socket,
    the_end_is_told_after_the_last_bytes,
    nothing_of_a_closed_connection_is_told,
    what_was_submitted_before_a_close_arrives,
    nobody_listens,
    a_wait_ends_in_time,
);

fn many_connections_get_their_own_bytes<T: Make>() {
    const CONNECTIONS: usize = 300;
    const TURNS: usize = 20;
    let (_directory, server, mut transport) = pair::<T>(CONNECTIONS, |listener| {
        let serving: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (stream, _) = listener.accept().unwrap();
                std::thread::spawn(|| echo(stream))
            })
            .collect();
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let text = |connection: usize, turn: usize| format!("{connection}:{turn};").into_bytes();
    // Some at a time, for the server accepts no more.
    for first in (0..CONNECTIONS).step_by(50) {
        (first..first + 50).for_each(|connection| transport.connect(connection));
        let mut connected = 0;
        until(&mut transport, |_, completion| {
            connected += usize::from(matches!(completion, Completion::Connected(_)));
            connected == 50
        });
    }
    let mut turns = [0; CONNECTIONS];
    let mut seen = vec![Vec::new(); CONNECTIONS];
    (0..CONNECTIONS).for_each(|connection| transport.submit(connection, &text(connection, 0)));
    let mut left = CONNECTIONS;
    until(&mut transport, |transport, completion| {
        let &Completion::Received(connection) = completion else { panic!("{completion:?}") };
        seen[connection].extend(take(transport, connection));
        if seen[connection] == text(connection, turns[connection]) {
            seen[connection].clear();
            turns[connection] += 1;
            if turns[connection] < TURNS {
                transport.submit(connection, &text(connection, turns[connection]));
            } else {
                left -= 1;
            }
        }
        left == 0
    });
    assert_eq!(turns, [TURNS; CONNECTIONS]);
    (0..CONNECTIONS).for_each(|connection| transport.close(connection));
    server.join().unwrap();
}

fn a_large_statement_and_its_reply_arrive_whole<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(2, |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        // Read all before answering, so that each side fills its socket in turn.
        let mut bytes = vec![0; LARGE];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes == pattern(LARGE), "sent bytes differ");
        bytes.reverse();
        stream.write_all(&bytes).unwrap();
    });
    connect(&mut transport, 1);
    transport.submit(1, &pattern(LARGE));
    let mut seen = Vec::new();
    until(&mut transport, |transport, completion| {
        assert_eq!(*completion, Completion::Received(1));
        seen.extend(take(transport, 1));
        seen.len() == LARGE
    });
    seen.reverse();
    assert!(seen == pattern(LARGE), "received bytes differ");
    server.join().unwrap();
}

fn submits_keep_their_order_behind_a_full_socket<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(1, |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        // The client fills the socket meanwhile.
        std::thread::sleep(Duration::from_millis(200));
        let mut bytes = vec![0; LARGE];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes == pattern(LARGE), "sent bytes differ");
        stream.write_all(b"all").unwrap();
    });
    connect(&mut transport, 0);
    // Pieces below and above what is sent at once, several in one go.
    let mut rest = pattern(LARGE);
    for length in [10, 1000, 50_000, 70_000, 300_000, 5, 200_000, 1_000_000].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let after = rest.split_off(length.min(rest.len()));
        transport.submit(0, &rest);
        rest = after;
    }
    let mut seen = Vec::new();
    until(&mut transport, |transport, completion| {
        assert_eq!(*completion, Completion::Received(0));
        seen.extend(take(transport, 0));
        seen == b"all"
    });
    server.join().unwrap();
}

fn the_end_is_told_after_the_last_bytes<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(1, |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"FATAL: going away").unwrap();
    });
    connect(&mut transport, 0);
    server.join().unwrap();
    let mut seen = Vec::new();
    let all = until(&mut transport, |transport, completion| {
        if *completion == Completion::Received(0) {
            seen.extend(take(transport, 0));
        }
        matches!(completion, Completion::Closed(..))
    });
    assert_eq!(seen, b"FATAL: going away");
    let reason = "the server closed the connection".to_owned();
    assert_eq!(all.last(), Some(&Completion::Closed(0, reason)));
}

fn nothing_of_a_closed_connection_is_told<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(1, |listener| {
        let (mut first, _) = listener.accept().unwrap();
        first.write_all(b"old").unwrap();
        let (mut second, _) = listener.accept().unwrap();
        // The first one's bytes and end are in the client's kernel now.
        drop(first);
        second.write_all(b"new").unwrap();
        echo(second);
    });
    connect(&mut transport, 0);
    std::thread::sleep(Duration::from_millis(50));
    transport.close(0);
    assert_eq!(transport.received(0), b"");
    transport.connect(0);
    let mut seen = Vec::new();
    let all = until(&mut transport, |transport, completion| {
        if *completion == Completion::Received(0) {
            seen.extend(take(transport, 0));
        }
        seen.len() >= 3
    });
    assert_eq!(seen, b"new");
    assert_eq!(all, [Completion::Connected(0), Completion::Received(0)]);
    transport.close(0);
    server.join().unwrap();
}

fn what_was_submitted_before_a_close_arrives<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(1, |listener| {
        for _ in 0..100 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"hello, and goodbye");
        }
    });
    for _ in 0..100 {
        connect(&mut transport, 0);
        transport.submit(0, b"hello, ");
        transport.submit(0, b"and goodbye");
        transport.close(0);
    }
    let mut completions = Vec::new();
    transport.wait(Instant::now() + Duration::from_millis(50), &mut completions);
    assert_eq!(completions, []);
    server.join().unwrap();
}

fn nobody_listens<T: Make>() {
    let mut transport = T::make(&Address::Unix(PathBuf::from("/nonexistent/socket")), 1);
    transport.connect(0);
    // Has no connection to go to.
    transport.submit(0, b"lost");
    let all = until(&mut transport, |_, completion| matches!(completion, Completion::Closed(..)));
    let reason = "No such file or directory (os error 2)".to_owned();
    assert_eq!(all, [Completion::Closed(0, reason)]);
}

fn a_wait_ends_in_time<T: Make>() {
    let (_directory, server, mut transport) = pair::<T>(1, |listener| {
        echo(listener.accept().unwrap().0);
    });
    connect(&mut transport, 0);
    let (before, mut completions) = (Instant::now(), Vec::new());
    transport.wait(before + Duration::from_millis(30), &mut completions);
    assert!(before.elapsed() >= Duration::from_millis(29));
    transport.wait(before, &mut completions);
    assert_eq!(completions, []);
    transport.close(0);
    server.join().unwrap();
}
