//! What a machine offers, as a plain value: gathered by the adapters, judged by [`crate::resolve`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::plan::{EngineKind, FileSystem};

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
    /// Whether the daemon runs on the kernel of this machine, as far as its release tells.
    pub docker_shares_kernel: bool,
    /// Loop devices of this machine.
    pub loop_devices: Availability,
    /// Schedulers of requests that the kernel offers for loop devices.
    pub schedulers: Vec<String>,
    /// Arrays of md.
    pub md: Availability,
    /// The mkfs of each file system on this machine.
    pub mkfs: BTreeMap<FileSystem, Availability>,
    /// What there is of ZFS.
    pub zfs: ZfsOffer,
    /// The block devices that a spec names, whether they are free or not.
    pub devices: BTreeMap<PathBuf, DeviceOffer>,
    /// File systems that the kernel can mount, built in or as a module that can be loaded.
    pub filesystems: Vec<String>,
    /// What there is of each kind of database.
    pub engines: BTreeMap<EngineKind, EngineOffer>,
    /// Where short-lived files and the ledger are kept unless a spec says otherwise.
    pub state_dir: PathBuf,
    /// Free bytes where volumes will be made: the spec's `work_dir`, else `state_dir`.
    pub free_bytes: u64,
}

/// A block device of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceOffer {
    /// Its size in bytes.
    pub bytes: u64,
    /// What tells it from all others, wherever it is plugged in: a serial number, say.
    pub id: Option<String>,
    /// Whether it is free: there is such a device, and nothing of anybody on it.
    pub available: Availability,
}

/// What there is of ZFS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsOffer {
    /// Whether pools can be made.
    pub pools: Availability,
    /// Which implementation: `OpenZFS`, `zfs-fuse`.
    pub implementation: String,
    /// Names of the properties that a dataset can be given.
    pub properties: Vec<String>,
}

/// What there is of one kind of database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineOffer {
    /// Installations on this machine.
    pub binaries: Vec<Binaries>,
    /// Version to image references, in the order in which they are tried.
    pub pinned_images: BTreeMap<String, Vec<String>>,
    /// References of the images that `bedplate images build` makes, of whatever version.
    pub built_images: Vec<String>,
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

/// One installation of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binaries {
    /// What the server's program says of itself, the number alone: `15.18`.
    pub version: String,
    /// Directory that holds the server's program.
    pub bin_dir: PathBuf,
}

impl Capabilities {
    /// What there is of a kind of database.
    pub fn engine(&self, kind: EngineKind) -> &EngineOffer {
        static NOTHING: EngineOffer = EngineOffer {
            binaries: Vec::new(),
            pinned_images: BTreeMap::new(),
            built_images: Vec::new(),
        };
        self.engines.get(&kind).unwrap_or(&NOTHING)
    }
}

/// What brings a file system that the kernel lacks.
pub fn kernel_remedy(file_system: &str) -> String {
    let module = match file_system {
        // One driver serves the family.
        "ext2" | "ext3" => "ext4",
        other => other,
    };
    format!(
        "run `modprobe {module}`, or boot a kernel with CONFIG_{}_FS",
        module.to_ascii_uppercase()
    )
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
