//! strace in a guest: the system calls of the commands of a script.

use std::fs;
use std::path::Path;

/// The strace command in the guest, run from the folder that has it there.
pub const TRACED: &str = "/given/strace/ld --library-path /given/strace /given/strace/strace -f -y \
    -qq -a 1 -s 0 -e signal=none -e 'trace=/^(open|creat|write|pwrite|lseek|f?truncate|rename|link|\
    symlink|unlink|mkdir|rmdir|f?chmod|[fl]?chown)' -o /log";

/// Copies this machine's strace into a folder, with everything that it needs.
pub fn put_strace(folder: &Path) {
    put_program(folder, "/usr/bin/strace");
}

/// Copies a program into a folder of its name, with its libraries, and their loader as `ld`.
pub fn put_program(folder: &Path, program: &str) {
    let name = Path::new(program).file_name().expect("a file");
    let folder = folder.join(name);
    fs::create_dir_all(&folder).expect("made");
    fs::copy(program, folder.join(name)).expect("it is installed");
    let said = std::process::Command::new("ldd").arg(program).output();
    let said = String::from_utf8(said.expect("ldd runs").stdout).expect("UTF-8");
    for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
        let name = Path::new(library).file_name().expect("a file");
        let is_loader = name.to_str().is_some_and(|name| name.starts_with("ld-"));
        let to = match is_loader {
            true => folder.join("ld"),
            false => folder.join(name),
        };
        fs::copy(library, to).expect("it exists");
    }
}

/// The calls of a log that changed something below `/m`, one per line; sequential writes are one.
pub fn calls(log: &str) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    let mut written: Option<(String, u64)> = None;
    for line in log.lines() {
        let Some(call) = Call::parse(line) else {
            continue;
        };
        if call.name == "write" {
            let Some(path) = call.file() else { continue };
            match &mut written {
                Some((last, bytes)) if *last == path => *bytes += call.result,
                _ => {
                    calls.extend(written.take().map(spelled));
                    written = Some((path, call.result));
                }
            }
            continue;
        }
        if let Some(spelled_call) = call.spelled() {
            calls.extend(written.take().map(spelled));
            calls.push(spelled_call);
        }
    }
    calls.extend(written.map(spelled));
    calls
}

fn spelled((path, bytes): (String, u64)) -> String {
    format!("write {path} {bytes}")
}

struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
    result: u64,
}

impl<'a> Call<'a> {
    /// A call that succeeded.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, line) = line.split_once(' ')?;
        let (name, rest) = line.trim_start().split_once('(')?;
        let (arguments, result) = rest.rsplit_once(") = ")?;
        let end = result.find(|one: char| !one.is_ascii_digit());
        let result = result[..end.unwrap_or(result.len())].parse().ok()?;
        Some(Self {
            name,
            arguments,
            result,
        })
    }

    /// The file that its first argument refers to.
    fn file(&self) -> Option<String> {
        let (_, rest) = self.arguments.split_once("</m/")?;
        Some(format!("/{}", rest.split_once('>')?.0))
    }

    fn spelled(&self) -> Option<String> {
        let quoted: Vec<&str> = self.arguments.split('"').skip(1).step_by(2).collect();
        let paths: Vec<&str> = quoted
            .iter()
            .filter_map(|one| one.strip_prefix("/m"))
            .collect();
        let last = |count: usize| -> String {
            let all: Vec<&str> = self.arguments.split(", ").collect();
            all[all.len() - count..].join(" ")
        };
        let name = self.name.trim_end_matches('2').trim_end_matches("at");
        if let ("lseek" | "ftruncate", Some(path)) = (name, self.file()) {
            return Some(match name {
                "lseek" => format!("seek {path} {}", self.result),
                _ => format!("truncate {path} {}", last(1)),
            });
        }
        let path = paths.first()?;
        Some(match name {
            "open" if !self.arguments.contains("O_CREAT") => return None,
            "unlink" if self.arguments.contains("AT_REMOVEDIR") => format!("rmdir {path}"),
            "open" | "unlink" | "mkdir" | "rmdir" => format!("{name} {path}"),
            "rename" | "link" => format!("{name} {path} {}", paths.get(1)?),
            "symlink" => format!("{name} {} {path}", quoted[0]),
            "chmod" => format!("{name} {path} {}", last(1)),
            "chown" | "lchown" => format!("chown {path} {}", last(2)),
            _ => format!("{name} {path}"),
        })
    }
}

/// The expected calls of a command of a script, in the form of [`calls`].
pub fn expected(command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split(' ').collect();
    let path = |at: usize| {
        let word = words[at].trim_start_matches('>');
        word.strip_prefix("/m").expect("below /m")
    };
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let open = |path: &str| format!("open {path}");
    let write = |path: &str, units: u64| format!("write {path} {}", units * 700);
    match words[0] {
        ":" => vec![open(path(1))],
        "put" => {
            let mut calls = vec![open(words[1])];
            if number(3) > 0 {
                calls.push(format!("seek {} {}", words[1], number(3) * 700));
            }
            calls.push(write(words[1], number(4)));
            calls
        }
        "add" => vec![open(words[1]), write(words[1], number(3))],
        "truncate" => vec![open(path(3)), format!("truncate {} {}", path(3), words[2])],
        "mv" => vec![format!("rename {} {}", path(2), path(3))],
        "ln" if words[1] == "-s" => vec![format!("symlink {} {}", words[2], path(3))],
        "ln" => vec![format!("link {} {}", path(1), path(2))],
        "rm" => vec![format!("unlink {}", path(1))],
        "chmod" => vec![format!("chmod {} 0{}", path(2), words[1])],
        "chown" => vec![format!("chown {} {}", path(2), words[1].replace(':', " "))],
        _ => vec![format!("{} {}", words[0], path(1))],
    }
}
