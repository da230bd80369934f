//! Functions that are too long, and public ones that take tuples.

use crate::Finding;
use crate::source::{File, Line, indentation};

/// Length of a function in lines, above which it is a finding.
const LINES_MAX: usize = 100;

/// A function of a file.
pub struct Function<'a> {
    /// The line of its `fn`.
    pub first: Line<'a>,
    /// Length in lines, from its `fn` to its closing brace.
    pub lines: usize,
    /// Text from its `fn` to the brace that opens the body, or the semicolon.
    pub signature: String,
}

/// Finds long functions, and tuples among the parameters of public functions.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    for function in functions(file) {
        let name = name_of(function.first.text).unwrap_or("?");
        let mut add = |message| {
            findings.push(Finding {
                path: file.path().to_owned(),
                line: function.first.number,
                message,
            });
        };
        if function.lines > LINES_MAX {
            add(format!(
                "the function {name} has {} lines, more than {LINES_MAX}: take parts out that \
                 have a name",
                function.lines
            ));
        }
        let is_public = function.first.text.trim_start().starts_with("pub ");
        if is_public && !file.is_test() && has_tuple_parameter(&function.signature) {
            add(format!(
                "the public function {name} takes a tuple: give it a struct with named fields"
            ));
        }
    }
}

/// The functions of a file, those of traits included.
pub fn functions(file: &File) -> Vec<Function<'_>> {
    let lines: Vec<Line<'_>> = file.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if name_of(line.text).is_none() {
            continue;
        }
        let mut signature = String::new();
        let mut rest = lines[index..].iter();
        for part in rest.by_ref() {
            signature.push_str(part.text.trim());
            signature.push(' ');
            if part.text.ends_with(['{', ';', '}']) {
                break;
            }
        }
        let depth = indentation(line.text);
        let is_one_line = signature.trim_end().ends_with([';', '}']);
        let end = if is_one_line {
            index
        } else {
            let is_end = |line: &&Line<'_>| {
                indentation(line.text) == depth && line.text.trim_start().starts_with('}')
            };
            rest.find(is_end).map_or(index, |end| end.number - 1)
        };
        found.push(Function {
            first: *line,
            lines: end - index + 1,
            signature,
        });
    }
    found
}

/// The name of the function that a line begins to define.
fn name_of(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "fn" => {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
                return (end > 0).then(|| &after[..end]);
            }
            "pub" | "async" | "const" | "unsafe" | "extern" | "\"C\"" => rest = after,
            _ if word.starts_with("pub(") => rest = after,
            _ => return None,
        }
    }
}

/// Whether a parameter's type is a tuple with two or more members, or a reference to one.
pub fn has_tuple_parameter(signature: &str) -> bool {
    let Some(open) = parameters_start(signature) else {
        return false;
    };
    let mut depth = 0_usize;
    let mut start = open;
    for (at, letter) in signature.char_indices().skip_while(|(at, _)| *at < open) {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if signature[..at].ends_with(['-', '=']) => {}
            ')' | ']' | '}' | '>' if depth == 0 => return is_tuple(&signature[start..at]),
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                if is_tuple(&signature[start..at]) {
                    return true;
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    false
}

/// The byte after the parenthesis that opens the parameters.
fn parameters_start(signature: &str) -> Option<usize> {
    let name = signature.find("fn ")? + 3;
    let mut depth = 0_usize;
    for (at, letter) in signature.char_indices().skip_while(|(at, _)| *at < name) {
        match letter {
            '<' => depth += 1,
            '>' if !signature[..at].ends_with(['-', '=']) => depth = depth.saturating_sub(1),
            '(' if depth == 0 => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn is_tuple(parameter: &str) -> bool {
    let Some((_, kind)) = parameter.split_once(": ") else {
        return false;
    };
    let kind = kind.trim().trim_start_matches('&').trim_start();
    let kind = kind.strip_prefix("mut ").unwrap_or(kind);
    kind.starts_with('(') && kind.contains(',')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages_of;

    #[test]
    fn a_function_over_the_limit_is_found_and_one_at_the_limit_is_not() {
        let of_lines = |lines: usize| {
            let body = "        let a = 1;\n".repeat(lines - 2);
            format!(
                "impl A {{\n    pub fn long(\n        &self) {{\n{}    }}\n}}\n",
                &body[19..]
            )
        };
        assert_eq!(messages_of(check, "a.rs", &of_lines(LINES_MAX)).len(), 0);
        assert!(messages_of(check, "a.rs", &of_lines(LINES_MAX + 1))[0].contains("101 lines"));
    }

    #[test]
    fn a_public_function_that_takes_a_tuple_is_found() {
        let tuple = "pub fn open(&self, (sequence, tag): (Sequence, Tag), out: &mut [u8]) {}\n";
        assert_eq!(messages_of(check, "a.rs", tuple).len(), 1);
        for text in [
            "fn open((sequence, tag): (Sequence, Tag)) {}\n",
            "pub fn open(done: impl Fn(u8, u8) -> u8, all: &[(u8, u8)]) -> (u8, u8) {}\n",
            "pub fn open<F: Fn(u8) -> u8>(done: F) {}\n",
        ] {
            assert_eq!(messages_of(check, "a.rs", text).len(), 0, "{text}");
        }
        assert_eq!(messages_of(check, "crates/a/tests/a.rs", tuple).len(), 0);
    }
}
