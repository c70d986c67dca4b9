//! A transport over io_uring: one system call sends the statements of all clients that have come to
//! their next one, waits, and takes in what has arrived.
//!
//! Why its memory is sound: the kernel touches memory of ours only inside a call that enters the
//! ring. A send is made with `MSG_DONTWAIT`, so it has ended when the call that handed it over
//! returns; receives are made by the task itself while it is in such a call
//! (`IORING_SETUP_DEFER_TASKRUN`). Outside of those calls `outgoing` and `pool` are ours alone. Both
//! are freed after the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bedplate_core::load::{Completion, Transport};
use bedplate_core::seam::Address;
use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::net::{Shutdown, shutdown};

use super::socket::{self, Inbox};

/// Operations that can be queued before they must be handed over.
const QUEUE_LENGTH: u32 = 256;
/// Bytes to send that can be queued before they must be handed over.
const OUTGOING_BYTES: usize = 64 * 1024;
/// Size of a receive buffer, which is also the alignment that the kernel asks of a ring of buffers.
const BUFFER_BYTES: usize = 4096;
/// Most receive buffers of a thread; when all are full, receives go on when some are given back.
const BUFFERS_MOST: usize = 1024;
/// The group of buffers of a ring's receives.
const GROUP: u16 = 0;

/// Whether this machine has and allows what [`Uring`] needs.
///
/// # Errors
/// The kernel's reason.
pub fn try_here() -> io::Result<()> {
    Uring::new(&Address::Unix(PathBuf::new()), 1).map(drop)
}

/// Connections of one thread, all to one server. Used by the thread that made it.
pub struct Uring {
    ring: IoUring,
    /// Whether a wait can be kept out of the machine's iowait time.
    flags: EnterFlags,
    pool: Pool,
    address: Address,
    connections: Vec<Connection>,
    /// Bytes of the queued sends. It does not move while a send is queued.
    outgoing: Vec<u8>,
    sends: Vec<Sending>,
    /// Number of the batch of sends that is being queued.
    batch: u64,
    /// What completions led to, queued by the next `wait`.
    follow_ups: Vec<FollowUp>,
    /// Sockets of ended connections, which queued operations may still name.
    retired: Vec<OwnedFd>,
    /// Completions found outside of `wait`.
    ready: Vec<Completion>,
    /// Connections that have come to an end; told after what they received.
    ended: Vec<Completion>,
}

#[derive(Default)]
struct Connection {
    socket: Option<OwnedFd>,
    /// Tells operations on this socket from those on the connection's former ones.
    generation: u32,
    inbox: Inbox,
    /// Whether a completion that was not looked at yet says that bytes are in the inbox.
    announced: bool,
    /// The batch that its last send belongs to: a send must not overtake the rest of one before.
    batch: u64,
    /// What a full socket has not taken yet.
    unsent: Vec<u8>,
}

/// A queued send of `outgoing[start..end]`.
struct Sending {
    connection: u32,
    generation: u32,
    start: usize,
    end: usize,
}

/// What is to be done for a connection, if it is still the same.
struct FollowUp {
    connection: u32,
    generation: u32,
    what: What,
}

enum What {
    /// Receive (again).
    Receive,
    /// Ask to be told when there is room in the socket.
    AwaitRoom,
    /// Send what the socket did not take before.
    SendRest,
}

/// What a finished operation was; it travels through the kernel as the operation's user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Receives of a connection, until they are told to have ended.
    Receive { connection: u32, generation: u32 },
    /// The send of that index; success is not told.
    Send { index: u32 },
    /// Waiting for room in a connection's full socket.
    Room { connection: u32, generation: u32 },
}

/// Generations that the user data can tell apart; a socket's last operation has ended long before
/// the number comes round.
const GENERATIONS: u32 = 1 << 30;

impl From<Operation> for u64 {
    fn from(operation: Operation) -> Self {
        let (kind, generation, index) = match operation {
            Operation::Receive { connection, generation } => (0, generation, connection),
            Operation::Send { index } => (1, 0, index),
            Operation::Room { connection, generation } => (2, generation, connection),
        };
        kind << 62 | Self::from(generation) << 32 | Self::from(index)
    }
}

