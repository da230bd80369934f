//! What a user or an operator should know about an object: a text for people with a code for
//! programs.
//!
//! The text may change with any version of Scree; the code does not. docs/reference/api.md lists
//! the codes.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::MessageCode;

/// What a user or an operator should know about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// The kind of message, for programs. A later version of Scree may have further codes.
    #[schema(value_type = MessageCode)]
    pub code: String,
    /// What was found and what to do about it, for people.
    pub text: String,
}

impl Message {
    /// A message of this kind.
    pub fn new(code: MessageCode, text: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            text: text.into(),
        }
    }

    /// One message of several: the code of the first, and all texts. `None` if there are none.
    pub fn joined(messages: impl IntoIterator<Item = Self>) -> Option<Self> {
        messages.into_iter().reduce(|first, next| Self {
            text: format!("{}; {}", first.text, next.text),
            ..first
        })
    }

    /// The same message, followed by more text.
    #[must_use]
    pub fn followed_by(mut self, more: impl fmt::Display) -> Self {
        self.text = format!("{}{more}", self.text);
        self
    }
}

impl fmt::Display for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_messages_keep_the_first_code_and_all_texts() {
        let one = Message::new(MessageCode::SpaceOvercommitted, "units may fill up");
        let two = Message::new(MessageCode::ZonesInsufficient, "copies share a zone");
        assert_eq!(Message::joined([]), None);
        assert_eq!(Message::joined([one.clone()]), Some(one.clone()));
        let both = Message::joined([one.clone(), two]).expect("a message");
        assert_eq!(both.code, one.code);
        assert_eq!(both.to_string(), "units may fill up; copies share a zone");
    }
}
