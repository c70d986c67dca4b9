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

fn run_over_epoll<W: Wire>(
    job: &ThreadJob,
    wires: Vec<W>,
    control: &Control,
    tell: &mut dyn FnMut(ThreadEvent),
) {
    match Epoll::new(&job.endpoint.address, wires.len()) {
        Ok(mut transport) => run_thread(job, wires, &mut transport, control, tell),
        Err(error) => {
            let refused = vec![format!("epoll: {error}"); wires.len()];
            tell(ThreadEvent::Connected { refused });
            tell(ThreadEvent::Ended(Box::default()));
        }
    }
}
