//! The client side of database protocols: a wire and a transport for the measured path, a session
//! for everything else.

pub mod epoll;
pub mod mariadb;
mod mariadb_login;
pub mod mariadb_session;
pub mod postgres;
pub mod session;
pub mod tls;

use bedplate_core::load::{Control, LoadDriver, ThreadEvent, ThreadJob, Wire, run_thread};

use epoll::Epoll;
use mariadb::MariadbWire;
use postgres::PostgresWire;
use tls::ClientTls;

/// PostgreSQL over epoll, thread per core.
pub struct PostgresDriver;

impl LoadDriver for PostgresDriver {
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent)) {
        let wires =
            job.programs.iter().map(|_| PostgresWire::new(&job.endpoint, job.protocol)).collect();
        run_over_epoll(&job, wires, control, tell);
    }

    fn name(&self) -> String {
        format!("bedplate {} postgres/epoll", env!("CARGO_PKG_VERSION"))
    }
}

/// MariaDB or MySQL over epoll, thread per core.
pub struct MariadbDriver {
    tls: ClientTls,
}

impl MariadbDriver {
    /// A driver whose connections are encrypted as `tls` says.
    pub fn new(tls: ClientTls) -> Self {
        Self { tls }
    }
}

impl LoadDriver for MariadbDriver {
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent)) {
        let wire = |_| MariadbWire::new(&job.endpoint, job.protocol, &self.tls);
        let wires = job.programs.iter().map(wire).collect();
        run_over_epoll(&job, wires, control, tell);
    }

    fn name(&self) -> String {
        format!("bedplate {} mariadb/epoll", env!("CARGO_PKG_VERSION"))
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

fn run_over_epoll<W: Wire>(
    job: &ThreadJob,
    wires: Vec<W>,
    control: &Control,
    tell: &mut dyn FnMut(ThreadEvent),
) {
    let_the_server_finish();
    match Epoll::new(&job.endpoint.address, wires.len()) {
        Ok(mut transport) => run_thread(job, wires, &mut transport, control, tell),
        Err(error) => {
            let refused = vec![format!("epoll: {error}"); wires.len()];
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
