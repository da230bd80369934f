//! [`Survey`]: sizes and counts of a tree, to compare two commits by.

use std::collections::BTreeMap;
use std::fmt;

use crate::functions::{functions, has_tuple_parameter};
use crate::imports::{Cycle, largest_cycle};
use crate::source::{Kind, Tree, indentation};
use crate::types::defined_type;

/// How many types [`Survey`] lists.
const TYPES_LISTED: usize = 5;

/// What a tree consists of.
#[derive(Debug)]
pub struct Survey {
    /// Packages of the workspace.
    pub packages: usize,
    /// Lines of Rust outside of tests and examples.
    pub production_lines: usize,
    /// Functions with more than 60 lines, tests included.
    pub functions_over_60: usize,
    /// Functions with more than 100 lines, tests included.
    pub functions_over_100: usize,
    /// Rust files with more than 500 lines.
    pub files_over_500: usize,
    /// Functions, public or not, that take a tuple.
    pub tuple_parameters: usize,
    /// SQL migrations.
    pub migrations: usize,
    /// The types with the most methods and how many they have, traits aside.
    pub most_methods: Vec<(String, usize)>,
    /// The types with the most fields and how many they have.
    pub most_fields: Vec<(String, usize)>,
    /// The largest set of files that import each other.
    pub cycle: Option<Cycle>,
    /// Bytes of documents by the folder below `docs/`.
    pub document_bytes: BTreeMap<String, usize>,
}

/// Measures a tree.
#[must_use]
pub fn survey(tree: &Tree) -> Survey {
    let mut survey = Survey {
        packages: 0,
        production_lines: 0,
        functions_over_60: 0,
        functions_over_100: 0,
        files_over_500: 0,
        tuple_parameters: 0,
        migrations: 0,
        most_methods: Vec::new(),
        most_fields: Vec::new(),
        cycle: largest_cycle(tree),
        document_bytes: BTreeMap::new(),
    };
    let mut methods = BTreeMap::new();
    let mut fields = BTreeMap::new();
    for file in tree.files() {
        let path = file.path().to_string_lossy();
        survey.packages += usize::from(path.ends_with("/Cargo.toml"));
        survey.migrations += usize::from(path.ends_with(".sql") && path.contains("migrations"));
        if file.kind() == Kind::Markdown && path.starts_with("docs/") {
            let folder = path.split('/').nth(1).unwrap_or_default();
            let folder = if folder.ends_with(".md") {
                "(top)"
            } else {
                folder
            };
            *survey.document_bytes.entry(folder.to_owned()).or_default() += file.text().len();
        }
        if file.kind() != Kind::Rust {
            continue;
        }
        survey.files_over_500 += usize::from(file.lines().count() > 500);
        survey.production_lines += file.production_lines().count();
        for function in functions(file) {
            survey.functions_over_60 += usize::from(function.lines > 60);
            survey.functions_over_100 += usize::from(function.lines > 100);
            let is_tuple = has_tuple_parameter(&function.signature);
            survey.tuple_parameters += usize::from(is_tuple && !file.is_test());
        }
        if !file.is_test() {
            let package = path.split("/src/").next().unwrap_or_default();
            count_members(file, package, &mut methods, &mut fields);
        }
    }
    survey.most_methods = largest(methods);
    survey.most_fields = largest(fields);
    survey
}

fn largest(counts: BTreeMap<String, usize>) -> Vec<(String, usize)> {
    let mut all: Vec<_> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.truncate(TYPES_LISTED);
    all
}

/// Counts the methods of inherent `impl` blocks and the fields of structs.
fn count_members(
    file: &crate::File,
    package: &str,
    methods: &mut BTreeMap<String, usize>,
    fields: &mut BTreeMap<String, usize>,
) {
    enum Within {
        Nothing,
        Methods(String),
        Fields(String),
    }
    let mut within = Within::Nothing;
    for line in file.production_lines() {
        let text = line.text;
        if indentation(text) == 0 && !text.is_empty() {
            within = match (implemented_type(text), defined_type(text)) {
                (Some(name), _) => Within::Methods(format!("{package}::{name}")),
                (_, Some(name)) if text.contains("struct ") && text.ends_with('{') => {
                    Within::Fields(format!("{package}::{name}"))
                }
                _ => Within::Nothing,
            };
            continue;
        }
        let text = text.trim_start();
        match &within {
            Within::Methods(name)
                if indentation(line.text) == 4
                    && text.contains("fn ")
                    && !text.starts_with("//") =>
            {
                *methods.entry(name.clone()).or_default() += 1;
            }
            Within::Fields(name)
                if indentation(line.text) == 4
                    && text.contains(": ")
                    && !text.starts_with(['/', '#']) =>
            {
                *fields.entry(name.clone()).or_default() += 1;
            }
            _ => {}
        }
    }
}

/// The type whose inherent `impl` block a line begins.
fn implemented_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if line.contains(" for ") || !line.ends_with('{') {
        return None;
    }
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => rest.trim_start(),
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packages             {}", self.packages)?;
        writeln!(f, "production lines     {}", self.production_lines)?;
        writeln!(f, "functions > 60       {}", self.functions_over_60)?;
        writeln!(f, "functions > 100      {}", self.functions_over_100)?;
        writeln!(f, "files > 500          {}", self.files_over_500)?;
        writeln!(f, "tuple parameters     {}", self.tuple_parameters)?;
        writeln!(f, "SQL migrations       {}", self.migrations)?;
        match &self.cycle {
            Some(cycle) => writeln!(
                f,
                "largest cycle        {} files in {}: {}",
                cycle.modules.len(),
                cycle.package,
                cycle.modules.join(", ")
            )?,
            None => writeln!(f, "largest cycle        none")?,
        }
        for (kind, list) in [
            ("methods", &self.most_methods),
            ("fields", &self.most_fields),
        ] {
            for (name, count) in list {
                writeln!(f, "{kind:<20} {count} {name}")?;
            }
        }
        for (folder, bytes) in &self.document_bytes {
            writeln!(f, "bytes of documents   {bytes} {folder}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    #[test]
    fn methods_and_fields_are_counted_by_type() {
        let text = "pub struct A<T> {\n    /// One: first.\n    pub one: T,\n    two: u8,\n}\n\nimpl<T> A<T> {\n    pub fn a(&self) {\n        fn inner() {}\n    }\n\n    async fn b(&self) {}\n}\n\nimpl Clone for A<u8> {\n    fn clone(&self) -> Self {}\n}\n";
        let tree = Tree::new(vec![File::new("crates/x/src/a.rs", text)]);
        let survey = survey(&tree);
        assert_eq!(survey.most_methods, [("crates/x::A".to_owned(), 2)]);
        assert_eq!(survey.most_fields, [("crates/x::A".to_owned(), 2)]);
    }
}
