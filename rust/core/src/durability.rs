//! Whether a commit was on stable storage when the server said so: commits counted against flushes.
//!
//! Speed tells nothing of it. A server with `fsync = off` can be hardly faster than an honest one, and
//! one that commits in groups much faster. But whoever waits for stable storage needs a flush of the
//! device, and a flush serves at most the commits that wait for it, of each client one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Commits that share a flush, over the number of clients, beyond which not all can have waited for
/// it. A flush that began earlier can end after a commit that needed the next one was counted, hence
/// the quarter more.
const COMMITS_PER_FLUSH_AND_CLIENT: f64 = 1.25;
/// The same for commits with a flush of their own.
const COMMITS_PER_OWN_FLUSH: f64 = 1.05;

/// What the flushes of a trial say of its commits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Each commit had a flush of its own.
    Durable,
    /// Commits shared flushes, no more than there were clients to wait for one.
    Group,
    /// Commits cannot all have been on stable storage when the server said so.
    NotDurable,
    /// No device could be watched, or it is not known how many commits wrote anything.
    #[default]
    Unknown,
}

impl Durability {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Group => "group",
            Self::NotDurable => "not durable",
            Self::Unknown => "unknown",
        }
    }

    /// The verdict on `commits` commits that wrote something, by `clients` clients, while the device
    /// completed `flushes` flushes. `loses_flushes` is what a probe of the volume
    /// found before, `facts` are what is known of it.
    ///
    /// Flushes prove that data left this machine's memory, or a guest's; what lies below can still
    /// lie.
    pub fn of(
        commits: Option<u64>,
        clients: u64,
        flushes: Option<u64>,
        loses_flushes: bool,
        facts: &BTreeMap<String, String>,
    ) -> Self {
        let fact = |key: &str| facts.get(key).map(String::as_str);
        let in_memory = |key| matches!(fact(key), Some("tmpfs" | "ramfs"));
        let drops_flushes = fact("loop_write_cache").is_some_and(|cache| cache != "write back");
        if in_memory("fs_type") || in_memory("backing_fs_type") || drops_flushes || loses_flushes {
            return Self::NotDurable;
        }
        // A disk that says it has no volatile cache is sent no flushes: there is nothing to count.
        let cacheless = fact("device_write_cache") == Some("write through");
        let flushes = flushes.filter(|_| !cacheless);
        let (Some(commits @ 1..), Some(flushes)) = (commits, flushes) else {
            return Self::Unknown;
        };
        let commits_per_flush = commits as f64 / flushes as f64;
        if commits_per_flush <= COMMITS_PER_OWN_FLUSH {
            Self::Durable
        } else if commits_per_flush <= COMMITS_PER_FLUSH_AND_CLIENT * clients as f64 {
            Self::Group
        } else {
            Self::NotDurable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts of a server of PostgreSQL 13 over eight seconds each, with the settings `fsync` and
    /// `synchronous_commit`, its own counter of synchronisations beside the device's.
    #[test]
    fn counts_tell_what_rates_do_not() {
        let nothing = BTreeMap::new();
        let verdict = |commits, clients, flushes| {
            Durability::of(Some(commits), clients, Some(flushes), false, &nothing)
        };
        // on, on
        assert_eq!(verdict(11_758, 1, 11_766), Durability::Durable);
        assert_eq!(verdict(33_531, 4, 29_658), Durability::Group);
        // on, off
        assert_eq!(verdict(16_144, 1, 45), Durability::NotDurable);
        // off, on
        assert_eq!(verdict(64_825, 4, 0), Durability::NotDurable);
        // Nobody can wait for a flush with more than there are.
        assert_eq!(verdict(500, 4, 100), Durability::Group);
        assert_eq!(verdict(501, 4, 100), Durability::NotDurable);
    }

    #[test]
    fn what_was_not_counted_is_unknown_unless_the_volume_tells() {
        let facts = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let honest = facts("loop_write_cache", "write back");
        assert_eq!(Durability::of(Some(10), 1, None, false, &honest), Durability::Unknown);
        assert_eq!(Durability::of(None, 1, Some(10), false, &honest), Durability::Unknown);
        assert_eq!(Durability::of(Some(0), 1, Some(10), false, &honest), Durability::Unknown);
        for (key, value) in [
            ("fs_type", "tmpfs"),
            ("backing_fs_type", "ramfs"),
            ("loop_write_cache", "write through"),
        ] {
            let verdict = Durability::of(Some(10), 1, Some(10), false, &facts(key, value));
            assert_eq!(verdict, Durability::NotDurable, "{key}");
        }
        let lost = Durability::of(Some(10), 1, Some(10), true, &honest);
        assert_eq!(lost, Durability::NotDurable);
        // A disk without a volatile cache is sent no flushes.
        let cacheless = facts("device_write_cache", "write through");
        assert_eq!(Durability::of(Some(10), 1, Some(0), false, &cacheless), Durability::Unknown);
    }
}
