//! Storages: sizes, block sizes, and what the machine must have for them.

use super::Context;
use super::cells::Level;
use crate::error::{Error, Result};
use crate::plan::{LoopVolume, SiteKind, StorageKind, StoragePlan};
use crate::sizing::{self, bytes_text};
use crate::spec::{LoopSpec, StorageSpec, StorageSpecKind};

/// Bytes of a block when the spec names none.
const BLOCK_SIZE_BYTES: u32 = 4096;
/// Block sizes of ext4; it mounts none above the page size, and pages of 4096 bytes are all we meet.
const EXT4_BLOCK_SIZES_BYTES: [u32; 3] = [1024, 2048, 4096];
/// Block sizes of xfs.
const XFS_BLOCK_SIZES_BYTES: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

/// A storage with one level of each of its lists.
pub(super) struct StorageChoice<'a> {
    /// Absent for a server that exists already.
    spec: Option<&'a StorageSpec>,
    path: String,
    label: String,
    block_size_bytes: u32,
    pub(super) levels: Vec<Level>,
}

/// All combinations of all storages.
pub(super) fn choices<'a>(context: &Context<'a>) -> Result<Vec<StorageChoice<'a>>> {
    let mut choices = Vec::new();
    for (index, spec) in context.spec.storages.iter().enumerate() {
        let path = context.spec.storage_path(index);
        check_machine(context, &path, &spec.kind)?;
        let label = spec.label.clone().unwrap_or_else(|| spec.kind.word().to_owned());
        let block_sizes = match &spec.kind {
            StorageSpecKind::Ext4(volume) => {
                check_loop(&path, volume, &EXT4_BLOCK_SIZES_BYTES)?;
                volume.block_size_bytes.as_slice()
            }
            StorageSpecKind::Xfs(volume) => {
                check_loop(&path, volume, &XFS_BLOCK_SIZES_BYTES)?;
                check_xfs_crc(&path, volume)?;
                volume.block_size_bytes.as_slice()
            }
            StorageSpecKind::Directory { .. } | StorageSpecKind::Tmpfs { .. } => &[],
        };
        let several = block_sizes.len() > 1;
        for block_size_bytes in or_default(block_sizes, BLOCK_SIZE_BYTES) {
            let level = ("block_size".to_owned(), block_size_bytes.to_string());
            choices.push(StorageChoice {
                spec: Some(spec),
                path: path.clone(),
                label: label.clone(),
                block_size_bytes,
                levels: if several { vec![level] } else { Vec::new() },
            });
        }
    }
    if choices.is_empty() {
        choices.push(StorageChoice {
            spec: None,
            path: "storage".to_owned(),
            label: "existing".to_owned(),
            block_size_bytes: 0,
            levels: Vec::new(),
        });
    }
    Ok(choices)
}

/// The storage of a cell whose database takes `loaded_bytes` and that needs `needed_bytes`.
pub(super) fn storage(
    context: &Context<'_>,
    choice: &StorageChoice<'_>,
    loaded_bytes: u64,
    needed_bytes: u64,
) -> Result<StoragePlan> {
    let sized = |stated: Option<u64>| size(&choice.path, stated, loaded_bytes, needed_bytes);
    let volume = |spec: &LoopSpec| -> Result<LoopVolume> {
        let size_bytes = sized(spec.size_bytes)?;
        check_free(context, &choice.path, size_bytes)?;
        Ok(LoopVolume {
            size_bytes,
            block_size_bytes: choice.block_size_bytes,
            mkfs_options: spec.mkfs_options.clone(),
            mount_options: spec.mount_options.clone().unwrap_or_else(|| vec!["noatime".to_owned()]),
        })
    };
    let kind = match choice.spec.map(|spec| &spec.kind) {
        None => StorageKind::Existing,
        Some(StorageSpecKind::Directory { path: Some(path) }) => {
            // What is free there is not known yet; the site looks before it makes anything.
            StorageKind::Directory { path: path.clone() }
        }
        Some(StorageSpecKind::Directory { path: None }) => {
            check_free(context, &choice.path, needed_bytes)?;
            StorageKind::Directory { path: context.work_dir.clone() }
        }
        Some(StorageSpecKind::Tmpfs { size_bytes }) => {
            let size_bytes = sized(*size_bytes)?;
            let memory_bytes = context.capabilities.memory_bytes;
            if size_bytes > memory_bytes {
                return Err(Error::spec(format!(
                    "`{}.size` is {}, more than this machine's memory of {}",
                    choice.path,
                    bytes_text(size_bytes),
                    bytes_text(memory_bytes)
                )));
            }
            StorageKind::Tmpfs { size_bytes }
        }
        Some(StorageSpecKind::Ext4(spec)) => StorageKind::Ext4(volume(spec)?),
        Some(StorageSpecKind::Xfs(spec)) => {
            let volume = volume(spec)?;
            if volume.size_bytes < sizing::XFS_BYTES_MIN {
                return Err(Error::spec(format!(
                    "`{}.size` is {}, but mkfs.xfs refuses less than {}",
                    choice.path,
                    bytes_text(volume.size_bytes),
                    bytes_text(sizing::XFS_BYTES_MIN)
                )));
            }
            StorageKind::Xfs(volume)
        }
    };
    Ok(StoragePlan { label: choice.label.clone(), kind })
}

