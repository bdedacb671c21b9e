//! Arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1.

const POLYNOMIAL: u16 = 0x11d;

/// Powers of the generator 2, twice over, and their logarithms.
const fn powers() -> ([u8; 510], [u8; 256]) {
    let (mut exp, mut log) = ([0u8; 510], [0u8; 256]);
    let (mut value, mut at) = (1u16, 0);
    while at < 255 {
        exp[at] = value as u8;
        exp[at + 255] = value as u8;
        log[value as usize] = at as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        at += 1;
    }
    (exp, log)
}

static EXP: [u8; 510] = powers().0;
static LOG: [u8; 256] = powers().1;

/// The product.
pub fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])]
}

/// The inverse of what is not zero.
pub fn invert(a: u8) -> u8 {
    debug_assert_ne!(a, 0, "zero has no inverse");
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// Products of a constant with every low and every high half of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Halves {
    /// With 0 to 15.
    pub low: [u8; 16],
    /// With 0, 16, 32 to 240.
    pub high: [u8; 16],
}

impl Halves {
    /// The products of a constant.
    pub fn of(constant: u8) -> Self {
        let product =
            |shift: u32| std::array::from_fn(|half| multiply(constant, (half as u8) << shift));
        Self { low: product(0), high: product(4) }
    }

    /// The product with a byte.
    pub fn multiply(&self, byte: u8) -> u8 {
        self.low[usize::from(byte & 15)] ^ self.high[usize::from(byte >> 4)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication as it is defined: polynomials, then the remainder.
    fn by_definition(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= POLYNOMIAL << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_of_all_pairs_then_as_defined_and_halves_agree() {
        for a in 0..=255 {
            let halves = Halves::of(a);
            for b in 0..=255 {
                assert_eq!(multiply(a, b), by_definition(a, b));
                assert_eq!(halves.multiply(b), by_definition(a, b));
            }
        }
    }

    #[test]
    fn inverses_of_all_then_the_product_is_one() {
        for a in 1..=255 {
            assert_eq!(multiply(a, invert(a)), 1);
        }
    }
}
