//! A transport over epoll: one poll for all connections of a thread, and one receive and one send a
//! statement.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bedplate_core::load::{Completion, Transport};
use bedplate_core::seam::Address;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::socket::{self, Inbox};

/// Room that is offered to each receive; it grows for a connection that needs more.
const RECEIVE_BYTES: usize = 4096;
/// Events taken from one poll.
const EVENTS_AT_ONCE: usize = 256;

/// Connections of one thread, all to one server.
pub struct Epoll {
    poll: OwnedFd,
    address: Address,
    connections: Vec<Connection>,
    events: Vec<epoll::Event>,
    /// Completions that a call other than `wait` found.
    early: Vec<Completion>,
}

#[derive(Default)]
struct Connection {
    socket: Option<OwnedFd>,
    inbox: Inbox,
    /// What a full socket has not taken yet.
    unsent: Vec<u8>,
}

impl Epoll {
    /// Room for `connections` connections to `address`.
    ///
    /// # Errors
    /// When the kernel gives no epoll instance.
    pub fn new(address: &Address, connections: usize) -> io::Result<Self> {
        Ok(Self {
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            address: address.clone(),
            connections: (0..connections).map(|_| Connection::default()).collect(),
            events: Vec::with_capacity(EVENTS_AT_ONCE),
            early: Vec::new(),
        })
    }

    fn open(&self, connection: usize) -> io::Result<OwnedFd> {
        let socket = socket::connect(&self.address)?;
        let data = epoll::EventData::new_u64(connection as u64);
        epoll::add(&self.poll, &socket, data, epoll::EventFlags::IN)?;
        Ok(socket)
    }

    /// Sends as much as the socket takes; keeps the rest and asks to be told when there is room.
    fn send(&mut self, connection: usize, bytes: &[u8]) -> io::Result<()> {
        let state = &mut self.connections[connection];
        let Some(socket) = &state.socket else { return Ok(()) };
        if !state.unsent.is_empty() {
            state.unsent.extend_from_slice(bytes);
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match send(socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !rest.is_empty() {
            state.unsent.extend_from_slice(rest);
            let data = epoll::EventData::new_u64(connection as u64);
            epoll::modify(
                &self.poll,
                socket,
                data,
                epoll::EventFlags::IN | epoll::EventFlags::OUT,
            )?;
        }
        Ok(())
    }

    fn send_unsent(&mut self, connection: usize) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.connections[connection].unsent);
        self.send(connection, &unsent)?;
        let state = &self.connections[connection];
        if let (true, Some(socket)) = (state.unsent.is_empty(), &state.socket) {
            let data = epoll::EventData::new_u64(connection as u64);
            epoll::modify(&self.poll, socket, data, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Receives once; false when nothing was there.
    fn receive(&mut self, connection: usize) -> io::Result<bool> {
        let state = &mut self.connections[connection];
        let Some(socket) = &state.socket else { return Ok(false) };
        match recv(socket, state.inbox.room(RECEIVE_BYTES), RecvFlags::empty()) {
            Ok((0, _)) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            Ok((count, _)) => {
                state.inbox.filled(count);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn fail(&mut self, connection: usize, error: &io::Error) -> Completion {
        self.close(connection);
        Completion::Closed(connection, error.to_string())
    }
}

impl Transport for Epoll {
    fn connect(&mut self, connection: usize) {
        let completion = match self.open(connection) {
            Ok(socket) => {
                self.connections[connection].socket = Some(socket);
                Completion::Connected(connection)
            }
            Err(error) => Completion::Closed(connection, error.to_string()),
        };
        self.early.push(completion);
    }

    fn submit(&mut self, connection: usize, bytes: &[u8]) {
        if let Err(error) = self.send(connection, bytes) {
            let completion = self.fail(connection, &error);
            self.early.push(completion);
        }
    }

    fn wait(&mut self, until: Instant, completions: &mut Vec<Completion>) {
        if !self.early.is_empty() {
            completions.append(&mut self.early);
            return;
        }
        let timeout = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                // The poll itself is of no use: every connection is lost with it.
                for connection in 0..self.connections.len() {
                    if self.connections[connection].socket.is_some() {
                        completions.push(self.fail(connection, &error.into()));
                    }
                }
            }
        }
        for event in &events {
            let connection = event.data.u64() as usize;
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT)
                && let Err(error) = self.send_unsent(connection)
            {
                completions.push(self.fail(connection, &error));
                continue;
            }
            if flags
                .intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            {
                match self.receive(connection) {
                    Ok(true) => completions.push(Completion::Received(connection)),
                    Ok(false) => {}
                    Err(error) => completions.push(self.fail(connection, &error)),
                }
            }
        }
        self.events = events;
    }

    fn received(&self, connection: usize) -> &[u8] {
        self.connections[connection].inbox.bytes()
    }

    fn consume(&mut self, connection: usize, count: usize) {
        self.connections[connection].inbox.consume(count);
    }

    fn close(&mut self, connection: usize) {
        // Closing the descriptor takes it out of the poll. The buffer stays for the next connection.
        let state = &mut self.connections[connection];
        state.socket = None;
        state.inbox.clear();
        state.unsent.clear();
        self.early.retain(|completion| completion.connection() != connection);
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn cpu_time(&self) -> Duration {
        socket::thread_cpu_time()
    }
}
