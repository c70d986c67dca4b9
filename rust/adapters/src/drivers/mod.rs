//! The client side of database protocols: a wire and a transport for the measured path, a session
//! for everything else.

pub mod epoll;
pub mod postgres;
pub mod session;

use bedplate_core::load::{Control, LoadDriver, ThreadEvent, ThreadJob, run_thread};

use epoll::Epoll;
use postgres::PostgresWire;

/// PostgreSQL over epoll, thread per core.
pub struct PostgresDriver;

impl LoadDriver for PostgresDriver {
    fn run_thread(&self, job: ThreadJob, control: &Control, tell: &mut dyn FnMut(ThreadEvent)) {
        let wires: Vec<_> =
            job.clients.clone().map(|_| PostgresWire::new(&job.endpoint, job.protocol)).collect();
        match Epoll::new(&job.endpoint.address, wires.len()) {
            Ok(mut transport) => run_thread(&job, wires, &mut transport, control, tell),
            Err(error) => {
                let refused = vec![format!("epoll: {error}"); wires.len()];
                tell(ThreadEvent::Connected { refused });
                tell(ThreadEvent::Ended(Box::default()));
            }
        }
    }

    fn name(&self) -> String {
        format!("bedplate {} postgres/epoll", env!("CARGO_PKG_VERSION"))
    }
}
