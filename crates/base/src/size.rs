//! Sizes as users read and write them: numbers of bytes with units that are powers of 1024.

const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];

/// A size rounded for display, such as `1.5G`.
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

/// An exact size, in the largest unit of which it is a multiple. [`parse`] reads it back.
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

/// Parses a size in bytes: `4096`, `64K`, `512M`, `10G` or `1T`, also spelled `10GiB` or `10GB`.
///
/// # Errors
/// Text for users that says how to write a size.
pub fn parse(text: &str) -> Result<u64, String> {
    let invalid = || format!("{text:?} is not a size: write it as 512M, 10G or 1T, or in bytes");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let suffix = suffix.trim_start().to_ascii_lowercase();
    let suffix = suffix
        .strip_suffix("ib")
        .or(suffix.strip_suffix('b'))
        .unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(invalid()),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} is too large: a volume has at most 64T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spelled_in_the_largest_unit_that_fits() {
        let about = [0, 512, 4096, 10 << 30, 3 << 29, 5000, (10 << 30) + 4096].map(about_bytes);
        assert_eq!(about, ["0B", "512B", "4K", "10G", "1.5G", "4.9K", "10.0G"]);
        for (count, spelled) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (4097, "4097 bytes"),
            (4096, "4K"),
            (3 << 29, "1536M"),
            ((10 << 30) + 4096, "10485764K"),
            (1 << 60, "1048576T"),
        ] {
            assert_eq!(exact_bytes(count), spelled);
            let read = spelled.split(" byte").next().expect("a number");
            assert_eq!(parse(read).expect("a size"), count);
        }
    }

    #[test]
    fn units_of_sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("4096", 4096),
            ("64K", 65536),
            ("512M", 512 << 20),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10GiB", 10 << 30),
            ("1 TB", 1 << 40),
        ] {
            assert_eq!(parse(text).expect("a size"), expected, "{text}");
        }
        for bad in [
            "",
            "G",
            "-1",
            "1.5G",
            "10X",
            "10GG",
            "0x10",
            "99999999999999999999",
            "99999P",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
