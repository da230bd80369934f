//! Who somebody is: certificates and what they say, one-time tokens to get
//! them with, and TLS made of them (docs/service.md, "Identity").
//!
//! The authority signs a *subject*, a kind and a name, as a URI in the
//! certificate. Its holder is known by the key itself, or, if an authority signed
//! it that the operator has named, by that; never by the common name, which is
//! there for people to read.
//!
//! ```text
//!  1. token     an administrator hands one out; its hash is kept
//!  2. request   whoever has it makes a key pair and asks for a certificate
//!  3. sign      the authority signs the key, for the token's subject
//!  4. present   in every TLS handshake; the peer's key and subject come of it
//!  5. renew     before it ends, over a connection that it authenticates
//! ```
//!
//! It must not know: users, what they may do, where files lie.

mod authority;
mod peer;
mod request;
mod subject;
mod tls;
mod token;

pub use authority::{Authority, AuthorityError, Lifetime, requested_key};
pub use peer::{KeyFingerprint, NoSubject, Peer, PeerError, SignedBy};
pub use request::KeyRequest;
pub use subject::{BadSubject, Kind, Subject};
pub use tls::{
    Credentials, ServerTls, TlsError, certificate_end, certificate_fingerprint, certificate_key,
    client_config, pinned_client_config, server_config, trusting_client_config,
};
pub use token::{BadToken, JoinToken, TokenHash};
