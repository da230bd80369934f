//! docs/reference/configuration.md: environment variables, and the settings files of the
//! packaged services.

use clap::CommandFactory as _;

use super::{check, head, root, row};
use crate::args::Arguments;
use crate::environment;

/// A packaged service: its settings file and the command that it runs.
const SERVICES: [(&str, &str); 4] = [
    ("up", "up"),
    ("controller", "controller"),
    ("agent", "agent"),
    ("unit", "unit"),
];

/// The long options of a command.
fn options(name: &str) -> Vec<String> {
    let mut scree = Arguments::command();
    scree.build();
    let command = scree.find_subcommand(name).expect("a command");
    let all = command.get_arguments().filter_map(|one| one.get_long());
    all.map(|long| format!("--{long}")).collect()
}

#[test]
fn the_configuration_reference_is_up_to_date() {
    let mut text = "# Configuration\n\nScree has no configuration file: processes take options \
                    ([cli.md](cli.md)) and environment variables. A packaged service reads its \
                    options from a settings file.\n\n## Environment variables\n\n"
        .to_owned();
    text += &head(&["Variable", "Read by", "Meaning"]);
    for variable in environment::ALL {
        let name = format!("`{}`", variable.name);
        text += &row(&[
            name,
            variable.readers.to_owned(),
            variable.meaning.to_owned(),
        ]);
    }
    text += "\nCredentials of object stores and Ceph are taken from the environment as their own \
             tools do it: see [ports-and-files.md](ports-and-files.md).\n\n## Settings files\n\n\
             Each sets `SCREE_OPTIONS`, the options of the service, and `SCREE_LOG`.\n\n";
    text += &head(&["File", "Service", "Command", "Options that it names"]);
    for (service, command) in SERVICES {
        let path = root().join("packaging/etc").join(format!("{service}.env"));
        let file = std::fs::read_to_string(path).expect("a settings file");
        let words =
            file.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
        let mut named: Vec<String> = words
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .map(str::to_owned)
            .collect();
        named.sort_unstable();
        named.dedup();
        let own = options(command);
        // Options of the commands that the file mentions beside the service's own.
        let others = ["--token", "--authority", "--dir", "--help"];
        for option in &named {
            let is_known = own.contains(option) || others.contains(&option.as_str());
            assert!(
                is_known,
                "packaging/etc/{service}.env names {option}, which {command} has not"
            );
        }
        let shown = named
            .iter()
            .filter(|option| !others.contains(&option.as_str()));
        let shown: Vec<String> = shown.map(|option| format!("`{option}`")).collect();
        text += &row(&[
            format!("`/etc/scree/{service}.env`"),
            format!("`scree-{service}.service`"),
            format!("`scree {command}`"),
            shown.join(", "),
        ]);
    }
    check("configuration.md", &text);
}

#[test]
fn clap_reads_the_variables_that_the_table_names() {
    let scree = Arguments::command();
    let read = scree.get_arguments().filter_map(|one| one.get_env());
    let read: Vec<String> = read
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    assert_eq!(read, [environment::DIR.name, environment::PROFILE.name]);
}
