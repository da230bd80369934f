//! How an error with its causes, and a number with its noun, are shown to users.

/// The message of an error and of its causes, in one line. A cause whose message is already part
/// of the text is left out.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// A number and its noun, such as `1 block` or `2 blocks`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let all = [0, 1, 2].map(|number| counted(number, "block"));
        assert_eq!(all, ["0 blocks", "1 block", "2 blocks"]);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct TestError {
        text: &'static str,
        source: Option<Box<TestError>>,
    }

    #[test]
    fn each_cause_is_shown_once() {
        let error = |text, source: Option<TestError>| TestError {
            text,
            source: source.map(Box::new),
        };
        let disk = error("the disk is full", None);
        let write = error("cannot write the slot: the disk is full", Some(disk));
        let destage = error("a destage failed", Some(write));
        assert_eq!(
            with_causes(&destage),
            "a destage failed: cannot write the slot: the disk is full"
        );
    }
}
