//! Arithmetic in GF(2⁸), the field of 256 elements, by the polynomial
//! x⁸ + x⁴ + x³ + x² + 1, in which 2 generates all elements but 0.
//!
//! Addition is exclusive or. Bytes are added and multiplied by loops that the
//! compiler makes vectors of; nothing here is secret: what goes in is sealed.

/// x⁸ in this field, without its carry.
const REDUCED: u8 = 0x1d;

/// `a` times x.
const fn doubled(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { REDUCED }
}

/// The product of two elements.
pub const fn multiply(a: u8, b: u8) -> u8 {
    let (mut product, mut a, mut b) = (0, a, b);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = doubled(a);
        b >>= 1;
    }
    product
}

/// `a` times itself, `exponent` times; 1 for 0.
pub const fn power(a: u8, exponent: u32) -> u8 {
    let (mut result, mut left) = (1, exponent);
    while left > 0 {
        result = multiply(result, a);
        left -= 1;
    }
    result
}

/// The element that makes 1 of `a`.
///
/// # Panics
/// If `a` is 0.
pub fn inverse(a: u8) -> u8 {
    assert!(a != 0, "nothing makes 1 of 0");
    // There are 255 others, and any to that power is 1.
    power(a, 254)
}

/// Multiplies every byte of `to` by 2^`shift`.
pub fn shift(to: &mut [u8], shift: u32) {
    for _ in 0..shift {
        for byte in &mut *to {
            *byte = doubled(*byte);
        }
    }
}

/// Multiplies every byte of `to` by 2^`shift` and adds those of `from`: one step of
/// a polynomial's evaluation.
pub fn shift_and_add(to: &mut [u8], shift: u32, from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    match shift {
        0 => {
            for (to, from) in to.iter_mut().zip(from) {
                *to ^= from;
            }
        }
        1 => {
            for (to, from) in to.iter_mut().zip(from) {
                *to = doubled(*to) ^ from;
            }
        }
        _ => {
            for (to, from) in to.iter_mut().zip(from) {
                let mut product = *to;
                for _ in 0..shift {
                    product = doubled(product);
                }
                *to = product ^ from;
            }
        }
    }
}

/// Adds `factor` times every byte of `from` to those of `to`.
pub fn add_product(to: &mut [u8], factor: u8, from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    if factor == 1 {
        return shift_and_add(to, 0, from);
    }
    let mut products = [0; 256];
    let mut of_bit = factor;
    for bit in 0..8 {
        let (known, next) = products.split_at_mut(1 << bit);
        for (next, known) in next.iter_mut().zip(known) {
            *next = *known ^ of_bit;
        }
        of_bit = doubled(of_bit);
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= products[usize::from(*from)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_but_zero_has_an_inverse_and_is_a_power_of_two() {
        let mut seen = [false; 256];
        for exponent in 0..255 {
            let element = power(2, exponent);
            assert!(!std::mem::replace(&mut seen[usize::from(element)], true));
            assert_eq!(multiply(element, inverse(element)), 1);
        }
        assert!(!seen[0]);
    }

    #[test]
    fn multiplication_is_that_of_a_field() {
        for a in 0..=u8::MAX {
            assert_eq!((multiply(a, 0), multiply(a, 1)), (0, a));
            for b in 0..=u8::MAX {
                assert_eq!(multiply(a, b), multiply(b, a));
                let c = a.wrapping_mul(31) ^ b;
                let (one, other) = (multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
                assert_eq!(one, other, "{a} ({b} + {c})");
            }
        }
    }

    #[test]
    fn bytes_are_multiplied_as_elements_are() {
        let from: Vec<u8> = (0..=u8::MAX).collect();
        let before: Vec<u8> = from.iter().map(|byte| byte.wrapping_mul(7)).collect();
        for factor in 0..=u8::MAX {
            let mut to = before.clone();
            add_product(&mut to, factor, &from);
            let expected = before.iter().zip(&from);
            let expected: Vec<u8> = expected.map(|(to, b)| to ^ multiply(factor, *b)).collect();
            assert_eq!(to, expected);
        }
        for shift in 0..4 {
            let mut to = before.clone();
            shift_and_add(&mut to, shift, &from);
            let expected = before.iter().zip(&from);
            let expected: Vec<u8> = expected
                .map(|(to, b)| multiply(*to, power(2, shift)) ^ b)
                .collect();
            assert_eq!(to, expected);
        }
    }
}
