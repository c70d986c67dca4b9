//! Looks at a volume of this machine through its file system: see [`bedplate_core::probe`].

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bedplate_core::probe::{Probe, READ_BYTES, SYNC_BYTES, SYNCS, Seen, Syncs};
use bedplate_core::rng::SplitMix64;
use bedplate_core::sampler::{DeviceCounts, Monitor};
use rustix::fs::{Advice, fadvise};

use crate::environment::line;
use crate::monitor::HostMonitor;

const CHUNK_BYTES: usize = 1 << 20;

/// Devices in groups that are flushed together.
type Groups = [Vec<String>];

/// Measures in a file of `directory`, which is removed again. `devices` are the volume's, `backing`
/// those under them.
pub(super) fn probe(directory: &Path, devices: &Groups, backing: &Groups) -> io::Result<Probe> {
    let path = directory.join("bedplate-probe");
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    let measured = measure(file, devices, backing);
    fs::remove_file(&path)?;
    measured
}

fn measure(mut file: File, devices: &Groups, backing: &Groups) -> io::Result<Probe> {
    // What cannot be compressed or told from what is there already.
    let mut random = SplitMix64::stream(0, 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    for _ in 0..READ_BYTES / CHUNK_BYTES as u64 {
        chunk
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
        file.write_all(&chunk)?;
    }
    file.sync_all()?;

    let look = || -> Looks { (HostMonitor.devices(devices), HostMonitor.devices(backing)) };
    let before = look();
    let mut times_us = Vec::with_capacity(SYNCS as usize);
    for number in 0..u64::from(SYNCS) {
        let started = Instant::now();
        let at = number * SYNC_BYTES as u64;
        // Other bytes than those that are there.
        file.write_all_at(&chunk[number as usize..][..SYNC_BYTES], at)?;
        file.sync_data()?;
        times_us.push(started.elapsed().as_secs_f64() * 1e6);
    }
    let written = look();

    fadvise(&file, 0, None, Advice::DontNeed)?;
    let forgotten = look();
    let cold_read_s = read(&mut file, &mut chunk)?;
    let read_once = look();
    let warm_read_s = read(&mut file, &mut chunk)?;

    let seen = |of: fn(&Looks) -> Option<DeviceCounts>, groups: &Groups| {
        let flushes = of(&written)?.flushes.saturating_sub(of(&before)?.flushes);
        let read_bytes = of(&read_once)?.read_bytes.saturating_sub(of(&forgotten)?.read_bytes);
        let flushed = groups.iter().flatten().any(|name| has_cache(name));
        Some(Seen { flushes: flushed.then_some(flushes), read_bytes })
    };
    Ok(Probe {
        sync_us: Syncs::of(times_us),
        devices: seen(|looks| looks.0, devices),
        backing: seen(|looks| looks.1, backing),
        cold_read_s,
        warm_read_s,
    })
}

/// What both layers of devices have done.
type Looks = (Option<DeviceCounts>, Option<DeviceCounts>);

/// Whether a device is sent flushes. A disk need not be, if it says so; a loop device that says so drops
/// them.
fn has_cache(name: &str) -> bool {
    name.starts_with("loop") || write_cache(name).is_none_or(|cache| cache == "write back")
}

/// What a device says of its cache, which for a partition is its disk's.
pub(super) fn write_cache(name: &str) -> Option<String> {
    let device = Path::new("/sys/class/block").join(name);
    ["queue/write_cache", "../queue/write_cache"].iter().find_map(|file| line(device.join(file)))
}

/// Seconds of reading the file from its start to its end.
fn read(file: &mut File, chunk: &mut [u8]) -> io::Result<f64> {
    let started = Instant::now();
    file.seek(SeekFrom::Start(0))?;
    while file.read(chunk)? > 0 {}
    Ok(started.elapsed().as_secs_f64())
}
