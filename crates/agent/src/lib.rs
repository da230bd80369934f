//! Floor 5: what runs on each host. It holds keys, journals and open volumes,
//! serves them to virtual machines, and does what the controllers want of it.
//!
//! It must not know: SQL, who owns what, the terminal.
