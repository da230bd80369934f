//! Words that only this project used, and what the field says instead, and British spellings,
//! which would make a second name of one thing.
//!
//! In identifiers a word is found by its parts: `mend` in `mend_one` and in `MendTask`. In
//! comments and documents a phrase is found as it stands, in any case.

use crate::Finding;
use crate::source::{File, Kind, Line, comment};

/// A word and the text that replaces it.
struct Rule {
    word: &'static str,
    instead: &'static str,
}

const fn rule(word: &'static str, instead: &'static str) -> Rule {
    Rule { word, instead }
}

/// Words that occur nowhere: not in names, not in texts.
const WORDS: &[Rule] = &[
    rule("anew", "again, or the prefix re-"),
    rule("asker", "principal, or requester"),
    rule("behaviour", "behavior"),
    rule("cancelled", "canceled"),
    rule("colour", "color"),
    rule("dealer", "placer"),
    rule("dealt", "placed"),
    rule("doubtful", "suspect"),
    rule("enrol", "join"),
    rule("enrolment", "join token"),
    rule("errand", "job, or request"),
    rule("labelled", "labeled"),
    rule("learnt", "learned"),
    rule("mend", "repair"),
    rule("mended", "repaired"),
    rule("mender", "repairer"),
    rule("mending", "repair"),
    rule("misspelt", "misspelled"),
    rule("neighbour", "neighbor"),
    rule("neighbours", "neighbors"),
    rule("nobody", "no one, or the passive voice"),
    rule("nonsense", "protocol violation"),
    rule("patience", "timeout"),
    rule("spelt", "spelled"),
    rule("surroundings", "context"),
    rule("vouch", "authenticate"),
    rule("vouches", "authenticates"),
    rule("whoever", "the caller, the client, or who it is"),
    rule("whomever", "the caller, the client, or who it is"),
];

/// Phrases that do not occur in comments and documents.
const PHRASES: &[Rule] = &[
    rule("middle box", "filter"),
    rule("middle-box", "filter"),
    rule("so many", "a count, with its unit"),
    rule("what is to be", "the thing, by its name"),
    rule("which of them", "the thing, by its name"),
    rule("is told of", "receives, or is notified of"),
    rule("are told of", "receive, or are notified of"),
    rule(
        "see the module's head",
        "a sentence that says what the item is",
    ),
    rule(
        "the module's head says",
        "a sentence that says what the item is",
    ),
];

/// Where a text speaks of the words themselves: the glossary names StorM's middle-box once.
fn is_exempt(file: &File, word: &str) -> bool {
    file.path().ends_with("docs/glossary.md") && word.starts_with("middle")
}

/// Finds forbidden words and phrases.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    for line in file.lines() {
        for rule in WORDS {
            if has_word(line.text, rule.word) && !is_exempt(file, rule.word) {
                findings.push(finding(file, line, rule));
            }
        }
        let text = match file.kind() {
            Kind::Rust => comment(line.text),
            Kind::Markdown => Some(line.text),
            Kind::Other => None,
        };
        let Some(text) = text.map(str::to_lowercase) else {
            continue;
        };
        for rule in PHRASES {
            if text.contains(rule.word) && !is_exempt(file, rule.word) {
                findings.push(finding(file, line, rule));
            }
        }
    }
}

fn finding(file: &File, line: Line<'_>, rule: &Rule) -> Finding {
    Finding {
        path: file.path().to_owned(),
        line: line.number,
        message: format!("the word {:?}: write {}", rule.word, rule.instead),
    }
}

/// Whether `word` is a word of `text`, or a part of an identifier in it in snake, camel or
/// upper case.
fn has_word(text: &str, word: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(found) = lower[from..].find(word) {
        let (start, end) = (from + found, from + found + word.len());
        if is_boundary(bytes, start) && is_boundary(bytes, end) {
            return true;
        }
        from = end;
    }
    false
}

/// Whether a part of an identifier, or a word, begins or ends before the byte `at`.
fn is_boundary(bytes: &[u8], at: usize) -> bool {
    let (Some(before), Some(after)) = (at.checked_sub(1).map(|at| bytes[at]), bytes.get(at)) else {
        return true;
    };
    let is_hump = before.is_ascii_lowercase() && after.is_ascii_uppercase();
    is_hump || !before.is_ascii_alphabetic() || !after.is_ascii_alphabetic()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages_of;

    #[test]
    fn words_are_found_in_identifiers_of_any_case() {
        for text in [
            "fn mend_one()",
            "struct MendTask;",
            "MEND_MAX",
            "let mend = 1;",
        ] {
            assert_eq!(messages_of(check, "a.rs", text).len(), 1, "{text}");
        }
        for text in ["fn amend()", "recommended", "VmEnded", "commends"] {
            assert_eq!(messages_of(check, "a.rs", text).len(), 0, "{text}");
        }
    }

    #[test]
    fn phrases_are_found_in_comments_and_documents_only() {
        assert_eq!(
            messages_of(check, "a.rs", "/// See the module's head.").len(),
            1
        );
        assert_eq!(
            messages_of(check, "a.md", "So many bytes are read.").len(),
            1
        );
        assert_eq!(
            messages_of(check, "a.rs", "let text = \"so many\";").len(),
            0
        );
    }

    #[test]
    fn the_glossary_may_name_the_middle_box() {
        assert_eq!(
            messages_of(check, "docs/glossary.md", "StorM calls it a middle-box.").len(),
            0
        );
        assert_eq!(
            messages_of(check, "docs/howto/filter.md", "A middle-box.").len(),
            1
        );
    }
}
