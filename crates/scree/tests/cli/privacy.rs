//! `scree privacy`: leakage by the equations and by simulation.

use std::os::unix::fs::FileExt as _;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{CommandOutput, scree};

fn privacy(arguments: &[&str]) -> CommandOutput {
    scree(&[&["privacy"], arguments].concat())
}

fn result(arguments: &[&str]) -> Value {
    let said = privacy(&[arguments, &["-o", "json"]].concat());
    assert_eq!(said.code, 0, "{}", said.error);
    serde_json::from_str(&said.out).expect("JSON")
}

fn ratio(result: &Value, compromised: u64) -> f64 {
    let mut results = result["results"].as_array().expect("a list").iter();
    let found = results.find(|result| result["compromised"] == compromised);
    found.expect("a result")["leak_ratio"]
        .as_f64()
        .expect("a number")
}

const PAPER: [&str; 4] = ["--units", "100", "--compromised", "1..25"];

/// With 16 copysets, and with long pieces, more complete files leak; single blocks leak as before.
#[test]
fn few_copysets_and_long_pieces_leak_more() {
    let case = |more: &[&'static str]| {
        let site = ["--units", "60", "--compromised", "6", "--replicas", "2"];
        let plan = ["--scatter-width", "8"];
        [&site[..], &plan[..], more].concat()
    };
    let mut before = 0.0;
    for more in [
        &[][..],
        &["--destage-width", "16"],
        &["--destage-width", "16", "--granularity", "2"],
    ] {
        let case = case(more);
        let estimated = result(&[&["estimate"], &case[..]].concat());
        let trials = ["--trials", "300", "--seed", "3"];
        let simulated = result(&[&["simulate"], &case[..], &trials[..]].concat());
        let leaks = ratio(&estimated, 6);
        assert!(leaks > before, "{more:?} {leaks}");
        let within = simulated["results"][0]["leak_ratio_within"]
            .as_f64()
            .expect("a number");
        let off = (ratio(&simulated, 6) - leaks).abs();
        assert!(off < within * 4.7 / 1.96, "{more:?}: {off} {within}");
        before = leaks;
    }
    for (more, why) in [
        (["--destage-width", "0"], "a number from 1 to 1024"),
        (["--granularity", "0"], "not in 1.."),
    ] {
        let said = privacy(&[&["estimate"], &case(&more)[..]].concat());
        assert_eq!(said.code, 2, "{}", said.error);
        assert!(said.error.contains(why), "{}", said.error);
    }
}

/// HVSTO's Fig. 4, by its equations and by simulation.
#[test]
fn the_numbers_of_the_paper_are_reproduced() {
    for (block, of_one, of_25) in [("4K", 0.000_033, 0.001_1), ("8K", 0.000_074, 0.002_5)] {
        let case = [&PAPER[..], &["--block-size", block]].concat();
        let estimated = result(&[&["estimate"], &case[..]].concat());
        let trials = ["--trials", "200", "--seed", "7"];
        let simulated = result(&[&["simulate"], &case[..], &trials[..]].concat());
        for (compromised, published) in [(1, of_one), (25, of_25)] {
            for result in [&estimated, &simulated] {
                let off = ratio(result, compromised) / published - 1.0;
                assert!(off.abs() < 0.05, "{block} {compromised}: {off}");
            }
        }
        // The true mean is further away than this in three of a million cases, in either direction,
        // for fifty numbers.
        for compromised in 1..=25 {
            let of_trials = &simulated["results"][compromised as usize - 1];
            let within = of_trials["leak_ratio_within"].as_f64().expect("a number");
            let off = (ratio(&simulated, compromised) - ratio(&estimated, compromised)).abs();
            assert!(
                off < within * 4.7 / 1.96,
                "{block} {compromised}: {off} {within}"
            );
        }
    }
}

