//! [`UnitRegistry`]: the units of the cluster, their observed states, and the copysets that are
//! planned over them.

use std::ops::Deref;

use crate::control::Control;

/// The units of the cluster.
#[derive(Clone, Copy)]
pub struct UnitRegistry<'a> {
    control: &'a Control,
}

impl Deref for UnitRegistry<'_> {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.control
    }
}

impl Control {
    /// The units of the cluster.
    #[must_use]
    pub fn unit_registry(&self) -> UnitRegistry<'_> {
        UnitRegistry { control: self }
    }
}
