//! The files of the repository, whichever checkout or archive it is.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Folders that hold what was built or fetched.
const NOT_OURS: [&str; 5] = ["target", "node_modules", "dist", ".git", ".venv"];

/// The folder above all packages.
#[must_use]
pub fn root() -> PathBuf {
    normal(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// A path without `.` and `..`, by its text alone.
#[must_use]
pub fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// All Markdown files, as paths from the root, sorted.
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let mut found = files();
    found.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    found
}

/// All files, as paths from the root, sorted.
#[must_use]
pub fn files() -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !path.is_symlink() {
                if !NOT_OURS.contains(&&*name) {
                    folders.push(path);
                }
            } else {
                found.push(path.strip_prefix(&root).unwrap_or(&path).to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The text of a file, by its path from the root.
///
/// # Errors
/// A sentence that names the file.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|why| format!("{}: {why}", path.display()))
}
