//! What a machine offers, as a plain value: gathered by the adapters, judged by [`crate::resolve`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What the machine offers to a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Whether this process is root.
    pub root: bool,
    /// CPUs this process may use.
    pub cpus: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// The Docker daemon.
    pub docker: Availability,
    /// Loop devices of this machine.
    pub loop_devices: Availability,
    /// `mkfs.ext4` on this machine.
    pub mkfs_ext4: Availability,
    /// `mkfs.xfs` on this machine.
    pub mkfs_xfs: Availability,
    /// File systems that the kernel can mount, built in or as a module that can be loaded.
    pub filesystems: Vec<String>,
    /// PostgreSQL binaries of this machine.
    pub postgres: Vec<PostgresBinaries>,
    /// Where short-lived files and the ledger are kept unless a spec says otherwise.
    pub state_dir: PathBuf,
    /// Free bytes where volumes will be made: the spec's `work_dir`, else `state_dir`.
    pub free_bytes: u64,
    /// Version to image references, in the order in which they are tried.
    pub pinned_images: BTreeMap<String, Vec<String>>,
}

/// Whether something can be used here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase", deny_unknown_fields)]
pub enum Availability {
    /// It can be used.
    Available,
    /// It cannot.
    Missing {
        /// Why not, in a few lower-case words.
        reason: String,
        /// The command that mends it.
        remedy: String,
    },
}

/// One installation of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresBinaries {
    /// What `postgres --version` says, the number alone: `15.18`.
    pub version: String,
    /// Directory that holds `initdb` and `postgres`.
    pub bin_dir: PathBuf,
}

impl Availability {
    /// Whether it can be used.
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }

    /// Nothing when it can be used.
    ///
    /// # Errors
    /// A provision error "`need`, but *reason*" with the remedy as its hint.
    pub fn require(&self, need: &str) -> Result<()> {
        match self {
            Self::Available => Ok(()),
            Self::Missing { reason, remedy } => {
                Err(Error::provision(format!("{need}, but {reason}")).hint(remedy))
            }
        }
    }
}
