//! Modules without a head, and comment lines that are too long.

use crate::Finding;
use crate::source::{File, comment};

/// Width of a comment line in characters, above which it is a finding.
const WIDTH_MAX: usize = 120;

/// Finds modules that do not begin with a `//!` head, and wide comment lines.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    let first = file.lines().find(|line| {
        let text = line.text.trim();
        !text.is_empty() && !text.starts_with("#![")
    });
    let has_head = first.is_none_or(|line| line.text.starts_with("//!"));
    if !has_head && !file.is_test() {
        findings.push(Finding {
            path: file.path().to_owned(),
            line: 1,
            message: "the module has no head: begin it with a //! sentence that says what it is \
                      for"
            .to_owned(),
        });
    }
    for line in file.lines() {
        let width = line.text.chars().count();
        if comment(line.text).is_some() && width > WIDTH_MAX {
            findings.push(Finding {
                path: file.path().to_owned(),
                line: line.number,
                message: format!(
                    "the comment line has {width} characters, more than {WIDTH_MAX}: wrap it"
                ),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages_of;

    #[test]
    fn a_module_without_a_head_is_found() {
        assert_eq!(
            messages_of(check, "crates/a/src/b.rs", "use std::io;\n").len(),
            1
        );
        assert_eq!(
            messages_of(
                check,
                "crates/a/src/b.rs",
                "//! What it is for.\n\nuse std::io;\n"
            )
            .len(),
            0
        );
        assert_eq!(
            messages_of(check, "fuzz/a.rs", "#![no_main]\n\n//! A target.\n").len(),
            0
        );
        assert_eq!(
            messages_of(check, "crates/a/src/tests.rs", "use super::*;\n").len(),
            0
        );
    }

    #[test]
    fn a_comment_line_that_is_too_wide_is_found() {
        let head = "//! A head.\n";
        let wide = format!("{head}/// {}\n", "x".repeat(WIDTH_MAX - 3));
        assert_eq!(messages_of(check, "a.rs", &wide).len(), 1);
        let fits = format!("{head}/// {}\n", "x".repeat(WIDTH_MAX - 4));
        assert_eq!(messages_of(check, "a.rs", &fits).len(), 0);
    }
}
