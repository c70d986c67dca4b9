//! Turns readings of counters and gauges, one a second, into metric samples.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::record::MetricSample;

/// One reading of something the machine counts or shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Name of the metric that comes of it, ending in its unit.
    pub metric: &'static str,
    /// What the machine shows.
    pub value: ReadingValue,
}

/// Kinds of reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadingValue {
    /// A state: the sample is the reading itself.
    Gauge(f64),
    /// A count that only grows: the sample is its growth per second since the reading before.
    Counter(f64),
}

/// What the block devices of a volume have done since they are there, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Completed flushes of the volume: of each group that of its devices with most, as one goes to all of
    /// them, and of all groups together.
    pub flushes: u64,
    /// Requests under way at this moment.
    pub in_flight: u64,
}

impl DeviceCounts {
    /// What metrics are made of.
    pub(crate) fn readings(self) -> [Reading; 6] {
        let counter =
            |metric, count: u64| Reading { metric, value: ReadingValue::Counter(count as f64) };
        [
            counter("volume_reads_per_s", self.reads),
            counter("volume_read_bytes_per_s", self.read_bytes),
            counter("volume_writes_per_s", self.writes),
            counter("volume_written_bytes_per_s", self.written_bytes),
            counter("volume_flushes_per_s", self.flushes),
            Reading {
                metric: "volume_in_flight_requests",
                value: ReadingValue::Gauge(self.in_flight as f64),
            },
        ]
    }
}

/// Reads the machine. Implemented by the host monitor and, in tests, by a script.
pub trait Monitor: Send + Sync {
    /// All readings of this moment; one that cannot be had is left out.
    fn read(&self) -> Vec<Reading>;

    /// What the block devices of those names, in groups that are flushed together, have done; absent when
    /// there is none, or one cannot be seen.
    fn devices(&self, groups: &[Vec<String>]) -> Option<DeviceCounts>;

    /// What the machine shows of a server's processes, by the first of them; one reading that cannot
    /// be had is left out.
    fn server(&self, process: u32) -> Vec<Reading>;

    /// Warnings and worse that the kernel logged within the last `age`; none where its log is not open
    /// to this user.
    fn kernel_messages(&self, age: Duration) -> Vec<String>;
}

/// Remembers the readings before.
#[derive(Debug, Default)]
pub struct Sampler {
    before: BTreeMap<&'static str, (Duration, f64)>,
}

impl Sampler {
    /// The samples of `readings` taken at `at` from the start of the load. A counter gives none the
    /// first time, and none when it ran backwards (it was reset): a gap stays a gap.
    pub fn samples(&mut self, at: Duration, readings: &[Reading]) -> Vec<MetricSample> {
        readings
            .iter()
            .filter_map(|reading| {
                let value = match reading.value {
                    ReadingValue::Gauge(value) => Some(value),
                    ReadingValue::Counter(count) => self.rate(reading.metric, at, count),
                }?;
                Some(MetricSample { at_s: at.as_secs_f64(), metric: reading.metric.into(), value })
            })
            .collect()
    }

    fn rate(&mut self, metric: &'static str, at: Duration, count: f64) -> Option<f64> {
        let (before_at, before) = self.before.insert(metric, (at, count))?;
        let seconds = (at.checked_sub(before_at)?).as_secs_f64();
        (count >= before && seconds > 0.0).then(|| (count - before) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rates_and_resets_become_gaps() {
        let mut sampler = Sampler::default();
        let counter = |count| [Reading { metric: "x_per_s", value: ReadingValue::Counter(count) }];
        let mut values = |at, count| -> Vec<f64> {
            let samples = sampler.samples(Duration::from_secs(at), &counter(count));
            samples.iter().map(|sample| sample.value).collect()
        };
        assert!(values(1, 100.0).is_empty());
        assert_eq!(values(3, 150.0), [25.0]);
        assert!(values(4, 10.0).is_empty());
        assert_eq!(values(5, 12.0), [2.0]);
    }
}
