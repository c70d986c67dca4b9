//! When transactions of an open loop are to start.

use std::time::{Duration, Instant};

use crate::plan::{Arrivals, Spacing};
use crate::rng::SplitMix64;

/// The stream of a thread's arrivals, apart from those of its clients' values.
const STREAM: u64 = 1 << 40;

/// The arrivals of one thread, one after another: known from the seed, and moved on from the start of the load, never
/// from what the server did.
pub(super) struct Schedule {
    zero: Instant,
    random: SplitMix64,
    mean_s: f64,
    spacing: Spacing,
    next_s: f64,
}

impl Schedule {
    pub(super) fn new(zero: Instant, arrivals: Arrivals, seed: u64, first_client: u32) -> Self {
        let mut schedule = Self {
            zero,
            random: SplitMix64::stream(seed, STREAM + u64::from(first_client)),
            mean_s: 1.0 / arrivals.rate_per_s,
            spacing: arrivals.spacing,
            next_s: 0.0,
        };
        schedule.next_s = match arrivals.spacing {
            Spacing::Poisson => schedule.gap_s(),
            // Threads that were in step would come in bursts.
            Spacing::Even => schedule.random.unit() * schedule.mean_s,
        };
        schedule
    }

    /// When the next transaction is to start.
    pub(super) fn next(&self) -> Instant {
        self.zero + Duration::from_secs_f64(self.next_s)
    }

    pub(super) fn advance(&mut self) {
        self.next_s += self.gap_s();
    }

    fn gap_s(&mut self) -> f64 {
        match self.spacing {
            // By inversion; 1 - u is never 0.
            Spacing::Poisson => -(1.0 - self.random.unit()).ln() * self.mean_s,
            Spacing::Even => self.mean_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(spacing: Spacing, count: usize) -> Vec<f64> {
        let zero = Instant::now();
        let arrivals = Arrivals { rate_per_s: 500.0, spacing };
        let mut schedule = Schedule::new(zero, arrivals, 7, 0);
        let mut times = Vec::new();
        for _ in 0..count {
            times.push((schedule.next() - zero).as_secs_f64());
            schedule.advance();
        }
        times
    }

    #[test]
    fn poisson_arrivals_have_exponential_gaps() {
        let times = times(Spacing::Poisson, 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / 1e5;
        // The mean of 100,000 gaps has a standard deviation of 1/316 of it.
        assert!((mean * 500.0 - 1.0).abs() < 0.016, "{mean}");
        // P(gap > t means) = exp(-t).
        for t in [0.1_f64, 0.5, 1.0, 2.0, 4.0] {
            let share = gaps.iter().filter(|gap| **gap * 500.0 > t).count() as f64 / 1e5;
            let expected = (-t).exp();
            let sd = (expected * (1.0 - expected) / 1e5).sqrt();
            assert!((share - expected).abs() < 5.0 * sd, "{t}: {share} and {expected}");
        }
    }

    #[test]
    fn even_arrivals_have_equal_gaps() {
        let times = times(Spacing::Even, 1000);
        assert!(times[0] < 0.002);
        assert!(times.windows(2).all(|pair| (pair[1] - pair[0] - 0.002).abs() < 1e-6));
    }
}
