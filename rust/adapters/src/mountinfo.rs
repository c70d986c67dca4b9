//! What is mounted where, from the kernel's `mountinfo` files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bedplate_core::error::{Error, Result};
use bedplate_core::record::MountFacts;

/// One line of a `mountinfo` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the file system's device (major 0: not a block device).
    pub device: (u32, u32),
    /// Which directory of the file system is mounted; `/` unless it is a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Type of file system.
    pub fs_type: String,
    /// Source, `/dev/loop3` say.
    pub source: String,
    /// Options of the mount, then those of the super block that are not among them.
    pub options: Vec<String>,
}

impl Mount {
    /// The mount in the words of a record.
    pub fn facts(&self) -> MountFacts {
        MountFacts {
            mount_point: self.mount_point.display().to_string(),
            fs_type: self.fs_type.clone(),
            source: self.source.clone(),
            options: self.options.clone(),
        }
    }
}

/// Parses the text of a `mountinfo` file; lines that are not understood are left out.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    // 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw,errors=continue
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(2);
    let (major, minor) = fields.next()?.split_once(':')?;
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let mut options: Vec<String> = fields.next()?.split(',').map(str::to_owned).collect();
    let mut fields = after.split(' ');
    let fs_type = fields.next()?.to_owned();
    let source = path(fields.next()?).display().to_string();
    for option in fields.next().unwrap_or_default().split(',') {
        if !option.is_empty() && !options.iter().any(|known| known == option) {
            options.push(option.to_owned());
        }
    }
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { device, root, mount_point, fs_type, source, options })
}

/// Undoes the kernel's octal escapes (`\040` is a space).
fn path(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// The mounts of this process's namespace.
///
/// # Errors
/// When the kernel's file cannot be read.
pub fn mounts() -> Result<Vec<Mount>> {
    std::fs::read("/proc/self/mountinfo")
        .map(|bytes| parse(&String::from_utf8_lossy(&bytes)))
        .map_err(|error| Error::provision(format!("cannot read /proc/self/mountinfo: {error}")))
}

/// The mount that holds `path` (which must be absolute and without symbolic links).
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // Of mounts stacked on one place the last is the one that is seen.
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.components().count())
}

/// Whether something is mounted exactly at `path`.
///
/// # Errors
/// When the kernel's file cannot be read.
pub fn is_mount_point(path: &Path) -> Result<bool> {
    Ok(mounts()?.iter().any(|mount| mount.mount_point == path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 22 7:3 / /mnt/with\\040space rw,noatime shared:9 master:2 - xfs /dev/loop3 rw,attr2
41 40 0:44 /sub /mnt/with\\040space rw - tmpfs tmp\\134fs rw,size=1024k
nonsense
";

    #[test]
    fn a_line_is_taken_apart() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[1].device, (7, 3));
        assert_eq!(mounts[1].mount_point, Path::new("/mnt/with space"));
        assert_eq!(mounts[1].fs_type, "xfs");
        assert_eq!(mounts[1].source, "/dev/loop3");
        assert_eq!(mounts[1].options, ["rw", "noatime", "attr2"]);
        assert_eq!(mounts[2].source, "tmp\\fs");
        assert_eq!(mounts[2].root, Path::new("/sub"));
    }

    #[test]
    fn the_last_and_deepest_mount_holds_a_path() {
        let mounts = parse(TEXT);
        let fs_type = |path: &str| holding(&mounts, Path::new(path)).map(|m| m.fs_type.as_str());
        assert_eq!(fs_type("/mnt/with space/data"), Some("tmpfs"));
        assert_eq!(fs_type("/mnt/with spaces"), Some("ext4"));
        assert_eq!(fs_type("/"), Some("ext4"));
    }
}
