//! [`RealFolder`]: a folder of this machine to which others may write.
//!
//! A storage unit is not trusted, so no name in it may lead out of it: no link below the folder is
//! followed, and only regular files are opened. Otherwise a unit could use a link to let Scree
//! overwrite any file of this machine, or a pipe to block the thread that opens it.
//!
//! Each call looks the folder itself up again, and follows links to it, so that a folder that was
//! unmounted or moved away is noticed at once. Calls on open files cost nothing more; opening one
//! costs two short calls and an `fstat`.
//!
//! Hard links cannot be distinguished from files. The kernel does not let users create them to
//! files of others (`fs.protected_hardlinks`).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::disk::RealFile;
use super::limits;
use super::open_below::{ON_THE_WAY, open_below, retry};
use crate::disk::within_folder;
use crate::{DirectoryEntry, Disk, File, OpenMode, Space, SubfolderDisk, WrongKind};

/// The files below one folder.
#[derive(Debug, Clone)]
pub(super) struct RealFolder {
    root: PathBuf,
}

fn description(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something unknown",
    }
}

impl RealFolder {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The folder as it is now.
    fn root(&self) -> io::Result<OwnedFd> {
        let flags = ON_THE_WAY | OFlags::CLOEXEC;
        Ok(retry(|| {
            rustix::fs::open(&self.root, flags, Mode::empty())
        })?)
    }

    fn wrong(&self, path: &Path, found: FileType, expected: FileType) -> io::Error {
        WrongKind {
            path: self.root.join(path),
            found: description(found),
            expected: description(expected),
        }
        .into()
    }

    /// The meaning of an error at `path`: the first component that is a file of an unexpected
    /// kind, or else the error itself.
    fn explain(&self, root: &OwnedFd, path: &Path, expected: FileType, error: Errno) -> io::Error {
        let may_be_the_kind = [
            Errno::LOOP,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::NXIO,
            Errno::EXIST,
        ];
        if !may_be_the_kind.contains(&error) {
            return error.into();
        }
        let mut at = PathBuf::new();
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            at.push(part);
            let Ok(stat) = rustix::fs::statat(root, &at, AtFlags::SYMLINK_NOFOLLOW) else {
                break;
            };
            let found = FileType::from_raw_mode(stat.st_mode);
            let expected = match parts.peek() {
                Some(_) => FileType::Directory,
                None => expected,
            };
            if found != expected {
                return self.wrong(&at, found, expected);
            }
        }
        error.into()
    }

    /// Opens the folder at `path`.
    fn folder(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let root = self.root()?;
        let path = within_folder(path)?;
        open_below(root.as_fd(), path, flags | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| self.explain(&root, path, FileType::Directory, error))
    }

    /// The folder that holds `path`, and the last component of `path`.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok((self.folder(parent, OFlags::PATH)?, name))
    }
}