impl From<u64> for Operation {
    fn from(data: u64) -> Self {
        let index = data as u32;
        let generation = (data >> 32) as u32 % GENERATIONS;
        match data >> 62 {
            0 => Self::Receive { connection: index, generation },
            1 => Self::Send { index },
            _ => Self::Room { connection: index, generation },
        }
    }
}

impl Uring {
    /// Room for `connections` connections to `address`.
    ///
    /// # Errors
    /// When the kernel is older than this needs (Linux 6.1), or does not allow io_uring.
    pub fn new(address: &Address, connections: usize) -> io::Result<Self> {
        let buffers = connections.clamp(16, BUFFERS_MOST).next_power_of_two() as u16;
        // So many completions can be there before they are taken in: none is lost or late.
        let completions = QUEUE_LENGTH + u32::from(buffers) + connections as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(completions.next_power_of_two())
            .build(QUEUE_LENGTH)?;
        let pool = Pool::new(&ring, buffers)?;
        let flags = if ring.params().is_feature_no_iowait() {
            EnterFlags::NO_IOWAIT
        } else {
            EnterFlags::empty()
        };
        Ok(Self {
            ring,
            flags,
            pool,
            address: address.clone(),
            connections: (0..connections).map(|_| Connection::default()).collect(),
            outgoing: Vec::with_capacity(OUTGOING_BYTES),
            sends: Vec::with_capacity(QUEUE_LENGTH as usize),
            batch: 1,
            follow_ups: Vec::new(),
            retired: Vec::new(),
            ready: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Queues an operation. What it refers to lives until it has ended, see the top of the module.
    fn queue(&mut self, entry: &squeue::Entry) {
        if self.ring.submission().is_full() {
            self.hand_over();
        }
        #[expect(unsafe_code, reason = "the kernel is given addresses")]
        // SAFETY: the addresses are those of `outgoing`, which does not move until the operation
        // has been handed over; a send has ended then, other operations have no address.
        let queued = unsafe { self.ring.submission().push(entry) };
        debug_assert!(queued.is_ok() || self.connections.iter().all(|c| c.socket.is_none()));
    }

    fn queue_send(&mut self, connection: u32, bytes: &[u8]) {
        let index = connection as usize;
        if self.connections[index].batch == self.batch
            || self.outgoing.len() + bytes.len() > self.outgoing.capacity()
            || self.ring.submission().is_full()
        {
            self.hand_over();
        }
        let state = &mut self.connections[index];
        if !state.unsent.is_empty() {
            state.unsent.extend_from_slice(bytes);
            return;
        }
        let Some(socket) = &state.socket else { return };
        state.batch = self.batch;
        let (start, end) = (self.outgoing.len(), self.outgoing.len() + bytes.len());
        let operation = Operation::Send { index: self.sends.len() as u32 };
        self.sends.push(Sending { connection, generation: state.generation, start, end });
        // Moves it only if these bytes alone do not fit, and then nothing else is queued.
        self.outgoing.extend_from_slice(bytes);
        let memory = self.outgoing[start..].as_ptr();
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), memory, bytes.len() as u32)
            // With MSG_WAITALL, success means that all was sent, and is not told.
            .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS);
        self.queue(&entry.user_data(operation.into()));
    }

    /// Hands the queued operations over without waiting, and takes in what has ended.
    fn hand_over(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        while !self.ring.submission().is_empty() && self.enter(0, Duration::ZERO) {
            self.take_in(&mut ready);
        }
        self.ready = ready;
    }

