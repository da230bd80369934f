//! [`FilterConfig`]: what each kind of filter says of itself, and [`kinds`], which makes
//! [`FilterKind`](crate::FilterKind) from the list of kinds.

use serde::de::DeserializeOwned;

use crate::out_of_process::Placement;

/// The parameters of a kind of filter, and what holds for all filters of that kind.
pub(crate) trait FilterConfig: DeserializeOwned {
    /// The kind as a policy spells it.
    const NAME: &'static str;

    /// Where filters of this kind may run.
    const PLACEMENT: Placement;

    /// Whether a filter of this kind keeps files beside the disk.
    const KEEPS_FILES: bool;

    /// Whether a filter of this kind changes the data of writes. A journal filter above it writes
    /// its records back only if the filters below it that change data are the same as when it
    /// acknowledged them.
    const TRANSFORMS: bool;

    /// Checks the parameters.
    ///
    /// # Errors
    /// What is wrong, and what is right.
    fn check(&self) -> Result<(), String>;

    /// The parameter that decides how the filter changes data; `None` if the kind alone decides.
    fn transformed_by(&self) -> Option<&str> {
        None
    }
}

/// Parses and checks the parameters that only this kind has.
pub(crate) fn parameters<T: FilterConfig>(table: toml::Table) -> Result<T, String> {
    let read: Result<T, toml::de::Error> = table.try_into();
    // Two lines: the message, and the parameter.
    let config = read.map_err(|error| error.to_string().trim_end().replace('\n', " "))?;
    config.check()?;
    Ok(config)
}

/// How a filter changes data, in words; `None` if it does not.
pub(crate) fn transformation<T: FilterConfig>(config: &T) -> Option<String> {
    T::TRANSFORMS.then(|| match config.transformed_by() {
        Some(parameter) => format!("{} {parameter}", T::NAME),
        None => T::NAME.to_owned(),
    })
}

/// Defines `FilterKind`, and re-exports the parameters of each kind.
///
/// Each line is `Kind(module::Config)`, and `Config` implements [`FilterConfig`].
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($module:ident::$config:ident),)+) => {
        $(pub use $module::$config;)+

        /// The kinds of filters, as a policy spells them.
        const KINDS: &[&str] = &[$(<$config as FilterConfig>::NAME),+];

        /// The kind of a filter, with its parameters.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum FilterKind {
            $($(#[$doc])* $kind($config),)+
        }

        impl FilterKind {
            /// Parses the parameters of a filter of the kind `name`.
            fn parse(name: &str, table: toml::Table) -> Result<Self, String> {
                match name {
                    $(<$config as FilterConfig>::NAME => {
                        kind::parameters(table).map(Self::$kind)
                    })+
                    other => {
                        let kinds = KINDS.join(", ");
                        Err(format!("unknown kind {other:?}; use one of {kinds}"))
                    }
                }
            }

            /// Whether a filter of this kind keeps files beside the disk.
            #[must_use]
            pub const fn keeps_files(&self) -> bool {
                match self {
                    $(Self::$kind(_) => <$config as FilterConfig>::KEEPS_FILES,)+
                }
            }

            /// The kind as a policy spells it.
            #[must_use]
            pub const fn as_str(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => <$config as FilterConfig>::NAME,)+
                }
            }

            /// How the filter changes the data of writes, in words, or `None` if it does not.
            /// Filters with the same words change it in the same way. Journals keep a checksum of
            /// the words, so they stay as they are.
            #[must_use]
            pub fn transformation(&self) -> Option<String> {
                match self {
                    $(Self::$kind(config) => kind::transformation(config),)+
                }
            }

            /// Where filters of this kind may run.
            const fn placement(&self) -> Placement {
                match self {
                    $(Self::$kind(_) => <$config as FilterConfig>::PLACEMENT,)+
                }
            }
        }
    };
}
pub(crate) use kinds;
