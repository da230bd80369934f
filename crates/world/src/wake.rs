//! [`Wake`]: wakes an event loop from another thread.

use std::sync::Arc;

/// A handle that wakes one event loop. It is cheap to clone, and waking a loop twice has the effect
/// of waking it once.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() + Send + Sync>);

impl Wake {
    /// A handle that calls `wake` each time.
    #[must_use]
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// A handle that wakes nothing, for loops that poll.
    #[must_use]
    pub fn noop() -> Self {
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