impl Disk for RealFolder {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        // Opening a pipe or a device must not wait, and a device must not become the terminal.
        let flags = OFlags::NONBLOCK
            | OFlags::NOCTTY
            | match mode {
                OpenMode::Read => OFlags::RDONLY,
                OpenMode::Write => OFlags::RDWR,
                OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            };
        let (mode, is_new) = match mode {
            OpenMode::CreateNew => (Mode::RUSR | Mode::WUSR, true),
            OpenMode::Read | OpenMode::Write => (Mode::empty(), false),
        };
        let root = self.root()?;
        let path = within_folder(path)?;
        let opened = open_below(root.as_fd(), path, flags, mode);
        let opened = opened.map_err(|error| match error {
            // The name is taken, by a file of any kind.
            Errno::EXIST => error.into(),
            error => self.explain(&root, path, FileType::RegularFile, error),
        })?;
        let file = fs::File::from(opened);
        if !is_new {
            let stat = rustix::fs::fstat(&file)?;
            let found = FileType::from_raw_mode(stat.st_mode);
            if found != FileType::RegularFile {
                return Err(self.wrong(path, found, FileType::RegularFile));
            }
        }
        Ok(Arc::new(RealFile::new(file)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let opened = self.folder(folder, OFlags::RDONLY)?;
        let mut entries = Vec::new();
        let mut names = Dir::new(opened)?;
        while let Some(entry) = names.read() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the kind.
                FileType::Unknown => {
                    let at = AtFlags::SYMLINK_NOFOLLOW;
                    let stat = rustix::fs::statat(names.fd()?, name, at)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                known => known,
            };
            entries.push(DirectoryEntry {
                name: name.to_owned(),
                is_directory: kind == FileType::Directory,
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(folder)?;
        match retry(|| rustix::fs::mkdirat(&parent, name, Mode::RWXU)) {
            Err(Errno::EXIST) => self.folder(folder, OFlags::PATH).map(|_| ()),
            other => Ok(other?),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_folder, from) = self.parent(from)?;
        let (to_folder, to) = self.parent(to)?;
        Ok(retry(|| {
            rustix::fs::renameat(&from_folder, from, &to_folder, to)
        })?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(retry(|| {
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())
        })?)
    }

    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        let opened = self.folder(folder, OFlags::RDONLY)?;
        Ok(retry(|| rustix::fs::fsync(&opened))?)
    }

    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(SubfolderDisk::new(Arc::new(self.clone()), folder))
    }

    fn open_files_max(&self) -> Option<u64> {
        limits::open_files_max()
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        let stat = rustix::fs::fstatvfs(self.folder(folder, OFlags::PATH)?)?;
        Ok(Space {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::super::open_below::{find_unfollowed, open_step_by_step};
    use super::*;
    use crate::real::RealDisk;

    fn entry(name: &str, is_directory: bool) -> DirectoryEntry {
        DirectoryEntry {
            name: name.to_owned(),
            is_directory,
        }
    }

    /// A folder and the disk of its files, with a secret file next to the folder.
    struct UntrustedFolder {
        folder: tempfile::TempDir,
        disk: Arc<dyn Disk>,
    }

    impl UntrustedFolder {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let outside = RealDisk.open(&folder.path().join("secret"), OpenMode::CreateNew);
            outside.expect("new").write_at(b"key", 0).expect("written");
            RealDisk
                .create_directory(&folder.path().join("unit"))
                .expect("made");
            let disk = RealDisk.within(&folder.path().join("unit"));
            Self { folder, disk }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.folder.path().join("unit").join(name)
        }

        fn names_beside(&self) -> Vec<DirectoryEntry> {
            RealDisk.list(self.folder.path()).expect("listed")
        }
    }

    fn assert_wrong<T>(what: &str, result: io::Result<T>, at: &Path, found: &str) {
        let error = result.map(|_| ()).expect_err(what);
        let wrong = WrongKind::of(&error).unwrap_or_else(|| panic!("{what}: {error:?}"));
        assert_eq!((&*wrong.path, wrong.found), (at, found), "{what}");
    }

    #[test]
    fn a_folder_has_all_operations_of_a_disk() {
        let scene = UntrustedFolder::new();
        let disk = &scene.disk;
        disk.create_directory(Path::new("a")).expect("made");
        disk.create_directory(Path::new("a")).expect("there");
        let path = Path::new("a/file");
        let file = disk.open(path, OpenMode::CreateNew).expect("new");
        file.write_at(b"text", 0).expect("written");
        let mut bulk = crate::PageBuffer::default();
        bulk.resize(64 << 10);
        file.write_bulk(&bulk, 4096).expect("past the page cache");
        let again = disk.open(path, OpenMode::CreateNew).expect_err("taken");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        disk.rename(path, Path::new("other")).expect("renamed");
        disk.sync_directory(Path::new("")).expect("synced");
        disk.sync_directory(Path::new("a")).expect("synced");
        let names = disk.list(Path::new("")).expect("listed");
        assert_eq!(names, [entry("a", true), entry("other", false)]);
        let mut text = [0; 4];
        let file = disk.open(Path::new("other"), OpenMode::Write);
        file.expect("there").read_at(&mut text, 0).expect("read");
        assert_eq!(&text, b"text");
        disk.remove(Path::new("other")).expect("removed");
        let gone = disk.open(Path::new("other"), OpenMode::Read);
        assert_eq!(gone.expect_err("gone").kind(), io::ErrorKind::NotFound);
        assert!(disk.space(Path::new("")).expect("known").total_bytes > 0);
        let below = disk.within(Path::new("a"));
        below.open(path, OpenMode::CreateNew).expect_err("no a/a");
        below
            .open(Path::new("b"), OpenMode::CreateNew)
            .expect("new");
        assert!(disk.open(Path::new("a/b"), OpenMode::Read).is_ok());
    }

    #[test]
    fn a_folder_that_is_moved_is_noticed_at_once() {
        let scene = UntrustedFolder::new();
        let (path, away) = (scene.at(""), scene.folder.path().join("away"));
        RealDisk.rename(&path, &away).expect("moved");
        let missed = scene.disk.list(Path::new("")).expect_err("gone");
        assert_eq!(missed.kind(), io::ErrorKind::NotFound);
        // The operator's own link is followed.
        symlink(&away, scene.folder.path().join("unit")).expect("linked");
        assert_eq!(scene.disk.list(Path::new("")).expect("back"), []);
    }

    #[test]
    fn no_link_is_followed_and_no_path_leads_out_of_the_folder() {
        let scene = UntrustedFolder::new();
        let before = scene.names_beside();
        symlink("../secret", scene.at("file")).expect("linked");
        symlink("..", scene.at("folder")).expect("linked");
        symlink("/", scene.at("root")).expect("linked");
        let link = "a symbolic link";
        for mode in [OpenMode::Read, OpenMode::Write] {
            for name in ["file", "folder/secret", "root/etc/passwd"] {
                let first = name.split('/').next().expect("a name");
                let opened = scene.disk.open(Path::new(name), mode);
                assert_wrong(name, opened, &scene.at(first), link);
            }
        }
        let taken = scene.disk.open(Path::new("file"), OpenMode::CreateNew);
        let taken = taken.expect_err("taken").kind();
        assert_eq!(taken, io::ErrorKind::AlreadyExists);
        let (folder, new) = (scene.at("folder"), Path::new("folder/new"));
        let disk = &scene.disk;
        assert_wrong("new", disk.open(new, OpenMode::CreateNew), &folder, link);
        assert_wrong("make", disk.create_directory(new), &folder, link);
        let itself = Path::new("folder");
        assert_wrong("make", disk.create_directory(itself), &folder, link);
        assert_wrong("list", disk.list(itself), &folder, link);
        assert_wrong("sync", disk.sync_directory(itself), &folder, link);
        assert_wrong("space", disk.space(itself), &folder, link);
        let secret = Path::new("folder/secret");
        assert_wrong("remove", disk.remove(secret), &folder, link);
        let inside = Path::new("inside");
        assert_wrong("rename", disk.rename(secret, inside), &folder, link);
        disk.open(inside, OpenMode::CreateNew).expect("new");
        assert_wrong("rename", disk.rename(inside, new), &folder, link);
        for path in ["../secret", "/etc/passwd", "inside/../../secret"] {
            let path = Path::new(path);
            disk.open(path, OpenMode::Read).expect_err("outside");
            disk.list(path).expect_err("outside");
            disk.remove(path).expect_err("outside");
            disk.create_directory(path).expect_err("outside");
        }
        disk.remove(Path::new("file")).expect("the link itself");
        assert_eq!(scene.names_beside(), before);
        let entries = disk.list(Path::new("")).expect("listed");
        assert!(entries.iter().all(|entry| !entry.is_directory));
    }

    #[test]
    fn only_regular_files_are_opened_and_only_folders_are_entered() {
        let scene = UntrustedFolder::new();
        let made = Command::new("mkfifo").arg(scene.at("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        let _socket = std::os::unix::net::UnixListener::bind(scene.at("socket")).expect("bound");
        let disk = &scene.disk;
        disk.create_directory(Path::new("folder")).expect("made");
        symlink("/dev/null", scene.at("device")).expect("linked");
        disk.open(Path::new("file"), OpenMode::CreateNew)
            .expect("new");
        for (name, found) in [
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("folder", "a folder"),
            ("device", "a symbolic link"),
        ] {
            for mode in [OpenMode::Read, OpenMode::Write] {
                let opened = disk.open(Path::new(name), mode);
                assert_wrong(name, opened, &scene.at(name), found);
            }
        }
        let inside = Path::new("file/inside");
        let opened = disk.open(inside, OpenMode::Read);
        assert_wrong("inside a file", opened, &scene.at("file"), "a file");
        let listed = disk.list(Path::new("file"));
        assert_wrong("a file listed", listed, &scene.at("file"), "a file");
        let made = disk.create_directory(Path::new("pipe"));
        assert_wrong("made in place", made, &scene.at("pipe"), "a pipe");
    }

    #[test]
    fn links_are_refused_without_openat2_as_well() {
        let scene = UntrustedFolder::new();
        symlink("../secret", scene.at("file")).expect("linked");
        symlink("..", scene.at("folder")).expect("linked");
        let inside = scene.disk.open(Path::new("inside"), OpenMode::CreateNew);
        inside.expect("new");
        let root = RealFolder::new(&scene.at("")).root().expect("there");
        let open = |path: &str, flags| {
            open_step_by_step(root.as_fd(), Path::new(path), flags, Mode::empty())
        };
        open("inside", OFlags::RDWR).expect("a file");
        open(".", OFlags::RDONLY | OFlags::DIRECTORY).expect("the folder");
        open("file", OFlags::RDWR).expect_err("a link");
        open("folder/secret", OFlags::RDWR).expect_err("through a link");
        open("folder", ON_THE_WAY).expect_err("a link");
    }

    #[test]
    fn a_file_behind_a_link_is_not_found_unfollowed() {
        let scene = UntrustedFolder::new();
        let real = scene.at("").canonicalize().expect("there");
        fs::create_dir(real.join("folder")).expect("made");
        fs::write(real.join("folder/file"), "x").expect("written");
        symlink("folder", real.join("way")).expect("linked");
        symlink("folder/file", real.join("last")).expect("linked");
        let find = |path: &str| find_unfollowed(&real.join(path));
        find("folder/file").expect("there");
        for link in ["way/file", "last"] {
            let error = find(link).expect_err("a link");
            assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        }
        let error = find("none").expect_err("nothing there");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        find_unfollowed(Path::new("relative")).expect_err("no whole path");
    }
}
