//! Numbers of bytes, as people read and write them.

const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];

/// About so many bytes: `1.5G`.
#[must_use]
pub fn about_bytes(count: u64) -> String {
    let mut unit = 0;
    let mut scaled = count as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if scaled.fract() == 0.0 {
        format!("{scaled}{}", UNITS[unit])
    } else {
        format!("{scaled:.1}{}", UNITS[unit])
    }
}

/// Exactly so many bytes, in the largest unit of which they are a multiple:
/// what [`crate::parse::bytes`] reads back.
#[must_use]
pub fn exact_bytes(count: u64) -> String {
    let mut unit = 0;
    let mut scaled = count;
    while scaled != 0 && scaled.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        scaled /= 1024;
        unit += 1;
    }
    match unit {
        0 if scaled == 1 => "1 byte".to_owned(),
        0 => format!("{scaled} bytes"),
        _ => format!("{scaled}{}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spelt_in_the_largest_unit_that_fits() {
        let about = [0, 512, 4096, 10 << 30, 3 << 29, 5000, (10 << 30) + 4096].map(about_bytes);
        assert_eq!(about, ["0B", "512B", "4K", "10G", "1.5G", "4.9K", "10.0G"]);
        for (count, spelt) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (4097, "4097 bytes"),
            (4096, "4K"),
            (3 << 29, "1536M"),
            ((10 << 30) + 4096, "10485764K"),
            (1 << 60, "1048576T"),
        ] {
            assert_eq!(exact_bytes(count), spelt);
            let read = spelt.split(" byte").next().expect("a number");
            assert_eq!(crate::parse::bytes("size", read).expect("a size"), count);
        }
    }
}
