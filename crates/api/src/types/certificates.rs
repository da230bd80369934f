//! Joining a cluster, and renewing a certificate.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::PartyKind;

/// A token with which a party joins the cluster. It is shown once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// The token. It is good for one certificate.
    pub token: String,
    /// When the token expires.
    #[schema(format = DateTime)]
    pub expires: String,
    /// The fingerprint of the authority, by which a joining party recognizes the controllers:
    /// `sha256:…`.
    pub authority: String,
}

/// A request to join with a token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The token that an administrator handed out.
    pub token: String,
    /// A signing request (PKCS #10 in PEM) for the party's own key.
    pub signing_request: String,
    /// The kind of party that the caller means to become. A token for another kind is refused, and
    /// stays valid.
    #[serde(default)]
    #[schema(value_type = Option<PartyKind>)]
    pub kind: Option<String>,
}

/// A request to renew the caller's certificate.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// A signing request (PKCS #10 in PEM), for the same key or a new one.
    pub signing_request: String,
}

/// A certificate that was issued.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Certificate {
    /// The party: `scree://user/…` or `scree://host/…`.
    pub subject: String,
    /// The certificate in PEM.
    pub certificate: String,
    /// The certificate of the authority that signed it, in PEM.
    pub authority: String,
    /// When the certificate expires.
    #[schema(format = DateTime)]
    pub expires: String,
}

/// The authority that signs users, hosts and controllers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// The authority's certificate in PEM.
    pub certificate: String,
}
