//! How much room a database takes: the sums behind a volume's default size and the plan's estimate.
//!
//! A volume that measures has to hold, at the worst moment,
//!
//! ```text
//!   base      96 MiB            fresh cluster with its three databases, before anything is loaded
//! + data      15 MiB x scale    accounts and their index (pgbench: 15.0 MiB a unit), each instance
//! + growth    data x 0.6        dead rows and indexes between two vacuums
//!             + 1 MiB/s         history rows
//! + WAL       min(1.5 x max_wal_size, data + 48 MiB/s)
//! ```
//!
//! where the seconds are those of warm-up and measuring. `max_wal_size` is a soft limit, hence the
//! half more. 48 MiB/s is some 6,000 transactions a second, each with one full page of 8 KiB: what
//! a fast disk does right after a checkpoint. Read-only workloads write no WAL after the load and do
//! not grow. The file system itself takes 8 % on top (reserved blocks, inodes, its journal); the sum
//! is rounded up to 64 MiB, and is never below 512 MiB.

use std::collections::BTreeMap;

use crate::plan::{RunLength, Work, WorkloadKind, WorkloadPlan};
use crate::slap::SlapPlan;

/// A mebibyte.
pub const MIB: u64 = 1 << 20;
/// A gibibyte.
pub const GIB: u64 = 1 << 30;

/// The smallest volume that is made without being asked for.
pub const VOLUME_BYTES_MIN: u64 = 512 * MIB;
/// What `mkfs.xfs` refuses to go below.
pub const XFS_BYTES_MIN: u64 = 300 * MIB;
/// What `zpool create` refuses to go below for each device.
pub const ZFS_DEVICE_BYTES_MIN: u64 = 64 * MIB;
/// What `mkfs.btrfs` refuses to go below for each device.
pub const BTRFS_DEVICE_BYTES_MIN: u64 = 114_294_784;

const BASE_BYTES: u64 = 96 * MIB;
/// Redo logs, doublewrite buffer, undo and system tables of a fresh InnoDB.
const INNODB_BYTES: u64 = 256 * MIB;
const DATA_BYTES_PER_SCALE: u64 = 15 * MIB;
const WAL_BYTES_PER_SECOND: u64 = 48 * MIB;
const WAL_BYTES_PER_TRANSACTION: u64 = 10 << 10;
const HISTORY_BYTES_PER_SECOND: u64 = MIB;
const HISTORY_BYTES_PER_TRANSACTION: u64 = 128;
const ROUNDING_BYTES: u64 = 64 * MIB;
/// PostgreSQL's own default of `max_wal_size`.
const MAX_WAL_SIZE_BYTES: u64 = GIB;

/// Bytes of a freshly loaded cluster: less than this can never work.
pub fn loaded_bytes(scale: u32, instances: u32) -> u64 {
    BASE_BYTES + DATA_BYTES_PER_SCALE * u64::from(scale) * u64::from(instances)
}

/// Bytes at the worst moment of a trial, without what the file system itself takes.
pub fn needed_bytes(workload: &WorkloadPlan, settings: &BTreeMap<String, String>) -> u64 {
    let scale = match &workload.work {
        Work::Slap(slap) => return slap_bytes(slap, workload.clients, workload.instances),
        work => work.scale().unwrap_or(0),
    };
    let data = DATA_BYTES_PER_SCALE * u64::from(scale) * u64::from(workload.instances);
    let (wal, history) = match (workload.work.kind(), workload.length) {
        (WorkloadKind::SelectOnly, _) | (_, RunLength::Queries) => (0, 0),
        (_, RunLength::DurationS(seconds)) => {
            let seconds = (seconds + workload.warmup_s).ceil() as u64;
            (
                seconds.saturating_mul(WAL_BYTES_PER_SECOND),
                seconds.saturating_mul(HISTORY_BYTES_PER_SECOND),
            )
        }
        (_, RunLength::Transactions(count)) => {
            let count = count.saturating_mul(workload.clients_in_all());
            (
                count.saturating_mul(WAL_BYTES_PER_TRANSACTION),
                count.saturating_mul(HISTORY_BYTES_PER_TRANSACTION),
            )
        }
    };
    let max_wal_size = settings
        .get("max_wal_size")
        .and_then(|text| setting_bytes(text, MIB))
        .unwrap_or(MAX_WAL_SIZE_BYTES);
    let wal = data.saturating_add(wal).min(max_wal_size.saturating_add(max_wal_size / 2));
    (BASE_BYTES + data + data * 6 / 10).saturating_add(history).saturating_add(wal)
}

/// What slap's rows take at most: a fresh InnoDB with its logs, and every query an insert, with half
/// as much again for pages that are not full.
fn slap_bytes(slap: &SlapPlan, clients: u32, instances: u32) -> u64 {
    let columns = 40
        + u64::from(slap.int_columns) * 4
        + u64::from(slap.char_columns) * 127
        + u64::from(slap.secondary_indexes) * 37;
    let inserts = slap.queries_of(clients);
    let rows = slap.preload_rows().saturating_add(inserts).saturating_mul(u64::from(instances));
    (BASE_BYTES + INNODB_BYTES).saturating_add(rows.saturating_mul(columns).saturating_mul(3) / 2)
}

