//! Pools of ZFS, through `zpool` and `zfs`, whatever implements them.

use std::path::Path;
use std::slice::Chunks;

use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{Layout, ZfsVolume};

use crate::command;

/// Properties that are told of every dataset, where ZFS has them; those of a spec are told, too.
const TOLD: [&str; 7] =
    ["recordsize", "logbias", "sync", "compression", "primarycache", "atime", "checksum"];

/// A pool that was made for a trial, with one dataset of the same name.
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) volume: ZfsVolume,
}

impl Pool {
    /// The command that makes the pool of `devices` and mounts its dataset at `path`.
    pub(super) fn create_command(&self, path: &Path, devices: &[String]) -> Vec<String> {
        let mut words = vec!["zpool".to_owned(), "create".to_owned(), "-f".to_owned()];
        let mut option = |flag: &str, text: String| words.extend([flag.to_owned(), text]);
        if let Some(ashift) = self.volume.ashift {
            option("-o", format!("ashift={ashift}"));
        }
        for (name, value) in &self.volume.options {
            option("-O", format!("{name}={value}"));
        }
        option("-m", path.display().to_string());
        words.push(self.name.clone());
        let kind = match self.volume.devices.layout {
            Layout::Single | Layout::Raid0 => None,
            Layout::Raid1 | Layout::Raid10 => Some("mirror"),
            Layout::Raidz => Some("raidz"),
        };
        for group in self.groups(devices) {
            words.extend(kind.map(str::to_owned));
            words.extend(group.iter().cloned());
        }
        words
    }

    /// The members of the pool's stripe, each of one device or more. A write that is waited for goes to
    /// one of them, and that one is flushed.
    pub(super) fn groups<'a>(&self, devices: &'a [String]) -> Chunks<'a, String> {
        devices.chunks(match self.volume.devices.layout {
            Layout::Single | Layout::Raid0 => 1,
            Layout::Raid10 => 2,
            Layout::Raid1 | Layout::Raidz => devices.len(),
        })
    }

    /// What the live pool says of itself.
    ///
    /// # Errors
    /// When it is not what was asked for.
    pub(super) async fn facts(&self) -> Result<Vec<(String, String)>> {
        let name = self.name.as_str();
        let of_dataset =
            command::ask(&["zfs", "get", "-H", "-p", "-o", "property,value", "all", name]).await?;
        let status = command::ask(&["zpool", "status", name]).await?;
        let mut facts = vec![("zfs_layout".to_owned(), layout(&status.stdout))];
        for line in of_dataset.stdout.lines() {
            let Some((property, value)) = line.split_once('\t') else { continue };
            let asked = self.volume.options.get(property);
            if let Some(asked) = asked.filter(|asked| !same(asked, value)) {
                return Err(Error::provision(format!(
                    "`{property}` was asked to be `{asked}`, but ZFS has `{value}`"
                )));
            }
            if asked.is_some() || TOLD.contains(&property) {
                facts.push((format!("zfs_{property}"), value.to_owned()));
            }
        }
        let of_pool = command::ask(&["zpool", "get", "ashift", name]).await?;
        let line = of_pool.stdout.lines().last().unwrap_or_default();
        let ashift = line.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let asked = self.volume.ashift.map(|asked| asked.to_string());
        let layout = self.volume.devices.layout.word();
        if facts[0].1 != layout || asked.is_some_and(|asked| asked != ashift) {
            return Err(Error::provision(format!(
                "a pool of layout {layout} was asked for, but ZFS has {} with ashift {ashift}",
                facts[0].1
            ))
            .evidence(status.stdout));
        }
        facts.push(("zfs_ashift".to_owned(), ashift));
        Ok(facts)
    }
}

/// What `zpool` says of its version; zfs-fuse only knows that of the format.
pub(super) async fn version() -> String {
    let of_openzfs = command::ask(&["zpool", "--version"]).await;
    let output = match of_openzfs {
        Ok(output) => Ok(output),
        Err(_) => command::ask(&["zpool", "upgrade"]).await,
    };
    let text = output.map(|output| output.stdout).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The layout that a pool's status shows: its groups, and the devices in or beside them.
fn layout(status: &str) -> String {
    let groups = |kind: &str| {
        let first = |line: &&str| line.trim_start().starts_with(kind);
        status.lines().filter(first).count()
    };
    let devices = status.lines().filter(|line| line.trim_start().starts_with("loop")).count();
    let layout = match (groups("mirror-"), groups("raidz1-"), devices) {
        (0, 0, 1) => Layout::Single,
        (0, 0, _) => Layout::Raid0,
        (1, 0, _) => Layout::Raid1,
        (0, 1, _) => Layout::Raidz,
        _ => Layout::Raid10,
    };
    layout.word().to_owned()
}

/// Whether a property's value as it was written is the one that ZFS shows: `32k` is shown as 32768.
fn same(asked: &str, shown: &str) -> bool {
    let bytes = |text: &str| -> Option<u64> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_shl(shift)
    };
    asked.eq_ignore_ascii_case(shown)
        || bytes(asked).is_some_and(|asked| bytes(shown) == Some(asked))
}

#[cfg(test)]
mod tests {
    use bedplate_core::plan::Devices;

    use super::*;

    fn command(layout: Layout, devices: &[&str]) -> String {
        let volume = ZfsVolume {
            devices: Devices::new(1 << 30, layout, devices.len() as u32),
            ashift: Some(12),
            options: [("recordsize".to_owned(), "32k".to_owned())].into(),
        };
        let pool = Pool { name: "bedplate-x".to_owned(), volume };
        let devices: Vec<String> = devices.iter().map(|device| (*device).to_owned()).collect();
        pool.create_command(Path::new("/m"), &devices).join(" ")
    }

    #[test]
    fn devices_are_grouped_by_the_layout() {
        let start = "zpool create -f -o ashift=12 -O recordsize=32k -m /m bedplate-x";
        assert_eq!(command(Layout::Single, &["a"]), format!("{start} a"));
        assert_eq!(command(Layout::Raid0, &["a", "b"]), format!("{start} a b"));
        assert_eq!(command(Layout::Raid1, &["a", "b"]), format!("{start} mirror a b"));
        assert_eq!(
            command(Layout::Raid10, &["a", "b", "c", "d"]),
            format!("{start} mirror a b mirror c d")
        );
        assert_eq!(command(Layout::Raidz, &["a", "b", "c"]), format!("{start} raidz a b c"));
    }

    #[test]
    fn spellings_of_one_value_are_the_same() {
        assert!(same("32k", "32768") && same("32K", "32768") && same("1M", "1048576"));
        assert!(same("OFF", "off") && same("throughput", "throughput"));
        assert!(!same("32k", "131072") && !same("on", "off") && !same("gzip-6", "gzip"));
    }
}
