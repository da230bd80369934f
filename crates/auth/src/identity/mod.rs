//! The identity of parties: certificates, the one-time tokens with which a party gets one, and TLS
//! with certificates (docs/internals/identity.md).
//!
//! The authority signs a *subject*, which is a kind and a name, as a URI in the certificate. A
//! party is identified by its key, or, if its certificate is signed by an authority that the
//! operator has named, by the subject. It is never identified by the common name, which is for
//! display.
//!
//! ```text
//!  1. token     an administrator creates it; the controllers store its hash
//!  2. request   the party makes a key pair and requests a certificate with the token
//!  3. sign      the authority signs the key for the token's subject
//!  4. present   the party presents the certificate in every TLS handshake
//!  5. renew     before it expires, over a connection that it authenticates
//! ```
//!
//! It must not know users, what they may do, or where files are.

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
