//! CRC-32C, the checksum of everything that is not sealed. Sealed blocks have an authentication
//! tag instead.

/// The CRC-32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The CRC-32C of `head` followed by `tail`, given the CRC of `head`.
#[must_use]
pub fn crc32c_append(head: u32, tail: &[u8]) -> u32 {
    crc32c::crc32c_append(head, tail)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_crc_of_the_standard_check_string_is_right() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(
            super::crc32c_append(super::crc32c(b"1234"), b"56789"),
            0xe306_9283
        );
    }
}
