//! SplitMix64: cheap random numbers that are the same on every machine and in every version, and a way to mix numbers
//! into the seeds of other generators.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from this state.
    pub fn new(state: u64) -> Self {
        Self(state)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        number
    }
}

/// Mixes a number: every bit of the result depends on every bit of `state`. It is the first number of a generator in
/// that state.
pub fn mix(state: u64) -> u64 {
    let mixed = state.wrapping_add(GAMMA);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation, <https://prng.di.unimi.it/splitmix64.c>.
    #[test]
    fn numbers_are_those_of_the_reference_implementation() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }
}
