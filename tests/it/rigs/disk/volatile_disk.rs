//! The content of the disk: each file and directory twice, as programs see it and as a power cut leaves it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use fuser::Errno;
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{Faults, Names};

pub const PAGE: usize = 4096;
/// The unit that a disk writes atomically; a page may be torn between two of them.
const SECTOR: usize = 512;
pub const ROOT: u64 = 1;

type Page = [u8; PAGE];
type Outcome<T> = Result<T, Errno>;

/// The bytes of a file. A page that was never written is zero.
#[derive(Debug, Clone, Default)]
struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

#[derive(Debug)]
enum Body {
    File { now: Content, safe: Content, unsynced: BTreeSet<u64> },
    Directory { now: BTreeMap<String, u64>, safe: BTreeMap<String, u64> },
}

#[derive(Debug)]
pub struct Inode {
    /// The name at its creation, by which faults select files.
    name: String,
    pub mode: u32,
    pub modified: SystemTime,
    body: Body,
}

#[derive(Debug)]
pub struct VolatileDisk {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    pub faults: Faults,
    pub changes: u64,
    pub powered: bool,
    /// The name of the file at each fault.
    pub met: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "a disk has a clock of its own")]
fn now() -> SystemTime {
    SystemTime::now()
}

impl Inode {
    fn new(name: &str, mode: u32, body: Body) -> Self {
        Self { name: name.to_owned(), mode, modified: now(), body }
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub fn size(&self) -> u64 {
        if let Body::File { now, .. } = &self.body { now.size } else { 0 }
    }

    pub fn pages(&self) -> usize {
        if let Body::File { now, .. } = &self.body { now.pages.len() } else { 0 }
    }

    fn file(&mut self) -> Outcome<(&mut Content, &mut BTreeSet<u64>)> {
        match &mut self.body {
            Body::File { now, unsynced, .. } => Ok((now, unsynced)),
            Body::Directory { .. } => Err(Errno::EISDIR),
        }
    }

    /// Makes the current content the one that survives a power cut.
    fn sync(&mut self) {
        match &mut self.body {
            Body::File { now, safe, unsynced } => {
                safe.size = now.size;
                for page in std::mem::take(unsynced) {
                    match now.pages.get(&page) {
                        Some(bytes) => safe.pages.insert(page, bytes.clone()),
                        None => safe.pages.remove(&page),
                    };
                }
            }
            Body::Directory { now, safe } => safe.clone_from(now),
        }
    }

    /// Goes back to the synced content, plus unsynced changes that the dice let through, reordered and torn.
    fn cut(&mut self, dice: &mut Option<StdRng>) {
        let mut survives = || dice.as_mut().is_some_and(|dice| dice.random());
        match &mut self.body {
            Body::File { now, safe, unsynced } => {
                for page in std::mem::take(unsynced) {
                    let old = safe.pages.get(&page).map_or([0; PAGE], |page| **page);
                    let new = now.pages.get(&page).map_or([0; PAGE], |page| **page);
                    let mut mixed = old;
                    let (all, torn) = (survives(), survives());
                    for at in (0..PAGE).step_by(SECTOR) {
                        if if torn { survives() } else { all } {
                            mixed[at..at + SECTOR].copy_from_slice(&new[at..at + SECTOR]);
                        }
                    }
                    safe.pages.insert(page, Arc::new(mixed));
                }
                if survives() {
                    safe.size = now.size;
                }
                safe.shorten();
                *now = safe.clone();
            }
            Body::Directory { now, safe } => {
                let names: BTreeSet<String> = now.keys().chain(safe.keys()).cloned().collect();
                for name in names.into_iter().filter(|name| now.get(name) != safe.get(name)).collect::<Vec<_>>() {
                    if survives() {
                        match now.get(&name) {
                            Some(number) => safe.insert(name, *number),
                            None => safe.remove(&name),
                        };
                    }
                }
                now.clone_from(safe);
            }
        }
    }
}

impl Content {
    /// Drops everything beyond the end, and returns the pages that changed.
    fn shorten(&mut self) -> BTreeSet<u64> {
        let whole = self.size.div_ceil(PAGE as u64);
        let dropped = self.pages.split_off(&whole);
        let mut changed: BTreeSet<u64> = dropped.into_keys().collect();
        let rest = (self.size % PAGE as u64) as usize;
        if rest > 0
            && let Some(page) = self.pages.get_mut(&(whole - 1))
        {
            Arc::make_mut(page)[rest..].fill(0);
            changed.insert(whole - 1);
        }
        changed
    }
}

impl VolatileDisk {
    pub fn new() -> Self {
        let body = Body::Directory { now: BTreeMap::new(), safe: BTreeMap::new() };
        let root = Inode::new("", 0o755, body);
        Self {
            inodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            faults: Faults::default(),
            changes: 0,
            powered: true,
            met: Vec::new(),
        }
    }

