//! A certificate for a server of this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, folder, process};

/// A certificate, its key, and the root that signed it.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) root: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Makes a root and a certificate that it signs. One that signs itself would not do: strict clients refuse a
    /// root as a server's certificate.
    pub(crate) fn create(folder: &Path, user: &str) -> Result<Self, Error> {
        let at = |name: &str| folder.join(name);
        let extensions = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n\
                          subjectAltName=DNS:localhost,IP:127.0.0.1\n";
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
        folder::give_to(user, &at("server.key"))?;
        Ok(Self { root: at("root.crt"), file: at("server.crt"), key: at("server.key") })
    }
}
