//! How a unit around another one passes verbs on: [`pass_on!`](crate::pass_on).

/// Writes out verbs of [`Unit`](crate::Unit), in an `impl` of it for a unit
/// that has another one within: the `impl` then shows only what it adds.
///
/// `pass_on!(look(1): list stat);` makes the methods `list` and `stat`, which
/// call `self.look(1, |unit| unit.list())` and `self.look(1, |unit|
/// unit.stat())`. `look` is for the caller to write: it hands the unit within
/// to the closure, or does not, and returns a `Result<_, UnitError>`.
///
/// `pass_on!(.within: url can_append);` makes the two verbs that cannot fail,
/// for a unit whose field `within` is the other one.
#[macro_export]
macro_rules! pass_on {
    (. $within:ident: url can_append) => {
        fn url(&self) -> &str {
            self.$within.url()
        }

        fn can_append(&self) -> bool {
            self.$within.can_append()
        }
    };
    ($around:ident $arguments:tt: $($verb:ident)+) => {
        $($crate::pass_on!(@ $verb $around $arguments);)+
    };
    (@ put_for $($around:tt)*) => {
        $crate::pass_on!(@method put_for(
            line: u64,
            segment: ::base::SegmentId,
            slot_bytes: u32,
            first: ::base::Slot,
            tags: &[$crate::Tag],
            data: &[u8],
        ) -> (); $($around)*);
    };
    (@ sync $($around:tt)*) => {
        $crate::pass_on!(@method sync(segments: &[::base::SegmentId]) -> (); $($around)*);
    };
    (@ sync_found $($around:tt)*) => {
        $crate::pass_on!(@method sync_found(segments: &[::base::SegmentId]) -> (); $($around)*);
    };
    (@ read $($around:tt)*) => {
        $crate::pass_on!(@method read(
            run: $crate::SlotRun,
            slot_bytes: u32,
            tags: &mut [$crate::Tag],
            data: &mut [u8],
        ) -> (); $($around)*);
    };
    (@ read_now $($around:tt)*) => {
        $crate::pass_on!(@method read_now(
            run: $crate::SlotRun,
            slot_bytes: u32,
            tags: &mut [$crate::Tag],
            data: &mut [u8],
        ) -> bool; $($around)*);
    };
    (@ free $($around:tt)*) => {
        $crate::pass_on!(@method free(
            segment: ::base::SegmentId,
            slots: &[::base::Slot],
            closed: bool,
        ) -> (); $($around)*);
    };
    (@ delete $($around:tt)*) => {
        $crate::pass_on!(@method delete(segment: ::base::SegmentId) -> (); $($around)*);
    };
    (@ replace $($around:tt)*) => {
        $crate::pass_on!(@method replace(
            segment: ::base::SegmentId,
            by: $crate::Replacement<'_>,
        ) -> (); $($around)*);
    };
    (@ settle $($around:tt)*) => {
        $crate::pass_on!(@method settle() -> bool; $($around)*);
    };
    (@ list $($around:tt)*) => {
        $crate::pass_on!(@method list() -> Vec<::base::SegmentId>; $($around)*);
    };
    (@ list_serials $($around:tt)*) => {
        $crate::pass_on!(@method list_serials(
            serials: ::std::ops::Range<u64>,
        ) -> Vec<::base::SegmentId>; $($around)*);
    };
    (@ stat_segment $($around:tt)*) => {
        $crate::pass_on!(@method stat_segment(
            segment: ::base::SegmentId,
        ) -> $crate::SegmentStat; $($around)*);
    };
    (@ slots_of $($around:tt)*) => {
        $crate::pass_on!(@method slots_of(
            segment: ::base::SegmentId,
        ) -> $crate::SegmentSlots; $($around)*);
    };
    (@ stat $($around:tt)*) => {
        $crate::pass_on!(@method stat() -> $crate::UnitStat; $($around)*);
    };
    (@ scrub $($around:tt)*) => {
        $crate::pass_on!(@method scrub(
            segment: ::base::SegmentId,
        ) -> Vec<::base::Slot>; $($around)*);
    };
    (@ note $($around:tt)*) => {
        $crate::pass_on!(@method note() -> Option<[u8; $crate::NOTE_BYTES]>; $($around)*);
    };
    (@ note_down $($around:tt)*) => {
        $crate::pass_on!(@method note_down(
            note: &[u8; $crate::NOTE_BYTES],
        ) -> (); $($around)*);
    };
    (@ probe $($around:tt)*) => {
        $crate::pass_on!(@method probe() -> (); $($around)*);
    };
    (
        @method $verb:ident($($name:ident: $type:ty),* $(,)?) -> $answer:ty;
        $around:ident ($($argument:expr)?)
    ) => {
        fn $verb(&self, $($name: $type),*) -> Result<$answer, $crate::UnitError> {
            self.$around($($argument,)? |unit| unit.$verb($($name),*))
        }
    };
}
