//! The form of the host RPC: one [`Call`] is one `POST /v1/host/rpc/NAME`, whose body is the call
//! and whose answer is its [`Call::Answer`], both as JSON.
//!
//! The name is in the path, so that a controller can choose the limits of a call before it reads
//! the body, and reads it into one type. A type is read from its bytes alone: no tree of JSON is
//! built, which would be many times as long as they are. Fields that a call does not have are
//! ignored.
//!
//! It must not know who makes a call, and what it does.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The path of the RPC, to which the name of a call is appended.
pub const RPC_PATH: &str = "/v1/host/rpc/";

/// The largest body of most calls, in bytes.
pub const BODY_BYTES_MAX: usize = 2 << 20;

/// A call that a host makes of a controller.
pub trait Call: Serialize + DeserializeOwned + Send + Sync {
    /// The name that the call has in the path.
    const NAME: &'static str;

    /// The largest body that a controller accepts, in bytes.
    const BODY_BYTES_MAX: usize = BODY_BYTES_MAX;

    /// Whether the call changes nothing: if a controller does not answer, the client itself
    /// repeats it with the next one.
    const IS_READ_ONLY: bool = false;

    /// The answer.
    type Answer: Serialize + DeserializeOwned + Send;
}

/// Defines calls, and the enum of all of them.
///
/// Each line is `Type = "name" { field: Type, … } -> Answer`, with `[CONSTANT = value]` in front
/// of the semicolon where a constant of [`Call`] differs from its default.
macro_rules! calls {
    (
        $(#[$enum_doc:meta])*
        enum $calls:ident;
        $(
            $(#[$doc:meta])*
            $call:ident = $name:literal { $($field:ident: $type:ty),* $(,)? } -> $answer:ty
            $([$constant:ident: $constant_type:ty = $value:expr])?;
        )+
    ) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
            pub struct $call { $(pub $field: $type),* }

            impl $crate::host::Call for $call {
                const NAME: &'static str = $name;
                $(const $constant: $constant_type = $value;)?
                type Answer = $answer;
            }

            impl From<$call> for $calls {
                fn from(call: $call) -> Self {
                    Self::$call(call)
                }
            }
        )+

        $(#[$enum_doc])*
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize)]
        #[serde(untagged)]
        pub enum $calls {
            $($(#[$doc])* $call($call),)+
        }

        impl $calls {
            /// The names of these calls.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The name of this call.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$call(_) => $name,)+
                }
            }

            /// The largest body of the call `name`, in bytes; `None` if there is no such call.
            #[must_use]
            pub fn body_bytes_max(name: &str) -> Option<usize> {
                match name {
                    $($name => Some(<$call as $crate::host::Call>::BODY_BYTES_MAX),)+
                    _ => None,
                }
            }

            /// Reads the call `name` from its body; `None` if there is no such call.
            ///
            /// # Errors
            /// If `json` is not an object with the fields of the call.
            pub fn read(name: &str, json: &[u8]) -> Option<::serde_json::Result<Self>> {
                match name {
                    $($name => Some(::serde_json::from_slice(json).map(Self::$call)),)+
                    _ => None,
                }
            }
        }
    };
}

pub(super) use calls;
