//! [`VolumeCache`]: an open volume's view of the host's cache, and which of its blocks belong to a
//! base image (docs/explanation/caching.md).

use api::host::BaseImage;
use base::Lineage;
use catalog::LineageKey;
use volume::scatter::{CacheView, ImagePart};

/// An open volume's view of the host's cache.
pub(crate) struct VolumeCache {
    pub view: CacheView,
    /// The lineages that have written the volume, each with its first epoch: first its own, then
    /// those that it was cloned from.
    lineages: Vec<(Lineage, u32)>,
}

impl VolumeCache {
    /// The view of a volume with these keys; blocks of `image` count as the image's.
    pub fn new(view: CacheView, keys: &[LineageKey], image: Option<BaseImage>) -> Self {
        let lineages = keys.iter().map(|key| (key.lineage, key.epoch_first));
        let cache = Self {
            view,
            lineages: lineages.collect(),
        };
        cache.follow(image);
        cache
    }

    /// Sets the image that the volume is a clone of, or is itself.
    pub fn follow(&self, image: Option<BaseImage>) {
        let part = image.map(|image| ImagePart {
            of: Some(image.lineage),
            below: below(&self.lineages, image.lineage),
            is_pinned: image.is_pinned,
        });
        self.view.set_image(part.unwrap_or_default());
    }
}

/// The epoch below which the image and the lineages above it have written. A lineage that is not in
/// the list has written nothing visible: all blocks belong to the image.
fn below(lineages: &[(Lineage, u32)], image: Lineage) -> u32 {
    let place = lineages.iter().position(|(lineage, _)| *lineage == image);
    match place {
        None | Some(0) => u32::MAX,
        Some(place) => lineages[place - 1].1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_an_image_and_of_lineages_above_it_belong_to_the_image() {
        let lineage = |number| Lineage::from_u128(number);
        let lineages = [(lineage(3), 20), (lineage(2), 10), (lineage(1), 1)];
        assert_eq!(below(&lineages, lineage(1)), 10);
        assert_eq!(below(&lineages, lineage(2)), 20);
        assert_eq!(below(&lineages, lineage(3)), u32::MAX);
        // All blocks of a clone without own writes belong to its parents.
        assert_eq!(below(&lineages, lineage(4)), u32::MAX);
    }
}
