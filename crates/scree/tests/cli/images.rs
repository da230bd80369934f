//! Base images, from marking to reads from the caches of hosts.

use serde_json::Value;

use crate::caches::{file_of, site_with_cache};
use crate::host::{Host, wait_until};
use crate::moves::second_host;
use crate::service::{Site, qemu_io};

/// How many blocks of images the only open volume read from its host's cache and from units.
fn requested(site: &Site) -> (u64, u64) {
    let load = site.locally(&["top"]);
    let requested = &load[0]["volumes"][0]["engine"]["cache"]["lookups"]["image"];
    let count = |source: &str| requested[source].as_u64().expect("a number");
    (count("file"), count("units"))
}

/// How many blocks of images, and of others, are in the cache.
fn kept(site: &Site) -> (u64, u64) {
    let file = file_of(site);
    let count = |area: &str| file[area]["blocks"].as_u64().expect("a number");
    (count("image"), count("active"))
}

fn reads_right(site: &Site, volume: &str) -> bool {
    let commands = ["read -P 7 0 1M", "read -P 9 1M 1M"];
    qemu_io(&site.path("a"), volume, &commands)
}

#[test]
fn a_preloaded_image_is_read_from_the_cache_by_its_clones() {
    let (site, [controller, agent, first, second], _) = site_with_cache();
    site.locally(&["volume", "unexport", "disk"]);
    site.locally(&["snapshot", "create", "disk", "--name", "moment"]);
    site.locally(&["volume", "create", "clone", "--from", "moment"]);
    let marked = site.locally(&["image", "mark", "disk"]);
    assert_eq!(
        (&marked["pinned"], &marked["clones"]),
        (&false.into(), &1.into())
    );

    let image = site.locally(&["image", "preload", "disk"]);
    let preload = &image["preloads"][0];
    assert_eq!(
        (&preload["host"], &preload["state"]),
        (&"h1".into(), &"done".into())
    );
    let bytes = Value::from(2 << 20);
    assert_eq!(
        (&preload["done_bytes"], &preload["total_bytes"]),
        (&bytes, &bytes)
    );
    wait_until("all blocks are cached", || kept(&site) == (512, 0));
    site.locally(&["volume", "export", "clone"]);
    assert!(reads_right(&site, "clone"));
    assert_eq!(requested(&site), (512, 0));
    let listed = site.locally(&["image", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&listed[0]["name"], &listed[0]["preloads"][0]["state"]),
        (&"disk".into(), &"done".into())
    );

    // Blocks that the clone writes are not the image's, until the clone is an image, too.
    let write = ["write -P 1 4M 64K"];
    assert!(qemu_io(&site.path("a"), "clone", &write));
    site.locally(&["volume", "unexport", "clone"]);
    site.locally(&["volume", "export", "clone"]);
    let read = || qemu_io(&site.path("a"), "clone", &["read -P 1 4M 64K"]);
    assert!(read());
    wait_until("they are cached", || kept(&site) == (512, 16));
    site.locally(&["image", "mark", "clone"]);
    wait_until("they have moved to the image area", || {
        read() && kept(&site) == (528, 0)
    });

    // With --no-wait the command returns immediately, and a preload can be canceled.
    let begun = site.locally(&["image", "preload", "disk", "--host", "h1", "--no-wait"]);
    assert_eq!(begun["preloads"][0]["state"], "waiting");
    let off = site.locally(&["image", "preload", "disk", "--cancel"]);
    assert!(off["preloads"][0]["ended"].is_string());
    site.locally(&["image", "unmark", "disk"]);
    let listed = site.locally(&["image", "list"]);
    assert_eq!(listed[0]["name"], "clone");
    for process in [agent, first, second, controller] {
        process.stop();
    }
}

/// Once a host without a cache failed the command for all hosts, and a host that was unresponsive
/// was waited for without end.
#[test]
fn hosts_without_a_cache_and_unresponsive_hosts_do_not_block_others() {
    let (site, [controller, agent, first, second], _) = site_with_cache();
    site.locally(&["volume", "unexport", "disk"]);
    site.locally(&["image", "mark", "disk"]);
    let bare = second_host(&site);
    let states = |image: &Value| {
        let preloads = image["preloads"].as_array().expect("a list").iter();
        let states = preloads.map(|preload| preload["state"].as_str().expect("text").to_owned());
        states.collect::<Vec<_>>()
    };
    let image = site.locally(&["image", "preload", "disk"]);
    assert_eq!(states(&image), ["done", "skipped"]);
    let folder = site.text("c");
    let refused = |arguments: &[&str], why: &str| {
        let said = site.try_scree(&[&["--dir", &folder, "image", "preload"], arguments].concat());
        assert_eq!(said.code, 1, "{}", said.out);
        assert!(said.error.contains(why), "{}", said.error);
    };
    let named = ["disk", "--host", "h2"];
    refused(&named, "h2 has not read it: this host has no cache file");
    // The command names h1 only.
    let image = site.locally(&["image", "preload", "disk", "--host", "h1"]);
    assert_eq!(states(&image), ["done", "skipped"]);

    bare.stop();
    let begun = site.locally(&["image", "preload", "disk", "--host", "h2", "--no-wait"]);
    assert_eq!(states(&begun), ["done", "waiting"]);
    site.locally(&["host", "disable", "h2"]);
    let listed = site.locally(&["image", "list"]);
    assert_eq!(
        listed[0]["preloads"][1]["message"]["text"],
        "the host is disabled"
    );
    refused(&named, "h2 has not read it: the host is disabled");
    for process in [agent, first, second, controller] {
        process.stop();
    }
}

#[test]
fn impossible_requests_on_images_are_refused() {
    let host = Host::with(&["--units", "2"]);
    let made = host.json(&["volume", "create", "disk", "--size", "16M"]);
    assert_eq!(made.get("image"), None);
    host.refuses(
        1,
        &["image", "preload", "disk"],
        &["is not a base image", "scree image mark"],
    );
    host.refuses(1, &["image", "unpin", "disk"], &["is not a base image"]);
    host.refuses(1, &["image", "mark", "none"], &["none"]);
    let pinned = host.json(&["image", "pin", "disk"]);
    assert_eq!(pinned["pinned"], true);
    assert_eq!(host.json(&["volume", "show", "disk"])["image"], "pinned");
    assert_eq!(host.json(&["volume", "list"])[0]["image"], "pinned");
    host.refuses(
        1,
        &["image", "preload", "disk"],
        &["volume", "has no data on the units yet"],
    );
    host.qemu_io("disk", &["write -P 5 0 1M"]);
    host.json(&["volume", "unexport", "disk"]);
    host.refuses(
        1,
        &["image", "preload", "disk"],
        &["no cache file", "--cache"],
    );
    let unpinned = host.json(&["image", "unpin", "disk"]);
    assert_eq!(unpinned["pinned"], false);
    assert_eq!(host.json(&["volume", "show", "disk"])["image"], "marked");
    host.json(&["image", "unmark", "disk"]);
    assert_eq!(host.json(&["volume", "show", "disk"]).get("image"), None);
}
