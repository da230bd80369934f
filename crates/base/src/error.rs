//! How an error is told to people.

/// What an error says, and what its causes say that it does not, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Told {
        text: &'static str,
        source: Option<Box<Told>>,
    }

    #[test]
    fn each_cause_is_told_once() {
        let told = |text, source: Option<Told>| Told {
            text,
            source: source.map(Box::new),
        };
        let disk = told("the disk is full", None);
        let write = told("it cannot be written: the disk is full", Some(disk));
        let destage = told("a destage failed", Some(write));
        assert_eq!(
            with_causes(&destage),
            "a destage failed: it cannot be written: the disk is full"
        );
    }
}
