//! docs/howto/troubleshoot.md: every message that the page quotes is one of the sources.

use std::path::Path;

use super::root;

/// The text of all production sources, with string literals on one line and `…` in place of the
/// arguments of formats.
fn sources() -> String {
    let mut text = String::new();
    add(&root().join("crates"), &mut text);
    // A string continues behind the indentation of its next line.
    let mut lines = text.split("\\\n");
    let mut joined = lines.next().unwrap_or_default().to_owned();
    joined.extend(lines.map(str::trim_start));
    without_arguments(&joined)
}

fn add(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            let is_skipped = ["tests", "target", "testkit", "tidy"].contains(&&*name);
            if !is_skipped {
                add(&path, text);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let source = std::fs::read_to_string(&path).expect("text");
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            for line in source.lines().filter(is_code) {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// `volume {name:?} cannot destage: {why}` as `volume … cannot destage: …`.
fn without_arguments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        plain.push_str(before);
        let end = from.find(['}', '\n']).unwrap_or(from.len());
        if from[end..].starts_with('}') {
            plain.push('…');
            rest = &from[end + 1..];
        } else {
            plain.push('{');
            rest = &from[1..];
        }
    }
    plain + rest
}

/// The messages that a heading, or the first cell of a row, quotes.
fn quoted(line: &str) -> Vec<&str> {
    let text = match line.strip_prefix('|') {
        Some(row) => row.split('|').next().unwrap_or_default(),
        None if line.starts_with("### ") => line,
        None => return Vec::new(),
    };
    text.split('"').skip(1).step_by(2).collect()
}

#[test]
fn messages_in_the_troubleshooting_page_exist() {
    let path = root().join("docs/howto/troubleshoot.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let messages: Vec<&str> = page.lines().flat_map(quoted).collect();
    assert!(messages.len() > 40, "{} messages", messages.len());
    let sources = sources();
    let is_known = |message: &&&str| {
        let mut parts = message.split('…').map(str::trim);
        parts.all(|part| sources.contains(part))
    };
    let missing: Vec<_> = messages
        .iter()
        .filter(|message| !is_known(message))
        .collect();
    assert!(
        missing.is_empty(),
        "no source has these messages: {missing:#?}"
    );
}

#[test]
fn quotes_and_arguments_are_recognized() {
    assert_eq!(quoted("### agent: \"a …\", \"b\""), ["a …", "b"]);
    assert_eq!(quoted("| \"no key\" | a \"b\" |"), ["no key"]);
    assert!(quoted("A \"sentence\".").is_empty());
    assert_eq!(without_arguments("a {b:?} c {{\n d"), "a … c {{\n d");
}
