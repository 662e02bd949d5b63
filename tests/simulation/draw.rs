//! Randomness that does not depend on the order in which it is asked for.

/// A source of its own for each question. Two things that happen at the same moment may be asked
/// about in either order, and leaving one out of a plan changes nothing for the others.
pub(crate) fn draw(seed: u64, question: &[u64]) -> fastrand::Rng {
    let state = question.iter().fold(mix(seed), |state, part| {
        mix(state ^ mix(part.wrapping_add(1)))
    });
    fastrand::Rng::with_seed(state)
}

/// [SplitMix64](https://prng.di.unimi.it/splitmix64.c).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