#[test]
fn files_are_read_from_a_folder_or_a_list() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().expect("text").to_owned();
    std::fs::create_dir_all(path("tree/below")).expect("made");
    for (name, length) in [
        ("tree/one", 100),
        ("tree/below/two", 5000),
        ("tree/none", 0),
    ] {
        std::fs::write(path(name), vec![1; length]).expect("written");
    }
    std::os::unix::fs::symlink(path("tree/one"), path("tree/link")).expect("made");
    std::fs::write(path("list.csv"), "name,bytes\none,100\ntwo,5000\n").expect("written");
    std::fs::write(path("list"), "100\n5000\n0\n").expect("written");
    let case = ["estimate", "--units", "4", "--compromised", "1,2"];
    for of in [
        ["--tree", &text("tree")],
        ["--list", &text("list.csv")],
        ["--list", &text("list")],
    ] {
        let result = result(&[&case[..], &of[..]].concat());
        assert_eq!(
            (&result["files"], &result["bytes"]),
            (&2.into(), &5100.into())
        );
        // One block of the first file, two of the second.
        let expected = (100.0 / 4.0 + 5000.0 / 16.0) / 5100.0;
        assert!((ratio(&result, 1) - expected).abs() < 1e-12);
    }
    // A hard link is not another file, and a hole has no blocks: 8 KiB of this file exist.
    let only = path("odd");
    std::fs::create_dir(&only).expect("made");
    let sparse = std::fs::File::create(only.join("sparse")).expect("made");
    sparse.set_len(1 << 20).expect("a hole");
    for at in [0, 512 << 10] {
        sparse.write_all_at(&[7; 4096], at).expect("written");
    }
    // Blocks beyond the end, or reserved and never written, are not part of the file.
    let reserved = Command::new("fallocate")
        .args(["--keep-size", "--offset", "1M", "--length", "1M"])
        .arg(only.join("sparse"))
        .status();
    assert!(reserved.expect("util-linux is there").success());
    std::fs::hard_link(only.join("sparse"), only.join("again")).expect("linked");
    let odd = result(&[&case[..], &["--tree", &text("odd")]].concat());
    assert_eq!((&odd["files"], &odd["bytes"]), (&1.into(), &8192.into()));
    let picture = text("leaks.svg");
    let list = text("list");
    let (odd, inside) = (text("odd"), text("odd/sparse"));
    for (place, code) in [(&*inside, 1), (&text("odd/new.svg"), 1), ("/dev/null", 0)] {
        let said = privacy(&[&case[..], &["--tree", &odd, "--plot", place]].concat());
        let is_refused = said.error.contains("one of the files below --tree");
        assert_eq!((said.code, is_refused), (code, code == 1), "{}", said.error);
    }
    // An input file is not overwritten by the plot.
    for over in [&list, &text("tree/../list")] {
        let said = privacy(&[&case[..], &["--list", &list, "--plot", over]].concat());
        assert!(said.error.contains("it is an input file"), "{}", said.error);
        assert_eq!(
            std::fs::read_to_string(&list).expect("it exists"),
            "100\n5000\n0\n"
        );
    }
    let said = privacy(&[&case[..], &["--list", &list, "--plot", &picture]].concat());
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(said.out.contains("2 files, 5.0K"), "{}", said.out);
    let drawn = std::fs::read_to_string(&picture).expect("drawn");
    assert!(drawn.starts_with("<svg") && drawn.contains("compromised units of 4"));
    // Nothing is readable without keys.
    let sealed = result(&[&case[..], &["--list", &list, "--sealed"]].concat());
    assert_eq!(ratio(&sealed, 2), 0.0);
    // With parity, two of three units have everything, and one unit a third.
    let erasure = [
        "estimate",
        "--units",
        "3",
        "--compromised",
        "1,2",
        "--erasure",
        "2+1",
    ];
    let result = result(&[&erasure[..], &["--list", &list]].concat());
    // Two blocks are one row, which a single unit cannot read, or they are in two rows.
    let expected = (100.0 / 3.0 + 5000.0 / 9.0 / 2.0) / 5100.0;
    assert!((ratio(&result, 1) - expected).abs() < 1e-12);
    assert_eq!(ratio(&result, 2), 1.0);
}

