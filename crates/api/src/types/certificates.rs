//! How somebody comes to be known, and stays so.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What somebody joins with. It is shown once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Good for one certificate.
    pub token: String,
    /// Until then.
    #[schema(format = DateTime)]
    pub expires: String,
    /// The authority's fingerprint, by which whoever joins knows the
    /// controllers: `sha256:…`.
    pub authority: String,
}

/// To become somebody.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The token that an administrator handed out.
    pub token: String,
    /// A signing request (PKCS #10 in PEM) for one's own key.
    pub request: String,
}

/// To stay somebody.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// A signing request (PKCS #10 in PEM), for the same key or a new one.
    pub request: String,
}

/// A certificate.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Certificate {
    /// Whose: `scree://user/…` or `scree://host/…`.
    pub subject: String,
    /// In PEM.
    pub certificate: String,
    /// That of the authority that signed it, in PEM.
    pub authority: String,
    /// When it ends.
    #[schema(format = DateTime)]
    pub expires: String,
}

/// The authority that signs users, hosts and controllers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// Its certificate, in PEM.
    pub certificate: String,
}
