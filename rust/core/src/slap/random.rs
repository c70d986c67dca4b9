//! The `random()` of the GNU C library, whose values after the seed 1 are in every statement that
//! mysqlslap makes on Linux.
//!
//! The default generator (31 words of state, "TYPE_3") is an additive feedback generator. After the
//! seed s:
//!
//! ```text
//! r[0] = s                   r[i] = 16807 · r[i-1] mod (2³¹ - 1)       i = 1 … 30
//! r[i] = r[i-31]             i = 31 … 33
//! r[i] = r[i-3] + r[i-31]    i = 34 …      (mod 2³²)
//! ```
//!
//! The values up to r[343] are thrown away; from then on each is given without its lowest bit.

const WORDS: usize = 31;
const LAG: usize = 3;
const MULTIPLIER: u64 = 16_807;
const MODULUS: u64 = (1 << 31) - 1;
/// Sums that are thrown away after seeding: r[34] … r[343].
const DISCARDED: u32 = 310;

/// The additive feedback generator.
#[derive(Debug, Clone)]
pub(super) struct GlibcRandom {
    /// The last 31 values, as a ring.
    state: [u32; WORDS],
    /// Place of the oldest value, which the next one replaces.
    oldest: usize,
}

impl GlibcRandom {
    /// The generator after `srandom(seed)`, for seeds from 1 to 2³¹ - 2; nothing else is needed.
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [0; WORDS];
        let mut word = u64::from(seed);
        for place in &mut state {
            // Below 2^31: it fits.
            *place = word as u32;
            word = MULTIPLIER * word % MODULUS;
        }
        // r[31], r[32] and r[33] repeat r[0], r[1] and r[2], so the ring has turned by three already.
        let mut random = Self { state, oldest: LAG };
        for _ in 0..DISCARDED {
            random.step();
        }
        random
    }

    /// The next value, from 0 to 2³¹ - 1.
    pub(super) fn next(&mut self) -> u32 {
        self.step() >> 1
    }

    fn step(&mut self) -> u32 {
        let lagging = (self.oldest + WORDS - LAG) % WORDS;
        let sum = self.state[self.oldest].wrapping_add(self.state[lagging]);
        self.state[self.oldest] = sum;
        self.oldest = (self.oldest + 1) % WORDS;
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `srandom(seed)` and then `random()` of glibc 2.36 (x86-64) gave, called from Python's
    /// ctypes: the first values, and those at some later places.
    #[test]
    fn values_are_those_of_the_c_library() {
        for (seed, first, later) in [
            (
                1,
                [
                    1_804_289_383,
                    846_930_886,
                    1_681_692_777,
                    1_714_636_915,
                    1_957_747_793,
                    424_238_335,
                    719_885_386,
                    1_649_760_492,
                ],
                [1_057_418_418, 1_389_867_269, 1_143_565_421, 1_908_609_430, 660_658_275],
            ),
            (
                42,
                [
                    71_876_166,
                    708_592_740,
                    1_483_128_881,
                    907_283_241,
                    442_951_012,
                    537_146_758,
                    1_366_999_021,
                    1_854_614_940,
                ],
                [42_830_090, 507_858_287, 896_784_309, 48_510_282, 1_947_218_706],
            ),
        ] {
            let mut random = GlibcRandom::new(seed);
            let drawn: Vec<u32> = (0..100_000).map(|_| random.next()).collect();
            assert_eq!(drawn[..8], first, "seed {seed}");
            assert_eq!([309, 343, 999, 9_999, 99_999].map(|place| drawn[place]), later, "{seed}");
        }
    }
}
