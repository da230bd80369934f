//! Addresses of virtual machines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VmAddress {
    /// `qmp:PATH`: the QEMU whose QMP monitor listens on that unix socket.
    Qmp(PathBuf),
    /// `libvirt:DOMAIN`: libvirt's domain of that name or UUID.
    Libvirt(String),
}

/// The longest address, in characters.
pub const VM_LENGTH_MAX: usize = 256;

/// The text is not the address of a VM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the address of a VM; write qmp:/path/to/its/socket or libvirt:ITS-NAME")]
pub struct BadVmAddress(String);

impl FromStr for VmAddress {
    type Err = BadVmAddress;

    fn from_str(text: &str) -> Result<Self, BadVmAddress> {
        let is_plain = |name: &str| !name.is_empty() && !name.contains(char::is_control);
        if text.chars().nth(VM_LENGTH_MAX).is_some() {
            // Only the beginning, since errors are shown and logged.
            let begin = text.chars().take(32).collect::<String>();
            return Err(BadVmAddress(format!("{begin}…")));
        }
        match text.split_once(':') {
            Some(("qmp", path)) if is_plain(path) && is_normal(path) => Ok(Self::Qmp(path.into())),
            // A name that begins with a dash would be an option of virsh.
            Some(("libvirt", name)) if is_plain(name) && !name.starts_with('-') => {
                Ok(Self::Libvirt(name.into()))
            }
            _ => Err(BadVmAddress(text.into())),
        }
    }
}

/// Whether a path is absolute without `.`, `..` and empty parts. So a grant for the VMs below a
/// folder covers no other VM, and no VM has two addresses. (The agent follows no symbolic links.)
fn is_normal(path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or_default().split('/');
    parts.all(|part| !matches!(part, "" | "." | ".."))
}

impl fmt::Display for VmAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qmp(path) => write!(formatter, "qmp:{}", path.display()),
            Self::Libvirt(name) => write!(formatter, "libvirt:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_invalid_ones_are_refused() {
        for text in ["qmp:/run/vm/one.qmp", "libvirt:one", "libvirt:a b:c"] {
            let address: VmAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        let long = format!("libvirt:{}", "x".repeat(VM_LENGTH_MAX));
        for text in [
            &long,
            "qmp:/run/mine/../other/one.qmp",
            "qmp:/run/mine/./one.qmp",
            "qmp:/run//one.qmp",
            "qmp:/run/one.qmp/",
            "",
            "one",
            "qmp:",
            "qmp:one.qmp",
            "qmp:/a\nb",
            "libvirt:",
            "libvirt:--all",
            "xen:one",
        ] {
            assert!(text.parse::<VmAddress>().is_err(), "{text}");
        }
    }
}
