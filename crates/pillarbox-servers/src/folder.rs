//! Folders: one for each server, which goes with it, and one that keeps what takes long to get.

use std::{
    env,
    fs::{self, File, Permissions},
    hash::{BuildHasher, RandomState},
    io::Write,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, process};

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// Everyone may look into it: the server runs as another user when we are root.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let path = env::temp_dir().join(format!("pillarbox-{name}-{}", word()));
        fs::create_dir(&path).map_err(Error::of("create", &path))?;
        let folder = Self(path);
        open_to_all(folder.path())?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What can't be removed is left to whoever cleans the folder of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The folder in the cache that has this name. Whoever comes first fills it; others wait for him. Half a folder
/// is never seen: it gets its name when it is full.
pub(crate) fn cached(name: &str, fill: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    let cache = cache()?;
    let path = cache.join(name);
    if path.is_dir() {
        return Ok(path);
    }
    let _lock = lock(name)?;
    if path.is_dir() {
        return Ok(path);
    }
    // Those of processes that were killed; programs that they left behind may still be writing.
    let old = format!("{name}.draft-");
    for entry in fs::read_dir(&cache).map_err(Error::of("list", &cache))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&old) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let draft = cache.join(format!("{old}{}", word()));
    fs::create_dir(&draft).map_err(Error::of("create", &draft))?;
    open_to_all(&draft)?;
    fill(&draft)?;
    fs::rename(&draft, &path).map_err(Error::of("rename", &draft))?;
    Ok(path)
}

/// Holds a lock of this name against other processes, until the file is dropped.
pub(crate) fn lock(name: &str) -> Result<File, Error> {
    let path = cache()?.join(format!("{name}.lock"));
    let file = File::create(&path).map_err(Error::of("create", &path))?;
    file.lock().map_err(Error::of("lock", &path))?;
    Ok(file)
}

/// A copy of a folder, with owners and permissions.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    process::output(Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to), "").map(drop)
}

/// A folder for the user as whom a server runs.
pub(crate) fn create_for(user: &str, path: &Path) -> Result<(), Error> {
    fs::create_dir(path).map_err(Error::of("create", path))?;
    give_to(user, path)
}

/// A file that only the user as whom a server runs may read.
pub(crate) fn write_for(user: &str, path: &Path, text: &str) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::of("create", path))?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(Error::of("close to others", path))?;
    file.write_all(text.as_bytes()).map_err(Error::of("write", path))?;
    give_to(user, path)
}

/// Makes a file or a folder the user's. Without root's rights it is ours, and so is the server.
pub(crate) fn give_to(user: &str, path: &Path) -> Result<(), Error> {
    if !process::is_root() {
        return Ok(());
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.skip(1).take(2).map(|id| id.parse().ok()).collect::<Vec<_>>())
    });
    match ids.as_deref() {
        Some([uid, gid]) => chown(path, *uid, *gid).map_err(Error::of("change the owner", path)),
        _ => Err(Error::new(format!("there is no user `{user}` for the server to run as"))),
    }
}

/// A word that nobody else has, fit for a name.
pub(crate) fn word() -> String {
    format!("{:012x}", random() & 0xffff_ffff_ffff)
}

/// A random number. Only names and ports depend on it.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

fn cache() -> Result<PathBuf, Error> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let user = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    // Root's home is closed to the user as whom a server runs.
    let path = match user {
        Some(path) if !process::is_root() || is_open(&path) => path.join("pillarbox/servers"),
        _ => PathBuf::from("/var/cache/pillarbox/servers"),
    };
    fs::create_dir_all(&path).map_err(Error::of("create", &path))?;
    Ok(path)
}

/// Whether everyone may go through every part of the path that exists.
fn is_open(path: &Path) -> bool {
    path.ancestors()
        .filter_map(|part| fs::metadata(part).ok())
        .all(|metadata| metadata.is_dir() && metadata.permissions().mode() & 0o001 != 0)
}

fn open_to_all(path: &Path) -> Result<(), Error> {
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(Error::of("open to others", path))
}
