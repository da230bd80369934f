//! Checks of the source tree that neither rustfmt nor clippy makes.
//!
//! Each rule is a pure function from a [`Tree`] to [`Finding`]s, and each finding names its
//! remedy. The test `the_tree_is_tidy` runs all rules on this repository; each rule has a test
//! that shows a fault it finds and a near miss that it leaves alone.
//!
//! ```text
//!   Tree::read(root) ──▶ rules (words, types, functions, heads, links, reference) ─▶ findings
//!                   └──▶ survey: sizes and counts of the tree, to compare two commits
//! ```
//!
//! The crate has no dependencies. It reads lines of rustfmt's layout and does not parse Rust:
//! a function ends at the first closing brace that is indented as its first line is.

mod functions;
mod heads;
mod imports;
mod links;
mod reference;
mod source;
mod survey;
mod types;
mod words;

use std::fmt;
use std::path::PathBuf;

pub use source::{File, Kind, Tree};
pub use survey::{Survey, survey};

/// A fault in the tree, with what removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the tree's root.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Runs all rules.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        words::check(file, &mut findings);
        match file.kind() {
            Kind::Rust => {
                types::check(file, &mut findings);
                functions::check(file, &mut findings);
                heads::check(file, &mut findings);
            }
            Kind::Markdown | Kind::Other => {}
        }
    }
    links::check(tree, &mut findings);
    reference::check(tree, &mut findings);
    findings
}

/// The messages of a rule's findings in one file.
#[cfg(test)]
fn messages_of(rule: fn(&File, &mut Vec<Finding>), path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    rule(&File::new(path, text), &mut findings);
    findings
        .into_iter()
        .map(|finding| finding.message)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let tree = Tree::read(root.as_ref()).expect("the repository is readable");
        let findings = check(&tree);
        let list: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(
            list.is_empty(),
            "{} findings:\n{}",
            list.len(),
            list.join("\n")
        );
    }
}
