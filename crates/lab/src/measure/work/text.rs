//! Parsing and formatting of works.

use super::Work;

impl std::fmt::Display for Work {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = base::size::exact_bytes;
        match *self {
            Self::Write {
                bytes,
                request_bytes,
            } => write!(
                formatter,
                "write {} by {}",
                size(bytes),
                size(request_bytes)
            ),
            Self::ReadCold {
                bytes,
                request_bytes,
                is_random,
            } => {
                let order = if is_random { " in random order" } else { "" };
                let (bytes, request) = (size(bytes), size(request_bytes));
                write!(formatter, "read {bytes} by {request}{order}, cold")
            }
            Self::ReadWarm {
                bytes,
                request_bytes,
            } => write!(
                formatter,
                "read {} by {}, warm",
                size(bytes),
                size(request_bytes)
            ),
            Self::Direct {
                bytes,
                request_bytes,
                read_percent,
                depth,
            } => {
                let (bytes, request) = (size(bytes), size(request_bytes));
                write!(
                    formatter,
                    "{read_percent} % reads of {bytes} by {request}, {depth} at once"
                )
            }
            Self::Apart { bytes } => {
                write!(formatter, "read {} with work in between, cold", size(bytes))
            }
            Self::Words { bytes } => write!(formatter, "count the words in {}", size(bytes)),
        }
    }
}

/// The forms of a work.
const FORMS: &str = "write:SIZE:REQUEST, cold:SIZE:REQUEST, random:SIZE:REQUEST, \
    warm:SIZE:REQUEST, apart:SIZE, direct:SIZE:REQUEST:READ_PERCENT:DEPTH or words:SIZE";

/// The largest request, in bytes.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// The largest queue depth.
const DEPTH_MAX: u32 = 128;

/// Parses the size of the data.
fn bytes_of(bytes: &str) -> Result<u64, String> {
    match base::size::parse(bytes)? {
        0 => Err("use at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses the size of a request.
fn request_of(bytes: &str) -> Result<u64, String> {
    match base::size::parse(bytes)? {
        bytes @ 1..=REQUEST_BYTES_MAX => Ok(bytes),
        _ => Err("use requests of 1 byte to 16M".to_owned()),
    }
}

fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let parsed = text.parse::<u32>().ok();
    let parsed = parsed.filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| format!("{text:?} is not a number from {least} to {most}"))
}

impl std::str::FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(':').collect();
        let two =
            |bytes: &str, request: &str| Ok::<_, String>((bytes_of(bytes)?, request_of(request)?));
        match words[..] {
            ["write", bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::Write {
                    bytes,
                    request_bytes,
                })
            }
            [order @ ("cold" | "random"), bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::ReadCold {
                    bytes,
                    request_bytes,
                    is_random: order == "random",
                })
            }
            ["warm", bytes, request] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                Ok(Self::ReadWarm {
                    bytes,
                    request_bytes,
                })
            }
            ["direct", bytes, request, percent, depth] => {
                let (bytes, request_bytes) = two(bytes, request)?;
                if request_bytes % 4096 != 0 || bytes < request_bytes {
                    return Err(
                        "direct requests must be multiples of 4K, and there must be at least one"
                            .to_owned(),
                    );
                }
                Ok(Self::Direct {
                    bytes,
                    request_bytes,
                    read_percent: number(percent, 0, 100)?,
                    depth: number(depth, 1, DEPTH_MAX)?,
                })
            }
            ["apart", bytes] => Ok(Self::Apart {
                bytes: bytes_of(bytes)?,
            }),
            ["words", bytes] => Ok(Self::Words {
                bytes: bytes_of(bytes)?,
            }),
            _ => Err(format!("{text:?} is not a work: use {FORMS}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_formatted_in_words() {
        let parse = |text: &str| text.parse::<Work>().map(|work| work.to_string());
        assert_eq!(parse("write:1M:4K").as_deref(), Ok("write 1M by 4K"));
        assert_eq!(parse("cold:1M:4K").as_deref(), Ok("read 1M by 4K, cold"));
        assert_eq!(parse("words:10M").as_deref(), Ok("count the words in 10M"));
        let direct = parse("direct:8M:64K:30:4");
        assert_eq!(direct.as_deref(), Ok("30 % reads of 8M by 64K, 4 at once"));
        for bad in [
            "",
            "write",
            "write:1M",
            "write:0:4K",
            "write:1M:1G",
            "direct:1M:100:0:1",
            "direct:1M:4K:101:1",
            "direct:1M:4K:0:1000",
            "direct:1M:4K:0:0",
            "words:x",
            "read:1M:4K",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
