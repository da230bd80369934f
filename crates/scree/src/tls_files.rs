//! Certificates and keys that the operator provides in files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use control::parties::ServerOptions;
use world::{OpenMode, World};
use zeroize::Zeroizing;

use crate::args::TlsArguments;
use crate::commands::Failure;
use crate::up::check_private;

/// The largest file with certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How often the files are read again, since other programs renew them.
pub const READ_EVERY: Duration = Duration::from_secs(60 * 60);

/// TLS settings of the API.
pub struct ApiTls {
    names: Vec<String>,
    client_authorities: Vec<PathBuf>,
    credentials: Option<(PathBuf, PathBuf)>,
}

impl ApiTls {
    /// Certificates of the cluster's own authority, for these names.
    pub fn own(names: Vec<String>) -> Self {
        Self {
            names,
            client_authorities: Vec::new(),
            credentials: None,
        }
    }

    /// The settings in the arguments.
    pub fn of(names: Vec<String>, arguments: TlsArguments) -> Self {
        Self {
            credentials: arguments.tls_cert.zip(arguments.tls_key),
            client_authorities: arguments.client_ca,
            names,
        }
    }

    /// How often the certificate may change; `usual` for the cluster's own.
    pub fn renew_every(&self, usual: Duration) -> Duration {
        if self.credentials.is_some() {
            READ_EVERY
        } else {
            usual
        }
    }

    /// Reads the files.
    pub fn read(&self, world: &World) -> Result<ServerOptions, Failure> {
        let authorities = self.client_authorities.iter();
        let credentials = match &self.credentials {
            None => None,
            Some((certificate, key)) => {
                check_private(key)?;
                let chain = read_pem(world, certificate)?.to_string();
                Some((chain, read_pem(world, key)?))
            }
        };
        Ok(ServerOptions {
            names: self.names.clone(),
            client_authorities: authorities
                .map(|path| Ok(read_pem(world, path)?.to_string()))
                .collect::<Result<_, Failure>>()?,
            credentials,
        })
    }
}

/// The text of a file with certificates, or a key.
pub fn read_pem(world: &World, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::new(format!("cannot use {}: {why}", path.display()));
    let read = || {
        let file = world.disk.open(path, OpenMode::Read)?;
        let length = file.length()?.min(FILE_BYTES_MAX);
        let mut bytes = Zeroizing::new(vec![0; length as usize]);
        file.read_at(&mut bytes, 0)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().map_err(|error| failed(&error))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| failed(&error))?;
    Ok(Zeroizing::new(text.to_owned()))
}
