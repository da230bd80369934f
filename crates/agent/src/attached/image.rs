//! [`VolumeCache`]: an open volume's way through the host's cache, and what of it is a base
//! image's (docs/cache.md, "Images").

use api::host::ImageOf;
use base::Lineage;
use catalog::LineageKey;
use volume::scatter::{CacheView, ImagePart};

/// See the module's head.
pub struct VolumeCache {
    pub view: CacheView,
    /// Who has written the volume, itself first and then those that it was cloned from; and
    /// under which epochs, from this one on.
    lines: Vec<(Lineage, u32)>,
}

impl VolumeCache {
    /// Of a volume with these keys; the blocks of `image` are kept as that from now on.
    pub fn new(view: CacheView, keys: &[LineageKey], image: Option<ImageOf>) -> Self {
        let lines = keys.iter().map(|key| (key.lineage, key.epoch_first));
        let cache = Self {
            view,
            lines: lines.collect(),
        };
        cache.follow(image);
        cache
    }

    /// It is a clone of this image, or this image, from now on.
    pub fn follow(&self, image: Option<ImageOf>) {
        let part = image.map(|image| ImagePart {
            of: Some(image.lineage),
            below: below(&self.lines, image.lineage),
            is_pinned: image.is_pinned,
        });
        self.view.set_image(part.unwrap_or_default());
    }
}

/// Under epochs below this one those have written who are in `lines` from `image` on. One that
/// is not there has written nothing that is to be seen, but all that is was its heritage.
fn below(lines: &[(Lineage, u32)], image: Lineage) -> u32 {
    let place = lines.iter().position(|(lineage, _)| *lineage == image);
    match place {
        None | Some(0) => u32::MAX,
        Some(place) => lines[place - 1].1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_and_those_above_it_wrote_is_the_images() {
        let lineage = |number| Lineage::from_u128(number);
        let lines = [(lineage(3), 20), (lineage(2), 10), (lineage(1), 1)];
        assert_eq!(below(&lines, lineage(1)), 10);
        assert_eq!(below(&lines, lineage(2)), 20);
        assert_eq!(below(&lines, lineage(3)), u32::MAX);
        // A clone that has written nothing yet, shown read-only, is all its parents'.
        assert_eq!(below(&lines, lineage(4)), u32::MAX);
    }
}
