//! The FUSE file system on top of the volatile disk.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::volatile_disk::{PAGE, VolatileDisk};

/// Only the kernel changes the disk, so its caches stay valid.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Blocks of a disk without a limit.
const MANY_PAGES: u64 = 1 << 24;

pub struct Mounted(pub Arc<Mutex<VolatileDisk>>);

impl Mounted {
    fn volatile(&self) -> MutexGuard<'_, VolatileDisk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn attributes(volatile: &mut VolatileDisk, number: u64, request: &Request) -> Result<FileAttr, Errno> {
    let inode = volatile.inode(number)?;
    let kind = if inode.is_directory() { FileType::Directory } else { FileType::RegularFile };
    Ok(FileAttr {
        ino: INodeNo(number),
        size: inode.size(),
        blocks: (inode.pages() * PAGE / 512) as u64,
        atime: inode.modified,
        mtime: inode.modified,
        ctime: inode.modified,
        crtime: inode.modified,
        kind,
        perm: inode.mode as u16,
        nlink: 1,
        uid: request.uid(),
        gid: request.gid(),
        rdev: 0,
        blksize: PAGE as u32,
        flags: 0,
    })
}

fn opened(volatile: &VolatileDisk) -> FopenFlags {
    if volatile.faults.unmapped { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE }
}

fn text(name: &OsStr) -> &str {
    name.to_str().expect("the program makes names of ASCII")
}

/// Answers a call that returns nothing.
fn done(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(outcome: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match outcome {
        Ok(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut volatile = self.volatile();
        let found = volatile.find(parent.0, text(name)).and_then(|number| attributes(&mut volatile, number, request));
        entry(found, reply);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match attributes(&mut self.volatile(), number.0, request) {
            Ok(attributes) => reply.attr(&FOREVER, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _accessed: Option<TimeOrNow>,
        _modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _mode_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut volatile = self.volatile();
        let resized = size.map_or(Ok(()), |size| volatile.resize(number.0, size));
        let outcome = resized.and_then(|()| {
            if let Some(mode) = mode
                && !volatile.faults.foreign
            {
                volatile.inode(number.0)?.mode = mode & 0o7777;
            }
            attributes(&mut volatile, number.0, request)
        });
        match outcome {
            Ok(attributes) => reply.attr(&FOREVER, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mut volatile = self.volatile();
        let made = volatile.make(parent.0, text(name), mode & !umask, true);
        entry(made.and_then(|number| attributes(&mut volatile, number, request)), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut volatile = self.volatile();
        let made = volatile.make(parent.0, text(name), mode & !umask, false);
        match made.and_then(|number| attributes(&mut volatile, number, request)) {
            Ok(made) => reply.created(&FOREVER, &made, Generation(0), FileHandle(0), opened(&volatile)),
            Err(error) => reply.error(error),
        }
    }

    fn link(&self, request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut volatile = self.volatile();
        let linked = volatile.link(number.0, parent.0, text(name));
        entry(linked.and_then(|()| attributes(&mut volatile, number.0, request)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.volatile().remove(parent.0, text(name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.volatile().remove(parent.0, text(name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        from: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        done(self.volatile().rename((from.0, text(name)), (to.0, text(new_name))), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mut volatile = self.volatile();
        match volatile.open(flags.acc_mode() != OpenAccMode::O_RDONLY) {
            Ok(()) => reply.opened(FileHandle(0), opened(&volatile)),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.volatile().read(number.0, offset, length as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.volatile().write(number.0, offset, bytes, flags.contains(WriteFlags::FUSE_WRITE_CACHE)) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.volatile().sync(number.0), reply);
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(self.volatile().sync(number.0), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        start: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        done(self.volatile().allocate(number.0, start, length), reply);
    }

    fn readdir(&self, _: &Request, directory: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut volatile = self.volatile();
        let entries = match volatile.entries(directory.0) {
            Ok(entries) => entries.clone(),
            Err(error) => return reply.error(error),
        };
        let dots = [".", ".."].map(|name| (name.to_owned(), directory.0));
        for (place, (name, number)) in dots.into_iter().chain(entries).enumerate().skip(offset as usize) {
            let is_directory = volatile.inode(number).is_ok_and(|inode| inode.is_directory());
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(number), place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let free = self.volatile().faults.free_pages.unwrap_or(MANY_PAGES);
        reply.statfs(MANY_PAGES, free, free, MANY_PAGES, MANY_PAGES, PAGE as u32, 255, PAGE as u32);
    }
}
