//! Which virtual machine is meant.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Which VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VmAddress {
    /// `qmp:PATH`: the QEMU whose QMP monitor listens on that unix socket.
    Qmp(PathBuf),
    /// `libvirt:DOMAIN`: libvirt's domain of that name or UUID.
    Libvirt(String),
}

/// A text that names no VM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no VM; write qmp:/path/to/its/socket or libvirt:ITS-NAME")]
pub struct BadVmAddress(String);

impl FromStr for VmAddress {
    type Err = BadVmAddress;

    fn from_str(text: &str) -> Result<Self, BadVmAddress> {
        let is_plain = |name: &str| !name.is_empty() && !name.contains(char::is_control);
        match text.split_once(':') {
            Some(("qmp", path)) if path.starts_with('/') && is_plain(path) => {
                Ok(Self::Qmp(path.into()))
            }
            // What begins with a dash would be an option to virsh.
            Some(("libvirt", name)) if is_plain(name) && !name.starts_with('-') => {
                Ok(Self::Libvirt(name.into()))
            }
            _ => Err(BadVmAddress(text.into())),
        }
    }
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
    fn an_address_is_read_back_and_what_is_none_is_refused() {
        for text in ["qmp:/run/vm/one.qmp", "libvirt:one", "libvirt:a b:c"] {
            let address: VmAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        for text in [
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
