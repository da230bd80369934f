//! What the agent promises.

mod keys;
