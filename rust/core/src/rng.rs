//! The generator behind every random order: small, documented, and the same on every machine.
//!
//! SplitMix64 (Steele, Lea, Flood 2014) walks through all 2^64 states and has no bad seeds, so a
//! seed and a block number are enough to know an order for ever.

/// A SplitMix64 generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

/// The odd step between states: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The generator of stream number `stream` of `seed`. The start is drawn from the seed's own
    /// sequence and mixed with the number, so streams of one seed do not overlap in practice.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let start = Self::new(seed).next_u64();
        Self::new(Self::new(start ^ stream).next_u64())
    }

    /// The generator of one transaction: what it draws depends on the seed, the client's number and
    /// the transaction's number alone, never on the timing of threads.
    pub fn for_transaction(seed: u64, client: u64, sequence: u64) -> Self {
        let client = Self::stream(seed, client);
        Self::stream(client.state, sequence)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, each equally likely: draws from the uneven rest are thrown away
    /// (Lemire 2019).
    ///
    /// # Panics
    /// When `bound` is 0: there is no such number.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a bound of 0 leaves nothing to draw");
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        // The division is needed only where the uneven rest could be: almost never.
        if (product as u64) < bound {
            let rest = bound.wrapping_neg() % bound;
            while (product as u64) < rest {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// A number from 0 up to, but not including, 1: the upper 53 bits, which is what a double holds.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A random order of `0..count` (Fisher and Yates, from the last place down).
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            order.swap(last, chosen);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_first_values_come_out() {
        // From the reference implementation by Sebastiano Vigna, seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let drawn: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn below_is_even() {
        let mut random = SplitMix64::new(7);
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        // Standard deviation of each count is 91; five of them either way.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 457), "{counts:?}");
    }

    #[test]
    fn neighbouring_transactions_draw_apart() {
        let mut first = std::collections::BTreeSet::new();
        for (client, sequence) in (0..100).flat_map(|c| (0..100).map(move |s| (c, s))) {
            first.insert(SplitMix64::for_transaction(20, client, sequence).next_u64());
        }
        assert_eq!(first.len(), 10_000);
        let again = SplitMix64::for_transaction(20, 3, 4);
        assert_eq!(again, SplitMix64::for_transaction(20, 3, 4));
    }

    #[test]
    fn below_one_is_zero() {
        assert_eq!(SplitMix64::new(3).below(1), 0);
    }

    #[test]
    fn all_orders_of_three_are_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for block in 0..6_000 {
            *counts.entry(SplitMix64::stream(20, block).permutation(3)).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| count.abs_diff(1_000) < 150), "{counts:?}");
    }
}