    /// Cuts the power. Unsynced changes are lost, or some of them if there are dice.
    pub fn cut(&mut self, mut dice: Option<StdRng>) {
        for inode in self.inodes.values_mut() {
            inode.cut(&mut dice);
        }
        let mut reached = BTreeSet::new();
        let mut found = vec![ROOT];
        while let Some(number) = found.pop() {
            if reached.insert(number)
                && let Body::Directory { now, .. } = &self.inodes[&number].body
            {
                found.extend(now.values());
            }
        }
        self.inodes.retain(|number, _| reached.contains(number));
        self.faults = Faults::default();
        self.powered = true;
    }

    fn fault(&mut self, number: u64, error: Errno) -> Errno {
        self.met.extend(self.inodes.get(&number).map(|inode| inode.name.clone()));
        error
    }

    pub fn names(&self, chosen: Names) -> Vec<String> {
        let entries = self.inodes.values().filter_map(|inode| match &inode.body {
            Body::Directory { now, .. } => Some(now.keys()),
            Body::File { .. } => None,
        });
        entries.flatten().filter(|name| chosen(name)).cloned().collect()
    }

    /// Fails if the power is off.
    pub fn reach(&mut self) -> Outcome<()> {
        if self.powered { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Counts a change or a sync. The power may fail right before it.
    fn change(&mut self) -> Outcome<()> {
        if let Some(left) = &mut self.faults.cut_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => self.powered = false,
            }
        }
        self.reach()?;
        self.changes += 1;
        Ok(())
    }

    fn writable(&mut self, number: u64) -> Outcome<()> {
        self.change()?;
        if self.faults.read_only { Err(self.fault(number, Errno::EROFS)) } else { Ok(()) }
    }

