//! Telling an owner's loop that something has happened.

use std::sync::Arc;

/// Wakes one event loop. Cheap to clone; waking twice is waking once.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() + Send + Sync>);

impl Wake {
    /// A wake that calls `ring` each time.
    #[must_use]
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(ring))
    }

    /// A wake that nobody hears, for owners that poll.
    #[must_use]
    pub fn unresponsive() -> Self {
        Self::new(|| {})
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Wake {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Wake")
    }
}
