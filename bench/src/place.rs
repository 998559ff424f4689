//! Where a run keeps its data.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The kind of the file system that a folder lies on.
pub(crate) fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| folder.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map_or_else(|| "an unknown file system".into(), |(_, kind)| kind.to_owned())
}

/// The folder for temporary files, or this one where that is no disk.
pub(crate) fn on_a_disk() -> PathBuf {
    let temporary = std::env::temp_dir();
    let here = std::env::current_dir().map(|folder| folder.join("target"));
    match here {
        Ok(here) if matches!(file_system(&temporary).as_str(), "tmpfs" | "ramfs") => here,
        _ => temporary,
    }
}
