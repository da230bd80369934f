//! `cargo run -p tidy [-- ROOT]`: prints what a tree consists of, and what is not tidy in it.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    let tree = match tidy::Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {} cannot be read: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    print!("{}", tidy::survey(&tree));
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    println!("findings             {}", findings.len());
    if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
