//! The client side of database protocols: a wire and a transport for the measured path, a session
//! for everything else.

pub mod epoll;
pub mod mariadb;
mod mariadb_login;
pub mod mariadb_session;
pub mod postgres;
pub mod session;
mod socket;
pub mod tls;
pub mod uring;

use std::fmt;
use std::io;

use bedplate_core::load::{
    Control, LoadDriver, ThreadEvent, ThreadJob, Transport, Wire, run_thread,
};

use epoll::Epoll;
use mariadb::MariadbWire;
use postgres::PostgresWire;
use tls::ClientTls;
use uring::Uring;

/// How load threads send and receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMethod {
    /// One system call for the statements and replies of many clients.
    Uring,
    /// A system call for each statement and each reply, and a poll for those of many clients.
    Epoll,
}

impl IoMethod {
    /// The cheapest one that this machine has and allows, found by trying. Containers and hardened
    /// kernels often forbid io_uring.
    pub fn of_this_machine() -> Self {
        if uring::try_here().is_ok() { Self::Uring } else { Self::Epoll }
    }
}

impl fmt::Display for IoMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

/// PostgreSQL, thread per core.
pub struct PostgresDriver {
    io: IoMethod,
}

impl PostgresDriver {
    /// A driver that sends and receives by `io`.
    pub fn new(io: IoMethod) -> Self {
        Self { io }
    }
}

impl LoadDriver for PostgresDriver {
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent)) {
        let wires =
            job.programs.iter().map(|_| PostgresWire::new(&job.endpoint, job.protocol)).collect();
        run(self.io, &job, wires, control, tell);
    }

    fn name(&self) -> String {
        format!("bedplate {} postgres/{}", env!("CARGO_PKG_VERSION"), self.io)
    }
}

/// MariaDB or MySQL, thread per core.
pub struct MariadbDriver {
    io: IoMethod,
    tls: ClientTls,
}

impl MariadbDriver {
    /// A driver that sends and receives by `io`, and whose connections are encrypted as `tls` says.
    pub fn new(io: IoMethod, tls: ClientTls) -> Self {
        Self { io, tls }
    }
}

impl LoadDriver for MariadbDriver {
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent)) {
        let wire = |_| MariadbWire::new(&job.endpoint, job.protocol, &self.tls);
        let wires = job.programs.iter().map(wire).collect();
        run(self.io, &job, wires, control, tell);
    }

    fn name(&self) -> String {
        format!("bedplate {} mariadb/{}", env!("CARGO_PKG_VERSION"), self.io)
    }
}

/// Gives the calling thread the policy `SCHED_BATCH`: a reply that wakes it does not stop the server's
/// thread that runs on the same CPU. Where the CPUs are short, the client then finds several replies at
/// once instead of one each time; where a CPU is idle, it runs as soon as before.
///
/// Where the kernel refuses, the client costs more CPU and does the same.
fn let_the_server_finish() {
    let parameters = libc::sched_param { sched_priority: 0 };
    #[expect(unsafe_code, reason = "no library wraps this call without changing the nice value")]
    // SAFETY: the pointer is to a live value of the type that the call reads, and 0 is this thread.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
}

fn run<W: Wire>(
    io: IoMethod,
    job: &ThreadJob,
    wires: Vec<W>,
    control: &Control,
    tell: &mut dyn FnMut(ThreadEvent),
) {
    let_the_server_finish();
    let address = &job.endpoint.address;
    match io {
        IoMethod::Uring => run_over(Uring::new(address, wires.len()), job, wires, control, tell),
        IoMethod::Epoll => run_over(Epoll::new(address, wires.len()), job, wires, control, tell),
    }
}

fn run_over<W: Wire, T: Transport>(
    transport: io::Result<T>,
    job: &ThreadJob,
    wires: Vec<W>,
    control: &Control,
    tell: &mut dyn FnMut(ThreadEvent),
) {
    match transport {
        Ok(mut transport) => run_thread(job, wires, &mut transport, control, tell),
        Err(error) => {
            let refused = vec![format!("the kernel gives no way to wait: {error}"); wires.len()];
            tell(ThreadEvent::Connected { refused });
            tell(ThreadEvent::Ended(Box::default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field 41 of the file; the name in the second one may hold blanks.
    fn policy() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("readable");
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        fields.split(' ').nth(41 - 3).expect("a policy").to_owned()
    }

    #[test]
    fn a_load_thread_does_not_preempt_and_others_keep_their_policy() {
        let before = policy();
        let in_load = std::thread::spawn(|| {
            let_the_server_finish();
            policy()
        });
        assert_eq!(in_load.join().expect("no panic"), libc::SCHED_BATCH.to_string());
        assert_eq!(policy(), before);
    }
}