/// The block sizes of Fig. 4, with the numbers of its text.
#[test]
fn block_sizes_are_lines_of_one_plot_and_rows_of_one_table() {
    let folder = TempDir::new().expect("a folder");
    let picture = folder.path().join("leaks.svg");
    let picture = picture.to_str().expect("text");
    let sizes = ["--block-size", "4K,8K,4K"];
    let mark = [
        "--plot",
        picture,
        "--mark",
        "HVSTO=1:0.0033,25:0.11,25:0.25",
    ];
    for verb in ["estimate", "simulate"] {
        let case = [&[verb][..], &PAPER, &sizes].concat();
        let both = result(&case);
        let results = both["results"].as_array().expect("a list");
        assert_eq!(results.len(), 50, "each size once");
        for (number, block) in ["4K", "8K"].into_iter().enumerate() {
            let alone = result(&[&[verb][..], &PAPER, &["--block-size", block]].concat());
            let alone = alone["results"].as_array().expect("a list");
            assert_eq!(&results[25 * number..][..25], alone);
            assert_eq!(alone[0]["block_bytes"], 4096 << number);
        }
        let said = privacy(&[&case[..], &mark].concat());
        assert_eq!(said.code, 0, "{}", said.error);
        assert!(said.out.contains("in blocks of 4K or 8K"), "{}", said.out);
        let rows = |block: &str| {
            let rows = said.out.lines().filter(|line| line.starts_with(block));
            rows.count()
        };
        assert_eq!((rows("BLOCKS"), rows("4K "), rows("8K ")), (1, 25, 25));
        let drawn = std::fs::read_to_string(picture).expect("drawn");
        for name in ["one copy, blocks of 4K", "one copy, blocks of 8K", "HVSTO"] {
            assert!(drawn.contains(name), "{name}");
        }
    }
    // A single size has no column of its own.
    let said = privacy(&[&["estimate"][..], &PAPER].concat());
    assert!(!said.out.contains("BLOCKS"), "{}", said.out);
}

/// The result of a long simulation is printed even if the plot cannot be written.
#[test]
fn an_impossible_plot_is_refused_early_or_after_the_result() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let case = ["estimate", "--units", "4", "--compromised"];
    for (compromised, place, why) in [
        ("1", path(""), "it is a folder"),
        ("1", path("none/leaks.svg"), "its folder does not exist"),
        ("0", path("leaks.svg"), "no points to draw"),
    ] {
        let said = privacy(&[&case[..], &[compromised, "--plot", &place]].concat());
        assert_eq!((said.code, &*said.out), (1, ""), "{place}");
        assert!(said.error.contains(why), "{}", said.error);
    }
    let said = privacy(&[&case[..], &["1", "--plot", "/dev/full"]].concat());
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.error.contains("/dev/full"), "{}", said.error);
    assert!(said.out.contains("COMPROMISED"), "{}", said.out);
    let marked = ["1", "--plot", "/dev/null", "--mark", "a=1:2,5:3"];
    let said = privacy(&[&case[..], &marked].concat());
    assert_eq!((said.code, &*said.out), (1, ""), "{}", said.error);
    assert!(
        said.error
            .contains("5 units cannot be compromised, as there are only 4"),
        "{}",
        said.error
    );
    let said = privacy(&[&case[..], &["1", "--mark", "a=1:2"]].concat());
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("--plot"), "{}", said.error);
}

/// Once a thousand units took hours.
#[test]
fn a_thousand_units_with_parity_are_computed_within_seconds() {
    let case = ["estimate", "--units", "1000", "--compromised", "10,250"];
    let spread = ["--erasure", "4+2", "--scatter-width", "64"];
    for deal in [
        &[][..],
        &["--destage-width", "16"],
        &["--granularity", "4096"],
    ] {
        let result = result(&[&case[..], &spread, deal].concat());
        let map = |number: usize| result["results"][number]["map_ratio"].as_f64();
        assert!((map(0).expect("a number") - 0.01).abs() < 1e-6, "{result}");
        assert!(ratio(&result, 250) > ratio(&result, 10), "{result}");
    }
}

