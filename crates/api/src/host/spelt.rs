//! Enums that are spelt in one way, in JSON, in the database and for people.

macro_rules! spelt {
    ($type:ident, $what:literal, $($variant:ident = $text:literal),+) => {
        impl $type {
            /// Its spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is not {}", $what)),
                }
            }
        }
    };
}
