//! Links of documents, and paths of the repository that documents and comments name.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::Finding;
use crate::source::{File, Kind, Line, SKIPPED, Tree, comment};

/// The beginnings by which a text is taken for a path from the repository's root.
const ROOTS: &[&str] = &["crates/", "docs/", "fuzz/", "packaging/", "tools/"];

/// Finds links to pages or headings that do not exist, and paths that do not exist.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files() {
        let is_document = file.kind() == Kind::Markdown;
        let mut is_block = false;
        for line in file.lines() {
            if is_document && line.text.trim_start().starts_with("```") {
                is_block = !is_block;
            }
            let text = match file.kind() {
                Kind::Rust => comment(line.text),
                Kind::Markdown => Some(line.text),
                Kind::Other => None,
            };
            let Some(text) = text.filter(|_| !is_block) else {
                continue;
            };
            let mut add = |message| {
                findings.push(Finding {
                    path: file.path().to_owned(),
                    line: line.number,
                    message,
                });
            };
            for path in paths_in(text).filter(|path| !tree.has_path(Path::new(path))) {
                add(format!("there is no {path}: name what is there now"));
            }
            if is_document {
                for target in links_in(text) {
                    if let Some(fault) = fault_of_link(tree, file, target) {
                        add(fault);
                    }
                }
            }
        }
    }
}

/// Paths of the repository in a text. A path with a placeholder, such as `docs/NAME.md` or
/// `crates/*/src`, is none.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let is_separator = |letter: char| letter.is_whitespace() || "`()[]<>\"',;:#…".contains(letter);
    let words = text.split(is_separator);
    let words = words.map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| {
        let is_made = SKIPPED.iter().any(|skipped| word.starts_with(skipped));
        let is_rooted = ROOTS.iter().any(|root| word.starts_with(root));
        let has_placeholder = word.contains(['*', '{', '}', '|', '$']) || has_capitals(word);
        is_rooted && !is_made && !has_placeholder
    })
}

/// Whether a component of a path is a placeholder in capitals.
fn has_capitals(path: &str) -> bool {
    let names = path.split(['/', '.']);
    let mut names = names.filter(|name| *name != "README" && *name != "ARCHITECTURE");
    names.any(|name| name.len() > 1 && name.chars().all(|letter| letter.is_ascii_uppercase()))
}

/// The targets of a line's links that lead to files of the repository.
fn links_in(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

fn fault_of_link(tree: &Tree, file: &File, target: &str) -> Option<String> {
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target, None),
    };
    let folder = file.path().parent().unwrap_or(Path::new(""));
    let path = match path {
        "" => Some(file.path().to_owned()),
        path => normalized(&folder.join(path)),
    };
    let Some(path) = path.filter(|path| tree.has_path(path)) else {
        return Some(format!("the link to {target} leads nowhere: correct it"));
    };
    let heading = heading?;
    let page = tree.file(path.to_str()?)?;
    let is_known = page.kind() != Kind::Markdown || headings(page).contains(heading);
    (!is_known).then(|| format!("the page has no heading for the link {target}: correct it"))
}

/// A path without `.` and `..`; none if it leads out of the repository.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if !normal.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            other => normal.push(other),
        }
    }
    Some(normal)
}

/// The anchors of a page's headings, as hosts of repositories make them.
fn headings(page: &File) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_block = false;
    for Line { text, .. } in page.lines() {
        if text.trim_start().starts_with("```") {
            is_block = !is_block;
        }
        let Some(title) = text.strip_prefix('#').filter(|_| !is_block) else {
            continue;
        };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let letters = title.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => Some(letter),
            _ => None,
        });
        let anchor: String = letters.collect();
        let mut number = 0;
        let mut unique = anchor.clone();
        while !anchors.insert(unique) {
            number += 1;
            unique = format!("{anchor}-{number}");
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let other = "# Title\n\n## A `code` word\n\n## Twice\n\n## Twice\n";
        let files = vec![
            File::new(path, text),
            File::new("docs/other.md", other),
            File::new("crates/a/src/lib.rs", ""),
        ];
        let mut findings = Vec::new();
        check(&Tree::new(files), &mut findings);
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_link_to_no_page_or_heading_is_found() {
        let text = "[a](other.md) [b](other.md#a-code-word) [c](other.md#twice-1) \
                    [d](../crates/a) [e](https://example.org/x.md) [f](#here)\n\n# Here\n";
        assert_eq!(found("docs/page.md", text), Vec::<String>::new());
        for fault in ["others.md", "other.md#nothing", "../../a.md", "#there"] {
            let text = format!("# Here\n\n[a]({fault})\n");
            assert_eq!(found("docs/page.md", &text).len(), 1, "{fault}");
        }
    }

    #[test]
    fn a_path_that_does_not_exist_is_found_in_documents_and_comments() {
        let names = "//! See `crates/a/src/lib.rs`, crates/a/src, docs/other.md#title.\n";
        assert_eq!(found("crates/b/src/b.rs", names), Vec::<String>::new());
        let placeholders = "`crates/*/src`, `docs/rfcs/NNNN.md`, `crates/{a,b}`\n";
        assert_eq!(found("docs/page.md", placeholders), Vec::<String>::new());
        assert_eq!(
            found("crates/b/src/b.rs", "//! See docs/away.md.\n").len(),
            1
        );
        assert_eq!(
            found("docs/page.md", "Open `crates/a/src/gone.rs`.\n").len(),
            1
        );
    }
}
