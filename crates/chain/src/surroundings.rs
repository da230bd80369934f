//! [`Surroundings`]: what boxes are given by whoever runs them.

use std::sync::Arc;

use policy::{BoxKind, Policy};
use world::{Clock, Wake};

use crate::MiddleBox;
use crate::boxes::{Event, Fault, Monitor, Rate};

/// Whose disk a chain is before: what a box knows of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribution {
    /// Whose the volume is.
    pub tenant: String,
    /// The machine that has it; none of a plain export.
    pub vm: Option<String>,
    /// The volume's name.
    pub volume: String,
    /// And its id, if it has one.
    pub volume_id: Option<String>,
}

/// Where events go. Called in the thread that owns the disk: it never waits, and counts
/// itself what it has no room for.
pub trait EventSink: Send + Sync {
    /// Takes events, in their order.
    fn tell(&self, events: Vec<Event>);
}

/// See the module's head.
#[derive(Clone)]
pub struct Surroundings {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Has the chain polled.
    pub wake: Wake,
    /// Whose disk it is.
    pub whose: Arc<Attribution>,
    /// Where its boxes' events go.
    pub events: Arc<dyn EventSink>,
}

/// The boxes of a policy, ready to be put in the place of others ([`crate::Exchange`]).
#[must_use]
pub fn build(policy: &Policy, surroundings: &Surroundings) -> Vec<Box<dyn MiddleBox>> {
    let boxes = policy.boxes.iter();
    let built = boxes.map(|one| -> Box<dyn MiddleBox> {
        let clock = Arc::clone(&surroundings.clock);
        match &one.kind {
            BoxKind::Monitor(config) => Box::new(Monitor::new(
                &one.name,
                config.clone(),
                surroundings.clone(),
            )),
            BoxKind::Rate(config) => Box::new(Rate::new(config, clock)),
            BoxKind::Fault(config) => Box::new(Fault::new(config.clone(), clock)),
        }
    });
    built.collect()
}
