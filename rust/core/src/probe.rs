//! What a volume shows of itself before anything is measured on it: how long it takes until a write is on
//! stable storage, whether its devices are told to put it there, and whether what is read comes from them.

use serde::{Deserialize, Serialize};

/// Writes that wait for stable storage, one after the other.
pub const SYNCS: u32 = 200;
/// Bytes of each: a page of PostgreSQL.
pub const SYNC_BYTES: usize = 8192;
/// Bytes that are read twice, first after the kernel was told to forget them.
pub const READ_BYTES: u64 = 16 << 20;

/// The measurements. Those of devices are absent where the devices cannot be seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Times of writing [`SYNC_BYTES`] in place and `fdatasync`, of [`SYNCS`] of them.
    pub sync_us: Syncs,
    /// The volume's devices.
    pub devices: Option<Seen>,
    /// The devices under those, where their images lie.
    pub backing: Option<Seen>,
    /// Seconds of reading [`READ_BYTES`] that the kernel was told to forget.
    pub cold_read_s: f64,
    /// Seconds of reading them again.
    pub warm_read_s: f64,
}

/// Quantiles by nearest rank, in microseconds. Beyond the last of them there are ten values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Syncs {
    /// Median.
    pub p50: f64,
    /// 95 % quantile.
    pub p95: f64,
    /// Largest.
    pub max: f64,
}

/// What devices did meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Flushes that they completed during the writes; absent where a disk says that it has no volatile
    /// cache, and so is sent none.
    pub flushes: Option<u64>,
    /// Bytes that they read during the first reading.
    pub read_bytes: u64,
}

impl Syncs {
    /// Of times in microseconds.
    pub fn of(mut times_us: Vec<f64>) -> Self {
        times_us.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (times_us.len() * percent).div_ceil(100).max(1);
            times_us.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: rank(50), p95: rank(95), max: rank(100) }
    }
}

impl Probe {
    /// Whether flushes get lost on their way down.
    pub fn loses_flushes(&self) -> bool {
        let lost = |seen: Option<Seen>| {
            seen.and_then(|seen| seen.flushes).is_some_and(|flushes| flushes < u64::from(SYNCS))
        };
        lost(self.devices) || lost(self.backing)
    }

    /// What speaks against trusting the volume's numbers. `own_cache` says that its file system caches
    /// by itself, beside the kernel.
    pub fn caveats(&self, own_cache: bool) -> Vec<String> {
        let mut caveats = Vec::new();
        let layers = [("the volume's device", self.devices), ("the device under it", self.backing)];
        for (device, seen) in layers {
            let Some(seen) = seen else { continue };
            if let Some(flushes) = seen.flushes.filter(|flushes| *flushes < u64::from(SYNCS)) {
                caveats.push(format!(
                    "{SYNCS} writes waited for stable storage, but {device} was flushed {flushes} \
                     times"
                ));
            }
            if seen.read_bytes < READ_BYTES / 2 && !own_cache {
                caveats.push(format!(
                    "of {READ_BYTES} bytes that the kernel was told to forget, {device} read {}: \
                     a cache between answers",
                    seen.read_bytes
                ));
            }
        }
        caveats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let syncs = Syncs::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(syncs, Syncs { p50: 100.0, p95: 190.0, max: 200.0 });
        assert_eq!(Syncs::of(vec![3.0]), Syncs { p50: 3.0, p95: 3.0, max: 3.0 });
        assert_eq!(Syncs::of(Vec::new()), Syncs::default());
    }

    #[test]
    fn what_is_lost_on_the_way_down_is_named() {
        let honest = Seen { flushes: Some(202), read_bytes: READ_BYTES };
        let probe = Probe { devices: Some(honest), backing: Some(honest), ..Probe::default() };
        assert_eq!(probe.caveats(false), [""; 0]);
        assert!(!probe.loses_flushes());
        // A loop device without direct I/O: its file is cached, but flushes go through.
        let cached = Probe { backing: Some(Seen { read_bytes: 0, ..honest }), ..probe };
        assert_eq!(cached.caveats(false).len(), 1);
        assert!(cached.caveats(false)[0].contains("the device under it read 0"));
        assert_eq!(cached.caveats(true), [""; 0]);
        let dropped = Probe { devices: Some(Seen { flushes: Some(3), ..honest }), ..probe };
        assert!(dropped.caveats(false)[0].contains("the volume's device was flushed 3 times"));
        assert!(dropped.loses_flushes());
        let none = Probe { devices: Some(Seen { flushes: None, ..honest }), ..probe };
        assert!(!none.loses_flushes() && none.caveats(false).is_empty());
        assert!(!Probe::default().loses_flushes());
    }
}
