//! libvirt's XML: parsing a domain, and writing a disk.
//!
//! Must not know: how libvirt is called.
//!
//! Invariant: a disk written here is read back unchanged; no text becomes markup.

use std::collections::HashSet;

use roxmltree::{Node, ParsingOptions};

use super::{Disk, DiskName, Found};

/// The prefix that libvirt requires for aliases chosen by users.
const ALIAS: &str = "ua-";

/// The most elements of a parsed domain; real ones have far fewer.
const NODES_MAX: u32 = 100_000;

/// A domain in the output of `dumpxml`.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) is_running: bool,
    pub(super) disks: Vec<DomainDisk>,
    /// The target names of all its disks.
    targets: HashSet<String>,
}

/// A disk of Scree in a domain.
pub(super) struct DomainDisk {
    pub(super) found: Found,
    /// Whether the connection has a reconnect delay.
    pub(super) waits_for_server: bool,
}

/// The alias of a disk.
pub(super) fn alias(name: &DiskName) -> String {
    format!("{ALIAS}{}", name.in_qemu())
}

fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn text<'a>(node: Node<'a, 'a>, name: &str) -> &'a str {
    child(node, name)
        .and_then(|child| child.text())
        .unwrap_or_default()
}

fn attribute<'a>(node: Node<'a, 'a>, name: &str, attribute: &str) -> Option<&'a str> {
    child(node, name)?.attribute(attribute)
}

impl Domain {
    /// Parses a domain; `Ok(None)` for XML that does not describe one.
    pub(super) fn read(xml: &str) -> Result<Option<Self>, roxmltree::Error> {
        let options = ParsingOptions {
            nodes_limit: NODES_MAX,
            ..ParsingOptions::default()
        };
        let document = roxmltree::Document::parse_with_options(xml, options)?;
        let root = document.root_element();
        if !root.has_tag_name("domain") {
            return Ok(None);
        }
        let mut domain = Self {
            name: text(root, "name").into(),
            uuid: text(root, "uuid").into(),
            // Only a running domain has a number.
            is_running: root.has_attribute("id"),
            disks: Vec::new(),
            targets: HashSet::new(),
        };
        let devices = child(root, "devices").into_iter();
        let disks = devices.flat_map(|devices| devices.children());
        for disk in disks.filter(|node| node.has_tag_name("disk")) {
            if let Some(target) = attribute(disk, "target", "dev") {
                domain.targets.insert(target.into());
            }
            let alias = attribute(disk, "alias", "name").and_then(|name| name.strip_prefix(ALIAS));
            let Some(name) = alias.and_then(DiskName::from_qemu) else {
                continue;
            };
            let source = child(disk, "source");
            let delay = source.and_then(|source| attribute(source, "reconnect", "delay"));
            domain.disks.push(DomainDisk {
                found: Found {
                    name,
                    serial: text(disk, "serial").parse().ok(),
                    is_read_only: child(disk, "readonly").is_some(),
                    is_plugged: true,
                },
                waits_for_server: delay.is_some(),
            });
        }
        Ok(Some(domain))
    }

    /// The disk of that name.
    pub(super) fn disk(&self, name: &DiskName) -> Option<&DomainDisk> {
        self.disks.iter().find(|disk| disk.found.name == *name)
    }

    /// The first of `vda`, `vdb`, ... `vdz`, `vdaa`, ... that no disk uses.
    pub(super) fn free_target(&self) -> String {
        (0..)
            .map(target)
            .find(|target| !self.targets.contains(target))
            .expect("there are more numbers than disks")
    }
}

/// The target name of the virtio disk with that number, from 0.
fn target(mut number: u32) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'a' + (number % 26) as u8));
        if number < 26 {
            break;
        }
        number = number / 26 - 1;
    }
    letters.push('d');
    letters.push('v');
    letters.iter().rev().collect()
}

/// Escapes a text for an attribute value.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// The XML of a disk for `attach-device`. `socket` and the export's name contain no control
/// characters.
pub(super) fn write_disk(disk: &Disk, socket: &str, target: &str) -> String {
    let Disk {
        name,
        serial,
        export,
        reconnect_delay_seconds,
        ..
    } = disk;
    let (export, socket) = (escape(export), escape(socket));
    let alias = alias(name);
    let readonly = if disk.is_read_only { "<readonly/>" } else { "" };
    format!(
        "<disk type='network' device='disk'>\
         <driver name='qemu' type='raw' discard='unmap'/>\
         <source protocol='nbd' name='{export}'>\
         <host transport='unix' socket='{socket}'/>\
         <reconnect delay='{reconnect_delay_seconds}'/>\
         </source>\
         <target dev='{target}' bus='virtio'/>\
         <serial>{serial}</serial>{readonly}\
         <alias name='{alias}'/>\
         </disk>"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn disk(export: &str) -> Disk {
        Disk {
            name: "att-1".parse().expect("a name"),
            socket: "/unused".into(),
            export: export.into(),
            is_read_only: true,
            serial: "vol-1".parse().expect("a serial"),
            reconnect_delay_seconds: 30,
        }
    }

    #[test]
    fn targets_are_counted_in_letters() {
        let names = [
            (0, "vda"),
            (25, "vdz"),
            (26, "vdaa"),
            (701, "vdzz"),
            (702, "vdaaa"),
        ];
        for (number, name) in names {
            assert_eq!(target(number), name);
        }
    }

    #[test]
    fn the_first_free_target_is_taken() {
        let xml = "<domain><devices><disk><target dev='vda'/></disk><disk><target dev='sda'/>\
                   </disk><disk><target dev='vdc'/></disk></devices></domain>";
        let domain = Domain::read(xml).expect("XML").expect("a domain");
        assert_eq!(domain.free_target(), "vdb");
        assert!(!domain.is_running);
    }

    #[test]
    fn xml_that_is_no_domain_is_refused() {
        assert!(Domain::read("<network/>").expect("XML").is_none());
        for xml in [
            "",
            "error: no",
            "<domain>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><domain/>",
        ] {
            assert!(Domain::read(xml).is_err(), "{xml}");
        }
    }

    proptest! {
        #[test]
        fn a_disk_is_read_back_whatever_its_export_name_is(
            export in "[^\\p{Cc}\u{fffe}\u{ffff}]{0,40}",
            socket in "/[^\\p{Cc}\u{fffe}\u{ffff}]{0,40}",
        ) {
            let disk = disk(&export);
            let xml = write_disk(&disk, &socket, "vda");
            let document = roxmltree::Document::parse(&xml).expect("XML");
            let of = |name| document.descendants().find(|node| node.has_tag_name(name));
            prop_assert_eq!(of("source").and_then(|node| node.attribute("name")), Some(&*export));
            prop_assert_eq!(of("host").and_then(|node| node.attribute("socket")), Some(&*socket));

            let xml = format!("<domain id='1'><devices>{xml}</devices></domain>");
            let domain = Domain::read(&xml).expect("XML").expect("a domain");
            let found = domain.disk(&disk.name).expect("the disk");
            prop_assert!(found.waits_for_server && domain.is_running);
            prop_assert_eq!(&found.found.serial, &Some(disk.serial));
            prop_assert!(found.found.is_read_only);
        }

        #[test]
        fn no_input_makes_the_parser_panic(xml in "[<>/='a-d &;!?\\[\\]-]{0,80}") {
            let _ = Domain::read(&xml);
        }
    }
}
