//! The identity of parties, and capabilities on unit daemons.
//!
//! * [`identity`]: authorities, certificates, one-time tokens, and TLS made of them.
//! * [`capability`]: signed permissions that unit daemons verify.
//!
//! This crate must not know users, volumes, SQL, or where files are.

pub mod capability;
pub mod identity;

pub use capability::{
    BadCapability, Capability, Fence, ITEMS_MAX, SIGNATURE_BYTES, Scope, SignedCapability,
    SigningKey, VerifyingKey, lineage_tag_of,
};
pub use identity::{
    Authority, AuthorityError, BadSubject, BadToken, Credentials, JoinToken, KeyFingerprint,
    KeyRequest, Kind, Lifetime, NoSubject, Peer, PeerError, ServerTls, SignedBy, Subject, TlsError,
    TokenHash, certificate_end, certificate_fingerprint, certificate_key, client_config,
    pinned_client_config, requested_key, server_config, trusting_client_config,
};