    /// Hands the queued operations over, and waits for `wanted` completions; false when the ring is
    /// of no use any more, and every connection is lost with it.
    fn enter(&mut self, wanted: usize, timeout: Duration) -> bool {
        let timeout = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timeout);
        let entered =
            self.ring.submitter().submit_with_args_and_flags(wanted, &arguments, self.flags);
        let Err(error) = entered else { return true };
        // Nothing came in time, a signal came, or completions must be taken in first.
        if let Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) = error.raw_os_error() {
            return true;
        }
        for connection in 0..self.connections.len() {
            self.end(connection, error.to_string());
        }
        false
    }

    /// Takes in what has ended, and makes the memory of sends free.
    fn take_in(&mut self, completions: &mut Vec<Completion>) {
        while let Some(entry) = { self.ring.completion().next() } {
            match Operation::from(entry.user_data()) {
                Operation::Receive { connection, generation } => {
                    if self.take_received(connection as usize, generation, &entry) {
                        completions.push(Completion::Received(connection as usize));
                    }
                }
                Operation::Send { index } => self.take_unsent(index as usize, entry.result()),
                Operation::Room { connection, generation } => {
                    self.follow_ups.push(FollowUp { connection, generation, what: What::SendRest });
                }
            }
        }
        if self.ring.submission().is_empty() {
            self.outgoing.clear();
            self.sends.clear();
            self.batch += 1;
            self.retired.clear();
        }
    }

    /// Takes in bytes or the end of a connection; true when bytes are to be announced.
    fn take_received(&mut self, index: usize, generation: u32, entry: &cqueue::Entry) -> bool {
        let state = &mut self.connections[index];
        let current = state.generation == generation;
        let mut announce = false;
        if let Some(buffer) = cqueue::buffer_select(entry.flags()) {
            let count = entry.result().max(0) as usize;
            if current && count > 0 {
                state.inbox.room(count).copy_from_slice(self.pool.bytes(buffer, count));
                state.inbox.filled(count);
                announce = !std::mem::replace(&mut state.announced, true);
            }
            self.pool.give_back(buffer);
        }
        if current && !cqueue::more(entry.flags()) {
            match entry.result() {
                0 => self.end(index, "the server closed the connection".to_owned()),
                // The kernel ends a series of receives after some, and when no buffer was free.
                result if result > 0 || -result == libc::ENOBUFS => {
                    let connection = index as u32;
                    let what = What::Receive;
                    self.follow_ups.push(FollowUp { connection, generation, what });
                }
                result => self.end(index, io::Error::from_raw_os_error(-result).to_string()),
            }
        }
        announce
    }

    /// Keeps what a socket did not take, and asks to be told when there is room.
    fn take_unsent(&mut self, index: usize, result: i32) {
        let Sending { connection, generation, start, end } = self.sends[index];
        let state = &mut self.connections[connection as usize];
        if state.generation != generation {
            return;
        }
        if result < 0 && -result != libc::EAGAIN {
            let error = io::Error::from_raw_os_error(-result);
            self.end(connection as usize, error.to_string());
            return;
        }
        let sent = result.max(0) as usize;
        state.unsent.extend_from_slice(&self.outgoing[start + sent..end]);
        self.follow_ups.push(FollowUp { connection, generation, what: What::AwaitRoom });
    }

    /// Queues what completions led to.
    fn queue_follow_ups(&mut self) {
        for FollowUp { connection, generation, what } in std::mem::take(&mut self.follow_ups) {
            let state = &mut self.connections[connection as usize];
            let Some(socket) = state.socket.as_ref().filter(|_| state.generation == generation)
            else {
                continue;
            };
            let socket = Fd(socket.as_raw_fd());
            match what {
                What::Receive => {
                    let operation = Operation::Receive { connection, generation };
                    let entry = opcode::RecvMulti::new(socket, GROUP).build();
                    self.queue(&entry.user_data(operation.into()));
                }
                What::AwaitRoom => {
                    let operation = Operation::Room { connection, generation };
                    let entry = opcode::PollAdd::new(socket, libc::POLLOUT as u32).build();
                    self.queue(&entry.user_data(operation.into()));
                }
                What::SendRest => {
                    let rest = std::mem::take(&mut state.unsent);
                    self.queue_send(connection, &rest);
                }
            }
        }
    }

    /// Gives up a connection's socket; what it received stays.
    fn hang_up(&mut self, index: usize) {
        let state = &mut self.connections[index];
        if let Some(socket) = state.socket.take() {
            // Ends its operations in the kernel.
            let _ = shutdown(&socket, Shutdown::Both);
            self.retired.push(socket);
        }
        state.generation = (state.generation + 1) % GENERATIONS;
        state.unsent.clear();
    }

    fn end(&mut self, index: usize, reason: String) {
        if self.connections[index].socket.is_some() {
            self.hang_up(index);
            self.ended.push(Completion::Closed(index, reason));
        }
    }
}