    /// Refuses to open a file for writing that cannot be written.
    pub fn open(&mut self, writing: bool) -> Outcome<()> {
        self.reach()?;
        if writing && self.faults.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    pub fn inode(&mut self, number: u64) -> Outcome<&mut Inode> {
        self.reach()?;
        self.inodes.get_mut(&number).ok_or(Errno::ENOENT)
    }

    pub fn entries(&mut self, directory: u64) -> Outcome<&mut BTreeMap<String, u64>> {
        match &mut self.inode(directory)?.body {
            Body::Directory { now, .. } => Ok(now),
            Body::File { .. } => Err(Errno::ENOTDIR),
        }
    }

    pub fn find(&mut self, directory: u64, name: &str) -> Outcome<u64> {
        self.entries(directory)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    pub fn make(&mut self, parent: u64, name: &str, mode: u32, directory: bool) -> Outcome<u64> {
        self.writable(parent)?;
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let body = if directory {
            Body::Directory { now: BTreeMap::new(), safe: BTreeMap::new() }
        } else {
            Body::File { now: Content::default(), safe: Content::default(), unsynced: BTreeSet::new() }
        };
        let number = self.next;
        self.next += 1;
        let mode = if self.faults.foreign { 0o777 } else { mode & 0o7777 };
        self.inodes.insert(number, Inode::new(name, mode, body));
        self.entries(parent)?.insert(name.to_owned(), number);
        Ok(number)
    }

    pub fn link(&mut self, number: u64, parent: u64, name: &str) -> Outcome<()> {
        if self.faults.foreign {
            return Err(Errno::EPERM);
        }
        self.writable(parent)?;
        let entries = self.entries(parent)?;
        if entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        entries.insert(name.to_owned(), number);
        Ok(())
    }

    pub fn remove(&mut self, parent: u64, name: &str) -> Outcome<()> {
        self.writable(parent)?;
        let number = self.find(parent, name)?;
        if matches!(&self.inode(number)?.body, Body::Directory { now, .. } if !now.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        self.entries(parent)?.remove(name);
        self.give_back(number);
        Ok(())
    }

    pub fn rename(&mut self, from: (u64, &str), to: (u64, &str)) -> Outcome<()> {
        self.writable(to.0)?;
        let number = self.find(from.0, from.1)?;
        self.entries(from.0)?.remove(from.1);
        if let Some(replaced) = self.entries(to.0)?.insert(to.1.to_owned(), number) {
            self.give_back(replaced);
        }
        Ok(())
    }

    /// The pages of a file are free again when its last name is removed.
    fn give_back(&mut self, number: u64) {
        let named =
            |inode: &Inode| matches!(&inode.body, Body::Directory { now, .. } if now.values().any(|it| *it == number));
        if !self.inodes.values().any(named) {
            let pages = self.inodes[&number].pages() as u64;
            self.faults.free_pages = self.faults.free_pages.map(|free| free + pages);
        }
    }

    pub fn read(&mut self, number: u64, offset: u64, length: usize) -> Outcome<Vec<u8>> {
        let (content, _) = self.inode(number)?.file()?;
        let end = content.size.min(offset.saturating_add(length as u64));
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while at < end {
            let (page, from) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let until = PAGE.min(from + (end - at) as usize);
            match content.pages.get(&page) {
                Some(page) => bytes.extend_from_slice(&page[from..until]),
                None => bytes.resize(bytes.len() + until - from, 0),
            }
            at += (until - from) as u64;
        }
        Ok(bytes)
    }

    /// Writes all or nothing. Writeback of a mapping happens long after the program wrote, and no program learns of a
    /// failure, so only a power cut affects it.
    pub fn write(&mut self, number: u64, offset: u64, bytes: &[u8], mapped: bool) -> Outcome<()> {
        if mapped {
            self.reach()?;
        } else {
            self.writable(number)?;
            if self.faults.fail_write.is_some_and(|chosen| self.is_among(chosen, number)) {
                return Err(self.fault(number, Errno::EIO));
            }
        }
        let end = offset + bytes.len() as u64;
        self.take_room(number, offset, end)?;
        let inode = self.inode(number)?;
        inode.modified = now();
        let (content, unsynced) = inode.file()?;
        let mut at = offset;
        while at < end {
            let (page, from) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let until = PAGE.min(from + (end - at) as usize);
            let target = Arc::make_mut(content.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            let start = (at - offset) as usize;
            target[from..until].copy_from_slice(&bytes[start..start + until - from]);
            unsynced.insert(page);
            at += (until - from) as u64;
        }
        content.size = content.size.max(end);
        Ok(())
    }

    /// Reserves pages that the file does not have yet.
    fn take_room(&mut self, number: u64, start: u64, end: u64) -> Outcome<()> {
        let (content, _) = self.inode(number)?.file()?;
        let pages = start / PAGE as u64..end.div_ceil(PAGE as u64);
        let needed = pages.filter(|page| !content.pages.contains_key(page)).count() as u64;
        if needed > 0 && self.faults.full_for.is_some_and(|chosen| self.is_among(chosen, number)) {
            return Err(self.fault(number, Errno::ENOSPC));
        }
        let Some(free) = self.faults.free_pages else { return Ok(()) };
        self.faults.free_pages = Some(free.checked_sub(needed).ok_or_else(|| self.fault(number, Errno::ENOSPC))?);
        Ok(())
    }

    pub fn resize(&mut self, number: u64, size: u64) -> Outcome<()> {
        self.writable(number)?;
        let inode = self.inode(number)?;
        inode.modified = now();
        let before = inode.pages();
        let (content, unsynced) = inode.file()?;
        content.size = size;
        unsynced.extend(content.shorten());
        let freed = (before - inode.pages()) as u64;
        self.faults.free_pages = self.faults.free_pages.map(|free| free + freed);
        Ok(())
    }

    /// Reserves pages, as `posix_fallocate` does.
    pub fn allocate(&mut self, number: u64, start: u64, length: u64) -> Outcome<()> {
        self.writable(number)?;
        self.take_room(number, start, start + length)?;
        let (content, unsynced) = self.inode(number)?.file()?;
        for page in start / PAGE as u64..(start + length).div_ceil(PAGE as u64) {
            content.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            unsynced.insert(page);
        }
        content.size = content.size.max(start + length);
        Ok(())
    }

    pub fn sync(&mut self, number: u64) -> Outcome<()> {
        self.change()?;
        if self.faults.fail_sync.is_some_and(|chosen| self.is_among(chosen, number)) {
            // As on Linux, pages that could not be written count as clean, and the next sync skips them.
            if let Body::File { unsynced, .. } = &mut self.inode(number)?.body {
                unsynced.clear();
            }
            return Err(self.fault(number, Errno::EIO));
        }
        if !self.faults.lie_about_sync.is_some_and(|chosen| self.is_among(chosen, number)) {
            self.inode(number)?.sync();
        }
        Ok(())
    }

    fn is_among(&self, chosen: Names, number: u64) -> bool {
        self.inodes.get(&number).is_some_and(|inode| chosen(&inode.name))
    }
}
