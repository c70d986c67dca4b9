//! What the transports share: a connection to the server, what has come from it, the thread's CPU time.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bedplate_core::seam::Address;
use rustix::time::{ClockId, clock_gettime};

/// A connection to the server that does not wait in sends and receives.
///
/// # Errors
/// When nobody listens there, or the machine has no more sockets.
pub(super) fn connect(address: &Address) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
    }
}

/// Bytes received and not consumed yet. Its memory is kept for the next ones.
#[derive(Default)]
pub(super) struct Inbox {
    memory: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Room for `count` more bytes; [`Inbox::filled`] says how many were put there.
    pub(super) fn room(&mut self, count: usize) -> &mut [u8] {
        if self.start == self.end {
            self.clear();
        }
        if self.memory.len() < self.end + count {
            self.memory.resize(self.end + count, 0);
        }
        &mut self.memory[self.end..self.end + count]
    }

    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
    }
}

/// CPU time that the calling thread has used.
pub(super) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
