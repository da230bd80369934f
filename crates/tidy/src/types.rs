//! Types whose names are no nouns.

use crate::Finding;
use crate::source::File;

/// Names that say nothing of what a value is.
const NO_NOUNS: &[&str] = &[
    "Alone", "Among", "Anew", "At", "By", "Doing", "Goes", "Had", "Has", "In", "Known", "Left",
    "Meant", "More", "No", "Of", "On", "Only", "Past", "Since", "Then", "Thing", "Told", "Trouble",
    "Useless", "Way", "What", "Which", "Who",
];

const KEYWORDS: &[&str] = &["struct", "enum", "trait", "type", "union"];

/// Finds definitions of such types.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    for line in file.lines() {
        let Some(name) = defined_type(line.text) else {
            continue;
        };
        if NO_NOUNS.contains(&name) {
            findings.push(Finding {
                path: file.path().to_owned(),
                line: line.number,
                message: format!("the type {name} is no noun: name what a value of it is"),
            });
        }
    }
}

/// The name of the type that a line begins to define.
pub fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word.starts_with("pub") {
        word = words.next()?;
    }
    if !KEYWORDS.contains(&word) {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_is_no_noun_is_found_where_it_is_defined() {
        let text =
            "pub(crate) enum Told<T> {\nstruct Which;\nstruct Whichever;\nlet a: Told = 1;\n";
        let mut findings = Vec::new();
        check(&File::new("a.rs", text), &mut findings);
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2]);
    }
}
