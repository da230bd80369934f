//! The settings of a volume on the command line: their options, the requests that carry them, and
//! how they are shown.
//!
//! A new setting changes no other file of this crate (docs/internals/add-a-volume-field.md).

use api::types::{CreateVolume, SetSettings, Volume};
use base::size::about_bytes as bytes;
use clap::Args;

use crate::args::size;

/// A size in bytes, or `default`, which removes a size that was set before.
#[derive(Clone, Copy)]
pub struct SizeSetting(Option<u64>);

fn size_setting(text: &str) -> Result<SizeSetting, String> {
    match text {
        "default" => Ok(SizeSetting(None)),
        _ => size(text).map(|bytes| SizeSetting(Some(bytes))),
    }
}

/// The settings as options of `volume create` and `volume set`. `set` requires one of the group.
#[derive(Args)]
#[group(id = "settings")]
pub struct SettingOptions {
    /// Size of its journal from the next attachment on (administrators only), or `default` for the
    /// host's setting.
    #[arg(long, value_name = "SIZE", value_parser = size_setting)]
    journal_size: Option<SizeSetting>,
    /// Largest part of each host's read cache that it may use, or `default` for a fair share.
    #[arg(long, value_name = "SIZE", value_parser = size_setting)]
    cache_max: Option<SizeSetting>,
}

impl SettingOptions {
    /// The request for a new volume with these settings.
    pub fn create(self, new: CreateVolume) -> CreateVolume {
        CreateVolume {
            journal_bytes: self.journal_size.and_then(|size| size.0),
            cache_max_bytes: self.cache_max.and_then(|size| size.0),
            ..new
        }
    }

    /// The request to change these settings and to keep the others.
    pub fn set(self) -> SetSettings {
        SetSettings {
            journal_bytes: self.journal_size.map(|size| size.0),
            cache_max_bytes: self.cache_max.map(|size| size.0),
        }
    }
}

/// The settings of a volume that are not at their defaults, as rows of `volume show`.
pub fn rows(volume: &Volume) -> impl Iterator<Item = (&'static str, String)> {
    let journal_size = volume.journal_bytes.map(bytes);
    let cache_max = volume.cache_max_bytes.map(bytes);
    [("journal size", journal_size), ("cache limit", cache_max)]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
}