/// The stated size, if the loaded database fits; else the default.
fn size(path: &str, stated: Option<u64>, loaded_bytes: u64, needed_bytes: u64) -> Result<u64> {
    let Some(size_bytes) = stated else {
        return Ok(sizing::volume_bytes(needed_bytes));
    };
    if size_bytes < loaded_bytes {
        return Err(Error::spec(format!(
            "`{path}.size` is {}, but the loaded database alone takes {}",
            bytes_text(size_bytes),
            bytes_text(loaded_bytes)
        ))
        .hint(format!(
            "leave `size` out to get {}",
            bytes_text(sizing::volume_bytes(needed_bytes))
        )));
    }
    Ok(size_bytes)
}

fn check_free(context: &Context<'_>, path: &str, size_bytes: u64) -> Result<()> {
    let free_bytes = context.capabilities.free_bytes;
    let reserve_bytes = sizing::reserve_bytes(free_bytes);
    if size_bytes <= free_bytes.saturating_sub(reserve_bytes) {
        return Ok(());
    }
    Err(Error::provision(format!(
        "`{path}.size` is {}, but {} has {} free, of which {} stay in reserve",
        bytes_text(size_bytes),
        context.work_dir.display(),
        bytes_text(free_bytes),
        bytes_text(reserve_bytes)
    ))
    .hint("lower `size` or `workload.scale`, or set `work_dir` to a place with more room"))
}

fn check_loop(path: &str, spec: &LoopSpec, block_sizes_bytes: &[u32]) -> Result<()> {
    for block_size_bytes in &spec.block_size_bytes {
        if !block_sizes_bytes.contains(block_size_bytes) {
            let allowed: Vec<String> = block_sizes_bytes.iter().map(u32::to_string).collect();
            return Err(Error::spec(format!(
                "`{path}.block_size` is {block_size_bytes} (allowed: {})",
                allowed.join(", ")
            )));
        }
    }
    if let Some(option) = spec.mkfs_options.iter().find(|option| option.starts_with("-b")) {
        return Err(Error::spec(format!(
            "`{path}.mkfs_options` holds \"{option}\", but the block size has its own key"
        ))
        .hint(format!("set `{path}.block_size`")));
    }
    for option in spec.mount_options.iter().flatten() {
        if option.is_empty() || option.contains(|c: char| c == ',' || c.is_whitespace()) {
            return Err(Error::spec(format!(
                "`{path}.mount_options` holds \"{option}\", but each entry is one option"
            )));
        }
    }
    Ok(())
}

/// Checksums of metadata, on unless mkfs is told otherwise, need blocks of 1024 bytes.
fn check_xfs_crc(path: &str, spec: &LoopSpec) -> Result<()> {
    let without_crc = spec.mkfs_options.iter().any(|option| option.contains("crc=0"));
    if spec.block_size_bytes.contains(&512) && !without_crc {
        return Err(Error::spec(format!(
            "`{path}.block_size` is 512, but mkfs.xfs needs at least 1024 for metadata checksums"
        ))
        .hint("add `mkfs_options = [\"-m\", \"crc=0\"]`, which recent kernels refuse to mount"));
    }
    Ok(())
}

/// Whether the machine can make such a storage at all.
fn check_machine(context: &Context<'_>, path: &str, kind: &StorageSpecKind) -> Result<()> {
    let capabilities = context.capabilities;
    let (word, mkfs) = match kind {
        StorageSpecKind::Directory { .. } => return Ok(()),
        StorageSpecKind::Tmpfs { .. } => ("tmpfs", None),
        StorageSpecKind::Ext4(_) => ("ext4", Some(&capabilities.mkfs_ext4)),
        StorageSpecKind::Xfs(_) => ("xfs", Some(&capabilities.mkfs_xfs)),
    };
    if context.site == SiteKind::Docker {
        // The tools and devices are those of the helper container.
        return capabilities
            .docker
            .require(&format!("`{path}`: {word} on site docker needs Docker"));
    }
    if !capabilities.root {
        let error = Error::provision(format!(
            "`{path}`: {word} on site local needs root, and this process is not root"
        ));
        return Err(error.hint(if capabilities.docker.is_available() {
            "set `site = \"docker\"`, or run as root"
        } else {
            "run as root, or start Docker and set `site = \"docker\"`"
        }));
    }
    if let Some(mkfs) = mkfs {
        capabilities.loop_devices.require(&format!("`{path}`: {word} needs a loop device"))?;
        mkfs.require(&format!("`{path}`: {word} needs mkfs.{word}"))?;
    }
    if !capabilities.filesystems.iter().any(|known| known == word) {
        return Err(Error::provision(format!(
            "`{path}`: the kernel of this machine has no {word} (it has: {})",
            capabilities.filesystems.join(", ")
        ))
        .hint(format!("run `modprobe {word}`, or choose another kind")));
    }
    Ok(())
}

fn or_default<T: Copy>(levels: &[T], default: T) -> Vec<T> {
    if levels.is_empty() { vec![default] } else { levels.to_vec() }
}