impl Transport for Uring {
    fn connect(&mut self, connection: usize) {
        match socket::connect(&self.address) {
            Ok(socket) => {
                let state = &mut self.connections[connection];
                state.socket = Some(socket);
                let generation = state.generation;
                let connection = connection as u32;
                self.follow_ups.push(FollowUp { connection, generation, what: What::Receive });
                self.ready.push(Completion::Connected(connection as usize));
            }
            Err(error) => self.ended.push(Completion::Closed(connection, error.to_string())),
        }
    }

    fn submit(&mut self, connection: usize, bytes: &[u8]) {
        self.queue_send(connection as u32, bytes);
    }

    fn wait(&mut self, until: Instant, completions: &mut Vec<Completion>) {
        self.queue_follow_ups();
        let found = if self.ready.is_empty() { &mut self.ended } else { &mut self.ready };
        completions.append(found);
        if completions.is_empty() {
            self.enter(1, until.saturating_duration_since(Instant::now()));
        } else {
            self.enter(0, Duration::ZERO);
        }
        self.take_in(completions);
    }

    fn received(&self, connection: usize) -> &[u8] {
        self.connections[connection].inbox.bytes()
    }

    fn consume(&mut self, connection: usize, count: usize) {
        let state = &mut self.connections[connection];
        state.inbox.consume(count);
        state.announced = false;
    }

    fn close(&mut self, connection: usize) {
        // What was submitted, such as taking leave, goes out first.
        self.hand_over();
        self.hang_up(connection);
        let state = &mut self.connections[connection];
        state.inbox.clear();
        state.announced = false;
        self.ready.retain(|completion| completion.connection() != connection);
        self.ended.retain(|completion| completion.connection() != connection);
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn cpu_time(&self) -> Duration {
        socket::thread_cpu_time()
    }
}

/// Receive buffers, which the kernel takes as bytes arrive and we give back; and the ring through
/// which that is done (`io_uring_register_buf_ring(3)`).
struct Pool {
    /// The ring's entries, of which the kernel has the address.
    ring: Box<[Page]>,
    buffers: Box<[Page]>,
    /// Buffers given to the kernel so far, counted modulo 2^16.
    tail: u16,
}

/// The kernel asks for this alignment of the ring.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; BUFFER_BYTES]);

impl Pool {
    /// Registers `count` buffers, a power of two, and gives all to the kernel.
    fn new(ring: &IoUring, count: u16) -> io::Result<Self> {
        let ring_bytes = usize::from(count) * size_of::<BufRingEntry>();
        let pages = |count| vec![Page([0; BUFFER_BYTES]); count].into_boxed_slice();
        let mut pool = Self {
            ring: pages(ring_bytes.div_ceil(BUFFER_BYTES)),
            buffers: pages(usize::from(count)),
            tail: 0,
        };
        let address = pool.ring.as_mut_ptr() as u64;
        #[expect(unsafe_code, reason = "the kernel is given an address")]
        // SAFETY: the memory has the size and alignment asked for, and is freed after the ring.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(address, count, GROUP, 0)?;
        }
        for buffer in 0..count {
            pool.give_back(buffer);
        }
        Ok(pool)
    }

    /// The first `count` bytes of a buffer that the kernel has handed over.
    fn bytes(&self, buffer: u16, count: usize) -> &[u8] {
        &self.buffers[usize::from(buffer)].0[..count]
    }

    /// Lets the kernel use a buffer (again).
    fn give_back(&mut self, buffer: u16) {
        let mask = self.buffers.len() as u16 - 1;
        let memory = self.buffers[usize::from(buffer)].0.as_mut_ptr() as u64;
        let entries = self.ring.as_mut_ptr().cast::<BufRingEntry>();
        self.tail = self.tail.wrapping_add(1);
        #[expect(unsafe_code, reason = "the ring of buffers is shared with the kernel")]
        // SAFETY: the index is within the ring's memory, which is initialised; the kernel reads an
        // entry only when the tail, stored after it, says that it is there.
        unsafe {
            let entry = &mut *entries.add(usize::from(self.tail.wrapping_sub(1) & mask));
            entry.set_addr(memory);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(buffer);
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
