//! [`Tree`]: the files that the rules look at, and how one is taken apart into lines.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Folders that hold no text of Scree's own, by their path from the root.
pub const SKIPPED: &[&str] = &[
    ".git",
    "target",
    "fuzz/images",
    "fuzz/corpus",
    "fuzz/artifacts",
    // The rules and their examples name what they forbid.
    "crates/tidy",
];

/// Files that are generated from others, by the ends of their paths.
const GENERATED: &[&str] = &["Cargo.lock", "docs/openapi.json", "docs/third-party.md"];

/// The files of a source tree.
#[derive(Debug, Default)]
pub struct Tree {
    files: Vec<File>,
    /// All files and folders, those without a rule included, by their path from the root.
    paths: BTreeSet<PathBuf>,
}

/// What a file is, for the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rust.
    Rust,
    /// A document.
    Markdown,
    /// Scripts, settings, SQL.
    Other,
}

/// A text file of the tree.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    text: String,
}

/// A line of a file.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Counted from 1.
    pub number: usize,
    /// The text, without the end of the line.
    pub text: &'a str,
}

impl Tree {
    /// A tree of the given files.
    #[must_use]
    pub fn new(files: Vec<File>) -> Self {
        let paths = files.iter().flat_map(|file| file.path.ancestors());
        let paths = paths.map(Path::to_owned).collect();
        Self { files, paths }
    }

    /// Reads all text files below `root`.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, Path::new(""))?;
        tree.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    #[expect(clippy::disallowed_methods, reason = "a check of the real source tree")]
    fn read_folder(&mut self, root: &Path, folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            self.paths.insert(path.clone());
            if SKIPPED.iter().any(|skipped| path == Path::new(skipped)) {
                continue;
            }
            if kind.is_dir() {
                self.read_folder(root, &path)?;
            } else if kind.is_file() && is_text(&path) {
                let text = std::fs::read_to_string(root.join(&path))?;
                self.files.push(File { path, text });
            }
        }
        Ok(())
    }

    /// All files, by path.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Whether there is a file or folder at `path`.
    #[must_use]
    pub fn has_path(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    /// The file at `path`.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == Path::new(path))
    }
}

fn is_text(path: &Path) -> bool {
    let has_known_extension = path.extension().is_some_and(|extension| {
        let known = [
            "rs", "md", "py", "sql", "toml", "yml", "yaml", "sh", "env", "service", "conf",
        ];
        known.iter().any(|known| extension == *known)
    });
    has_known_extension && !GENERATED.iter().any(|end| path.ends_with(end))
}

impl File {
    /// A file with this text.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    /// The path from the tree's root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the file is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self
            .path
            .extension()
            .and_then(|extension| extension.to_str())
        {
            Some("rs") => Kind::Rust,
            Some("md") => Kind::Markdown,
            _ => Kind::Other,
        }
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.text.lines().enumerate().map(|(index, text)| Line {
            number: index + 1,
            text,
        })
    }

    /// Whether the whole file is test code, benchmark or example.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let path = self.path.to_string_lossy();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        path.contains("/tests/")
            || path.contains("/examples/")
            || name == "tests.rs"
            || name.ends_with("_tests.rs")
    }

    /// The lines before the file's `#[cfg(test)] mod … {`: production code, unless the whole
    /// file is a test.
    pub fn production_lines(&self) -> impl Iterator<Item = Line<'_>> {
        let end = self
            .text
            .find("#[cfg(test)]\nmod tests {")
            .unwrap_or(self.text.len());
        let end = if self.is_test() { 0 } else { end };
        self.text[..end]
            .lines()
            .enumerate()
            .map(|(index, text)| Line {
                number: index + 1,
                text,
            })
    }
}

/// How many columns a line is indented by.
#[must_use]
pub fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The text of a comment line (`//`, `///`, `//!`), or `None` for code.
#[must_use]
pub fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}
