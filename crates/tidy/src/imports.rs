//! Imports between the files of a crate, and the largest cycle among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::source::{Kind, Tree};

/// Files that import each other, directly or through others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The modules, as paths from the crate's root.
    pub modules: Vec<String>,
    /// The crate's folder.
    pub package: String,
}

/// The cycle with the most files in any crate.
pub fn largest_cycle(tree: &Tree) -> Option<Cycle> {
    let mut packages: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for file in tree.files() {
        if file.kind() != Kind::Rust || file.is_test() {
            continue;
        }
        let Some((package, module)) = place_of(file.path()) else {
            continue;
        };
        let code: String = file
            .production_lines()
            .map(|line| line.text.trim())
            .filter(|line| !line.starts_with("//"))
            .collect::<Vec<_>>()
            .join(" ");
        let modules = packages.entry(package).or_default();
        modules.insert(module.clone(), paths_of(&module, &code));
    }
    let cycles = packages.into_iter().filter_map(|(package, modules)| {
        let modules = largest_component(&resolved(&modules))?;
        Some(Cycle { modules, package })
    });
    cycles.max_by_key(|cycle| cycle.modules.len())
}

/// The crate's folder, and the module that the file at `path` is (`""` for the root).
fn place_of(path: &Path) -> Option<(String, String)> {
    let path = path.to_str()?;
    let (package, rest) = path.split_once("/src/")?;
    let rest = rest.strip_suffix(".rs")?;
    let rest = match rest {
        "lib" | "main" | "mod" => "",
        _ => rest.strip_suffix("/mod").unwrap_or(rest),
    };
    Some((package.to_owned(), rest.replace('/', "::")))
}

/// All paths within the crate that the code of `module` names, without their first segment.
fn paths_of(module: &str, code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    for start in ["crate::", "super::"] {
        let mut from = 0;
        while let Some(at) = code[from..].find(start) {
            let begin = from + at;
            from = begin + start.len();
            if code[..begin].ends_with(|letter: char| {
                letter == '_' || letter == ':' || letter.is_alphanumeric()
            }) {
                continue;
            }
            let rest = &code[begin..];
            let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
            let prefix = absolute(module, &rest[..end]);
            let group = rest[end..]
                .strip_prefix('{')
                .filter(|_| rest[..end].ends_with("::"));
            match group.and_then(|group| group.split_once('}')) {
                Some((members, _)) => {
                    for member in members.split(',') {
                        let member = member.trim().split(' ').next().unwrap_or_default();
                        found.insert(format!("{prefix}{member}"));
                    }
                }
                None => {
                    found.insert(prefix);
                }
            }
        }
    }
    found
}

/// `crate::a::b` and `super::b` as paths from the crate's root.
fn absolute(module: &str, path: &str) -> String {
    if let Some(path) = path.strip_prefix("crate::") {
        return path.to_owned();
    }
    let mut base: Vec<&str> = module.split("::").collect();
    let mut rest = path;
    while let Some(next) = rest.strip_prefix("super::") {
        base.pop();
        rest = next;
    }
    base.push(rest);
    base.join("::")
}

/// Each module with the modules that its paths lead to.
fn resolved(modules: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let lead = |path: &String| {
        let mut path = path.trim_end_matches(':');
        loop {
            if modules.contains_key(path) {
                return Some(path.to_owned());
            }
            path = &path[..path.rfind("::")?];
        }
    };
    let edges = modules.iter().map(|(module, paths)| {
        let targets = paths.iter().filter_map(lead);
        (
            module.clone(),
            targets.filter(|target| target != module).collect(),
        )
    });
    edges.collect()
}

/// The largest set of nodes that all reach each other; `None` if no two do.
fn largest_component(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = edges
        .keys()
        .map(|node| (node.as_str(), reached(edges, node)))
        .collect();
    let cycle_of = |node: &str| -> Vec<String> {
        let others = reach[node].iter();
        let both =
            others.filter(|other| reach.get(**other).is_some_and(|back| back.contains(node)));
        both.map(|other| (*other).to_owned()).collect()
    };
    let cycles = edges.keys().map(|node| cycle_of(node));
    cycles.filter(|cycle| cycle.len() > 1).max_by_key(Vec::len)
}

fn reached<'a>(edges: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = edges[from].iter().map(String::as_str).collect();
    while let Some(node) = open.pop() {
        if found.insert(node) {
            let next = edges.get(node).into_iter().flatten();
            open.extend(next.map(String::as_str));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    #[test]
    fn a_cycle_of_three_files_is_found_through_any_form_of_path() {
        let tree = Tree::new(vec![
            File::new("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            File::new("crates/x/src/a.rs", "use crate::b::{One, Two};\n"),
            File::new("crates/x/src/b.rs", "use super::c::Three;\n"),
            File::new("crates/x/src/c.rs", "fn three() { crate::a::four() }\n"),
            File::new("crates/x/src/d.rs", "use crate::a::Five;\n// crate::d\n"),
        ]);
        let cycle = largest_cycle(&tree).expect("a cycle");
        assert_eq!(cycle.modules, ["a", "b", "c"]);
    }

    #[test]
    fn a_tree_of_imports_has_no_cycle() {
        let tree = Tree::new(vec![
            File::new("crates/x/src/a.rs", "use crate::b::One;\n"),
            File::new(
                "crates/x/src/b.rs",
                "pub struct One;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
            ),
        ]);
        assert_eq!(largest_cycle(&tree), None);
    }
}