/// The size of a volume that has to hold `needed` bytes.
pub fn volume_bytes(needed: u64) -> u64 {
    let with_file_system = needed / 92 * 100;
    with_file_system.div_ceil(ROUNDING_BYTES).saturating_mul(ROUNDING_BYTES).max(VOLUME_BYTES_MIN)
}

/// What must stay free beside a volume: a twentieth of what is free, at least a gibibyte.
pub fn reserve_bytes(free_bytes: u64) -> u64 {
    (free_bytes / 20).max(GIB)
}

/// A PostgreSQL setting that is a size, in bytes; a number alone counts in `unit_bytes`.
/// PostgreSQL's kB, MB, GB and TB are binary.
pub fn setting_bytes(text: &str, unit_bytes: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "" => unit_bytes,
        "B" => 1,
        "kB" => 1 << 10,
        "MB" => MIB,
        "GB" => GIB,
        "TB" => 1 << 40,
        _ => return None,
    };
    Some((number * unit as f64) as u64)
}

/// Bytes for people: exact in the largest binary unit that divides them, else with one decimal.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    if bytes.is_multiple_of(unit) {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.1} {name}", bytes as f64 / unit as f64)
    }
}

/// Seconds for people: `45 s`, `2 min 5 s`, `3 h 12 min`.
pub fn seconds_text(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{} s", (seconds * 10.0).round() / 10.0);
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        match whole % 60 {
            0 => format!("{} min", whole / 60),
            rest => format!("{} min {rest} s", whole / 60),
        }
    } else {
        format!("{} h {} min", whole / 3600, whole % 3600 / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CacheState, QueryProtocol, Scaled};

    fn workload(kind: WorkloadKind, scale: u32, length: RunLength, warmup_s: f64) -> WorkloadPlan {
        let protocol = QueryProtocol::Simple;
        let scaled = Scaled { scale, filler_random_percent: 0 };
        let work = match kind {
            WorkloadKind::SelectOnly => Work::SelectOnly(scaled),
            _ => Work::Tpcb(scaled),
        };
        WorkloadPlan {
            work,
            instances: 1,
            clients: 4,
            threads: 2,
            protocol,
            max_tries: 1,
            cache: CacheState::Warm,
            arrivals: None,
            length,
            warmup_s,
        }
    }

    #[test]
    fn a_short_trial_needs_what_it_can_write() {
        let quick = workload(WorkloadKind::Tpcb, 5, RunLength::DurationS(10.0), 2.0);
        // 96 base + 75 data + 45 growth + 12 history + (75 + 576) WAL.
        assert_eq!(needed_bytes(&quick, &BTreeMap::new()), 879 * MIB);
        // 879 / 0.92 = 955.4, up to a multiple of 64.
        assert_eq!(volume_bytes(879 * MIB), 960 * MIB);
    }

    #[test]
    fn instances_have_their_data_each_and_the_log_together() {
        let mut four = workload(WorkloadKind::Tpcb, 5, RunLength::DurationS(10.0), 2.0);
        four.instances = 4;
        // 96 base + 4 x 75 data + 180 growth + 12 history + (300 + 576) WAL.
        assert_eq!(needed_bytes(&four, &BTreeMap::new()), (96 + 300 + 180 + 12 + 876) * MIB);
    }

    #[test]
    fn a_long_trial_is_bounded_by_max_wal_size() {
        let long = workload(WorkloadKind::Tpcb, 100, RunLength::DurationS(300.0), 900.0);
        let settings = BTreeMap::from([("max_wal_size".to_owned(), "4GB".to_owned())]);
        assert_eq!(needed_bytes(&long, &settings), (96 + 1500 + 900 + 1200 + 6144) * MIB);
    }

    #[test]
    fn reading_only_writes_no_more_than_the_load() {
        let read = workload(WorkloadKind::SelectOnly, 10, RunLength::DurationS(900.0), 0.0);
        assert_eq!(needed_bytes(&read, &BTreeMap::new()), (96 + 150 + 90 + 150) * MIB);
        assert_eq!(volume_bytes(0), VOLUME_BYTES_MIN);
    }

    #[test]
    fn settings_are_binary() {
        assert_eq!(setting_bytes("64", MIB), Some(64 * MIB));
        assert_eq!(setting_bytes("2GB", MIB), Some(2 * GIB));
        assert_eq!(setting_bytes("1.5 GB", MIB), Some(1536 * MIB));
        assert_eq!(setting_bytes("1 GiB", MIB), None);
    }

    #[test]
    fn texts_are_short() {
        assert_eq!(bytes_text(512), "512 B");
        assert_eq!(bytes_text(960 * MIB), "960 MiB");
        assert_eq!(bytes_text(1_500_000_000), "1.4 GiB");
        assert_eq!(seconds_text(2.5), "2.5 s");
        assert_eq!(seconds_text(125.0), "2 min 5 s");
        assert_eq!(seconds_text(7_320.0), "2 h 2 min");
    }
}