#[test]
fn a_plan_lists_placements_that_survive_failures_and_leak_little() {
    fn plan<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let site = [
            "plan",
            "--units",
            "20",
            "--compromised",
            "5",
            "--survive",
            "2",
        ];
        [&site[..], more].concat()
    }
    let all = result(&plan(&["--max-leak", "1"]));
    let options = |result: &Value| -> Vec<String> {
        let placements = result["placements"].as_array().expect("a list").iter();
        let option = |one: &Value| one["option"].as_str().expect("text").to_owned();
        placements.map(option).collect()
    };
    let all_options = options(&all);
    assert_eq!(all_options[0], "--erasure 8+2", "that takes least room");
    assert!(all_options.contains(&"--replicas 3".to_owned()));
    assert!(
        !all_options.contains(&"--replicas 2".to_owned()),
        "one more may be lost"
    );
    // With the engine's copysets by default: random ones leak more.
    let leaks = |result: &Value, option: &str| {
        let placements = result["placements"].as_array().expect("a list").iter();
        let mut such = placements.filter(|placement| placement["option"] == option);
        such.next().and_then(|one| one["leak_ratio"].as_f64())
    };
    let any = ["--scatter-width", "any", "--destage-width", "any"];
    let any = result(&plan(&[&["--max-leak", "1"], &any[..]].concat()));
    let asked = ["--units", "20", "--compromised", "5", "--replicas", "3"];
    let widths = ["--scatter-width", "8", "--destage-width", "16"];
    let engines = result(&[&["estimate"], &asked[..], &widths].concat());
    assert_eq!(
        leaks(&all, "--replicas 3"),
        engines["results"][0]["leak_ratio"].as_f64()
    );
    assert!(leaks(&all, "--replicas 3") > leaks(&any, "--replicas 3"));
    assert_eq!(
        (&all["scatter_width"], &all["destage_width"]),
        (&8.into(), &16.into())
    );
    assert_eq!(any["destage_width"], Value::Null);
    // Copies leak more than parity.
    let some = result(&plan(&["--max-leak", "0.002"]));
    assert!(!options(&some).contains(&"--replicas 3".to_owned()));
    assert!(options(&some).contains(&"--erasure 4+2".to_owned()));
    let said = privacy(&plan(&["--max-leak", "0.002"]));
    assert!(said.out.contains("--erasure 4+2  1.50 x"), "{}", said.out);
    for (more, code, why) in [
        (
            &["--max-leak", "1e-9"][..],
            1,
            "encrypted volumes leak no content",
        ),
        (&["--max-leak", "2"], 2, "from 0 to 1"),
    ] {
        let said = privacy(&plan(more));
        assert_eq!(said.code, code, "{}", said.error);
        assert!(said.error.contains(why), "{}", said.error);
    }
    // Impossible options are refused before files are read.
    let many = [
        "plan",
        "--units",
        "5",
        "--compromised",
        "9",
        "--max-leak",
        "1",
        "--list",
        "/none",
    ];
    let said = privacy(&many);
    assert!(
        said.error.contains("9 units cannot be compromised"),
        "{}",
        said.error
    );
    let said = privacy(&[
        "plan",
        "--units",
        "5",
        "--compromised",
        "1",
        "--survive",
        "4",
        "--max-leak",
        "1",
    ]);
    assert!(
        said.error.contains("no placement survives the loss of 4"),
        "{}",
        said.error
    );
}

#[test]
fn impossible_options_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (empty, words, none) = (path("empty"), path("words"), path("none"));
    std::fs::create_dir(&empty).expect("made");
    std::fs::write(&words, "name,age\nbob,7\n").expect("written");
    let huge = path("huge");
    std::fs::write(&huge, format!("{}\n1\n", u64::MAX)).expect("written");
    let units = ["estimate", "--units", "3", "--compromised", "1"];
    for (arguments, code, why) in [
        (
            &["estimate", "--units", "3", "--compromised", "4"][..],
            1,
            "4 units cannot be compromised, as there are only 3",
        ),
        (
            &["estimate", "--units", "3", "--compromised", "x"],
            2,
            "is not a number of units",
        ),
        (
            &["estimate", "--units", "5000", "--compromised", "1"],
            1,
            "maximum of 1000",
        ),
        (
            &[&units[..], &["--erasure", "4+2"]].concat(),
            1,
            "a set has 6 members and needs as many units",
        ),
        (
            &[&units[..], &["--erasure", "1+1"]].concat(),
            2,
            "2 to 64 data units",
        ),
        (
            &[&units[..], &["--replicas", "4"]].concat(),
            1,
            "a set has 4 members",
        ),
        (
            &[&units[..], &["--tree", &empty]].concat(),
            1,
            "or all are empty",
        ),
        (
            &[&units[..], &["--list", &words]].concat(),
            1,
            "not a list of lengths",
        ),
        (&[&units[..], &["--list", &none]].concat(), 1, &none),
        (
            &[&units[..], &["--list", &huge]].concat(),
            1,
            "more than 16 EiB together",
        ),
        (
            &[&units[..], &["--list", "/dev/zero"]].concat(),
            1,
            "more than 1 MiB",
        ),
        (&[&units[..], &["--list", &empty]].concat(), 1, "directory"),
        (
            &[&units[..], &["--block-size", "4K,0"]].concat(),
            2,
            "at least one byte",
        ),
        (&[&units[..], &["--tree", &none]].concat(), 1, &none),
    ] {
        let said = privacy(arguments);
        assert_eq!(said.code, code, "{arguments:?}: {}", said.error);
        assert!(said.error.contains(why), "{arguments:?}: {}", said.error);
    }
}
