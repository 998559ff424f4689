//! A certificate for a server of this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, folder, process};

/// A certificate, its key, and the root that signed it, as PEM files.
#[derive(Debug)]
pub struct Certificate {
    /// What clients have to trust.
    pub root: PathBuf,
    /// The server's certificate.
    pub file: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificate {
    /// The names of a server on this machine.
    pub const LOCAL: &str = "DNS:localhost,IP:127.0.0.1";

    /// Makes a root in a folder, and a certificate for these names that it signs. One that signs itself would not do: strict
    /// clients refuse a root as a server's certificate.
    pub fn create(folder: &Path, names: &str) -> Result<Self, Error> {
        let at = |name: &str| folder.join(name);
        let extensions = format!("basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\nsubjectAltName={names}\n");
        fs::write(at("extensions"), extensions).map_err(Error::of("write", &at("extensions")))?;
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        for line in [
            format!("req -x509 {key} -keyout root.key -out root.crt -days 30 -subj /CN=pillarbox-root"),
            format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"),
            "x509 -req -in server.csr -CA root.crt -CAkey root.key -CAcreateserial -days 30 -extfile extensions \
             -out server.crt"
                .to_owned(),
        ] {
            process::output(Command::new("openssl").args(line.split_whitespace()).current_dir(folder), "")?;
        }
        Ok(Self { root: at("root.crt"), file: at("server.crt"), key: at("server.key") })
    }

    /// The same for a server that runs as this user.
    pub(crate) fn create_for(user: &str, folder: &Path) -> Result<Self, Error> {
        let certificate = Self::create(folder, Self::LOCAL)?;
        folder::give_to(user, &certificate.key)?;
        Ok(certificate)
    }
}
