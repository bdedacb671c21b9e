//! Hashes and logarithms that come out the same on every machine.

/// The finalizer of `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014) over two words.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

/// The natural logarithm of a hash taken as a number in (0, 1): never 0, never infinite.
///
/// From additions, products and quotients alone, which IEEE 754 rounds in one way only; the `ln` of
/// the system's library may differ in the last bit between machines, which then would not place
/// alike.
pub(super) fn ln_unit(hash: u64) -> f64 {
    // 52 bits, and a half so that neither 0 nor 1 can occur: 53 are exact.
    let unit = ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    let bits = unit.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); with m in [0.7, 1.42] nine terms give 15 digits.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (0..9).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * ratio * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_unit_of_hashes_then_the_logarithm() {
        for at in 0..10_000u64 {
            let hash = if at < 3 { [0, 1, u64::MAX][at as usize] } else { mix(at, 7) };
            let unit = ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            let got = ln_unit(hash);
            assert!(
                got < 0.0 && (got - unit.ln()).abs() <= 1e-13 * unit.ln().abs().max(1e-3),
                "{at}"
            );
        }
    }
}
