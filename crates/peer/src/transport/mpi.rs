//! MPI, for nodes that are processes of one job: messages through whatever network the job's MPI
//! library was made for.
//!
//! One thread makes all calls of the library and looks in turn for what came and what goes out, so
//! that nothing is asked of the library's support for threads. It yields while anything moves and
//! sleeps for up to a millisecond when nothing does, as MPI has no call that waits without spinning:
//! a first message may take so long to be noticed.
//!
//! A connection is a pair of numbers in front of each message. MPI loses nothing and keeps messages
//! between two processes in order, so only the bytes that a receiver has not read yet are counted.
//! There is no encryption: the job's MPI decides who belongs to it.

mod connection;
mod engine;
mod native;

use crossbeam_channel::Receiver;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::{Arrival, Closer, Listener, TimeLimits, Transport, Wire};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::secret::Security;

use connection::{Connection, End};
use engine::Engine;

/// MPI between the processes of a job.
#[derive(Clone)]
pub struct Mpi {
    engine: Arc<Engine>,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.engine.rank()).finish_non_exhaustive()
    }
}

impl Mpi {
    /// MPI without protection; initializes the library, which is possible once in a process.
    /// [`Transport::end`] finalizes it, or the last of all clones and connections, which waits for the
    /// other processes of the job to do so, too.
    ///
    /// # Errors
    /// [`Error::Settings`] if `security` is not off, if the process was not started by `mpirun`, or
    /// if there is no Open MPI.
    pub fn new(security: &Security) -> Result<Mpi> {
        match security {
            Security::Off => Ok(Mpi { engine: Engine::get()? }),
            Security::Tls(_) => Err(Error::Settings(
                "mpi:// has no encryption; use quic:// or tcp://, or turn TLS off if nobody else \
                 reaches the network of the job"
                    .into(),
            )),
        }
    }

    /// The number of this process in the job, and how many there are.
    pub fn rank_and_size(&self) -> (u16, u16) {
        (self.engine.rank(), self.engine.size())
    }

    fn resolve(&self, address: &Address) -> io::Result<(u16, u16)> {
        let Address::Mpi(at) = address else { return Err(ErrorKind::Unsupported.into()) };
        let wrong = || io::Error::new(ErrorKind::InvalidInput, "no address of a process");
        let (rank, port) = at.rsplit_once(':').ok_or_else(wrong)?;
        let rank = match rank {
            "self" => self.engine.rank(),
            number => number.parse().map_err(|_| wrong())?,
        };
        if rank >= self.engine.size() {
            let why = format!("the job has {} processes only", self.engine.size());
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        Ok((rank, port.parse().map_err(|_| wrong())?))
    }
}

impl Transport for Mpi {
    fn connect(&self, address: &Address, timeout: TimeLimits) -> Result<Wire> {
        let connect = || {
            let (rank, port) = self.resolve(address)?;
            End::handshake(&self.engine, rank, port, timeout)
        };
        let end = connect().map_err(|error: io::Error| Error::Connect {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(end.wire(timeout))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>> {
        let listen = || {
            let (rank, port) = self.resolve(address)?;
            if rank != self.engine.rank() {
                let why = format!("this is process {}", self.engine.rank());
                return Err(io::Error::new(ErrorKind::AddrNotAvailable, why));
            }
            let (port, arrivals) = self.engine.open(port)?;
            let address = Address::Mpi(format!("{rank}:{port}"));
            Ok(MpiDoor { engine: self.engine.clone(), port, arrivals, address })
        };
        let door = listen().map_err(|error: io::Error| Error::Listen {
            address: address.to_string(),
            why: error.to_string(),
        })?;
        Ok(Box::new(door))
    }

    fn end(&self) {
        self.engine.end();
    }
}

struct MpiDoor {
    engine: Arc<Engine>,
    port: u16,
    arrivals: Receiver<Arc<Connection>>,
    address: Address,
}

impl Listener for MpiDoor {
    fn accept(&self) -> io::Result<Box<dyn Arrival>> {
        match self.arrivals.recv() {
            Ok(connection) => {
                let end = End::new(self.engine.clone(), connection);
                Ok(Box::new(MpiArrival(Some(end))))
            }
            Err(_) => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        self.engine.shut(self.port);
    }
}

impl Drop for MpiDoor {
    fn drop(&mut self) {
        self.engine.shut(self.port);
    }
}

/// Closes the connection if nobody admits it.
struct MpiArrival(Option<End>);

impl Arrival for MpiArrival {
    fn admit(mut self: Box<Self>, timeout: TimeLimits) -> Result<Wire> {
        let end = self.0.take().ok_or(Error::Closed)?;
        end.accept().map_err(|error| Error::Connect {
            address: "another process of the job".into(),
            why: error.to_string(),
        })?;
        Ok(end.wire(timeout))
    }
}

impl Drop for MpiArrival {
    fn drop(&mut self) {
        if let Some(end) = &self.0 {
            end.close();
        }
    }
}
