//! Root works on the data of another user as that user, so that it leaves no file that the service cannot write.
//!
//! User ids and capabilities belong to threads: [`become_owner`] must run on the main thread before others exist. Later
//! threads inherit the result. [`with_destination_rights`] changes the calling thread.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// Most symbolic links on the way to the data, as in the kernel.
const MAX_LINKS: usize = 40;
/// The capabilities that [`with_destination_rights`] raises: to enter and write any directory, and to replace an empty
/// one in a directory with the sticky bit.
const DESTINATION: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);

/// A right of root that a command needs in addition to the owner's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootRight {
    /// None.
    Nothing,
    /// To listen on ports below 1024.
    LowPorts,
    /// To read files that only root can read.
    ReadSource,
    /// To create and rename a destination in a directory that only root can write, within [`with_destination_rights`].
    WriteDestination,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: u32,
    gid: u32,
    path: PathBuf,
}

/// If this process runs as root, it becomes the owner of the first of `places` that belongs to another user. Places
/// that don't exist or belong to root are skipped; if none is left, nothing changes. Returns a message for the log if
/// anything changed. `settings` is a file that was read and says what to do.
///
/// # Errors
/// A message for the operator: the places belong to several users, a user leads root to somewhere else by a symbolic
/// link, this process may not change its user, or it would stay root with another user's settings.
pub fn become_owner(places: &[&Path], settings: &Path, keeps: RootRight) -> Result<Option<String>, String> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let mut owners = Vec::new();
    for place in places {
        owners.extend(owner(place)?);
    }
    let Some(owner) = owners.first() else {
        return owner(settings)?.map_or(Ok(None), |Owner { uid, path, .. }| {
            let (path, name) = (path.display(), name(uid));
            Err(format!("{path} belongs to {name}, and the data to root: give both to one user, with chown"))
        });
    };
    if let Some(other) = owners.iter().find(|other| other.uid != owner.uid) {
        return Err(format!(
            "{} belongs to {}, but {} to {}: give both to one user, with chown -R",
            owner.path.display(),
            name(owner.uid),
            other.path.display(),
            name(other.uid)
        ));
    }
    let failed = |error: Errno| {
        if let Some(message) = of_outside(&owner.path, owner.uid) {
            return message;
        }
        let name = name(owner.uid);
        format!(
            "{} belongs to {name}, and root cannot become {name} here ({error}): run this as {name}",
            owner.path.display()
        )
    };
    change(owner, keeps).map_err(failed)?;
    Ok(Some(format!("running as {}, who owns {}", name(owner.uid), owner.path.display())))
}

/// Runs `act` with the rights that [`RootRight::WriteDestination`] kept, if this thread has any. Only what touches the
/// destination belongs in here: with these rights, links in the data could lead anywhere.
pub fn with_destination_rights<T>(act: impl FnOnce() -> T) -> T {
    let before = rustix::thread::capabilities(None).ok();
    let raised = before.filter(|sets| !geteuid().is_root() && sets.permitted.contains(DESTINATION)).filter(|sets| {
        let effective = sets.effective | DESTINATION;
        set_capabilities(None, CapabilitySets { effective, ..*sets }).is_ok()
    });
    let outcome = act();
    if let Some(sets) = raised {
        set_capabilities(None, sets).expect("a thread may lower its capabilities");
    }
    outcome
}

/// Name of the user who started this process, with the originally logged-in user if different, for the audit log. Must
/// be called before root becomes someone else.
pub fn caller() -> String {
    let own = rustix::process::getuid().as_raw();
    let login = fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse().ok());
    match login.filter(|login| *login != own && *login != NOBODY_LOGGED_IN) {
        Some(login) => format!("{} as {}", name(login), name(own)),
        None => name(own),
    }
}

/// The value of `/proc/self/loginuid` before any login.
const NOBODY_LOGGED_IN: u32 = u32::MAX;

/// A user's display name, or its number.
pub fn name(uid: u32) -> String {
    user(uid).map_or_else(|| format!("user {uid}"), |(name, _)| name)
}

/// A message for the operator: this process may not use a file or directory as it must.
pub fn denied(path: &Path) -> String {
    let own = name(geteuid().as_raw());
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // A directory that this user cannot enter hides its content.
    let visible = path.ancestors().find_map(|place| Some((place, fs::metadata(place).ok()?)));
    match visible {
        Some((place, metadata)) if metadata.uid() != geteuid().as_raw() => {
            if let Some(message) = of_outside(place, metadata.uid()) {
                return format!("permission denied: {message}");
            }
            let (of, shown) = (name(metadata.uid()), place.display());
            let belongs = format!("permission denied: {shown} belongs to {of}, not to {own}: run this as {of}");
            // A directory further up may belong to the system, whose owner must not change.
            if place == path || path.parent() == Some(place) {
                format!("{belongs}, or, if {own} is the user of the service, give it to {own} with chown")
            } else {
                belongs
            }
        }
        Some((place, _)) => format!("permission denied: the mode of {} keeps {own} out", place.display()),
        None => format!("permission denied: {own} cannot look at {}", path.display()),
    }
}

/// A message about a place whose owner, a user on the host, isn't mapped in this container's user namespace: who should
/// own it there. `None` outside such namespaces, and for mapped users.
fn of_outside(place: &Path, uid: u32) -> Option<String> {
    let ranges = fs::read_to_string("/proc/self/uid_map").ok()?;
    let is_whole = ranges.split_whitespace().eq(["0", "0", "4294967295"]);
    let own = geteuid().as_raw();
    let outside = outside(&ranges, own).filter(|_| uid == UNKNOWN && !is_whole)?;
    let (place, own) = (place.display(), name(own));
    Some(format!(
        "{place} belongs to a user that this container does not have: on the host, give it to user {outside}, who is {own} \
         in here, with chown"
    ))
}

/// The id that a user namespace shows for all unmapped users. It is also the id of `nobody`.
const UNKNOWN: u32 = 65_534;

/// The user outside the namespace with these ranges that is mapped to `uid` inside.
fn outside(ranges: &str, uid: u32) -> Option<u32> {
    ranges.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inner, outer, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let offset = uid.checked_sub(inner).filter(|offset| *offset < count)?;
        outer.checked_add(offset)
    })
}

/// A user's name and group in /etc/passwd. Users from elsewhere, such as `DynamicUser=`, aren't there.
fn user(uid: u32) -> Option<(String, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id, group) = (fields.next()?, fields.nth(1)?, fields.next()?);
        (id.parse() == Ok(uid)).then_some((name.to_owned(), group.parse().ok()?))
    })
}

/// The user that owns a place; `None` if that is root, or the place doesn't exist.
fn owner(place: &Path) -> Result<Option<Owner>, String> {
    let (found, links) = match follow(place) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        found => found.map_err(|error| format!("cannot look at {}: {error}", place.display()))?,
    };
    let stranger = |(_, uid): &&(PathBuf, u32)| *uid != 0 && *uid != found.uid();
    if let Some((link, uid)) = links.iter().find(stranger) {
        return Err(format!(
            "the symbolic link {} of {} leads to data of {}: give the path of the data itself",
            link.display(),
            name(*uid),
            name(found.uid())
        ));
    }
    let path = place.to_owned();
    // Root's group isn't suitable for others.
    let group = || if found.gid() == 0 { found.uid() } else { found.gid() };
    let gid = user(found.uid()).map_or_else(group, |(_, gid)| gid);
    Ok((found.uid() != 0).then_some(Owner { uid: found.uid(), gid, path }))
}

/// The file or directory that a path points to, and the symbolic links on the way with their owners.
fn follow(path: &Path) -> io::Result<(Metadata, Vec<(PathBuf, u32)>)> {
    let mut at = PathBuf::from("/");
    let mut links = Vec::new();
    let mut ahead = steps(&std::path::absolute(path)?);
    while let Some(step) = ahead.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&step);
        let metadata = fs::symlink_metadata(&next)?;
        if !metadata.is_symlink() {
            at = next;
            continue;
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        ahead.extend(steps(&target));
        links.push((next, metadata.uid()));
        if links.len() > MAX_LINKS {
            return Err(io::Error::other("too many symbolic links"));
        }
    }
    Ok((fs::symlink_metadata(&at)?, links))
}

/// The names in a path, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let named = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(named).collect()
}

fn change(owner: &Owner, keeps: RootRight) -> rustix::io::Result<()> {
    // The owner may be unable to follow the links.
    let real = fs::canonicalize(&owner.path).map_err(|_| Errno::ACCESS)?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    set_keep_capabilities(true)?;
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_keep_capabilities(false)?;
    let (mut effective, mut permitted) = match keeps {
        RootRight::Nothing => (CapabilitySet::empty(), CapabilitySet::empty()),
        RootRight::LowPorts => (CapabilitySet::NET_BIND_SERVICE, CapabilitySet::empty()),
        RootRight::ReadSource => (CapabilitySet::DAC_READ_SEARCH, CapabilitySet::empty()),
        RootRight::WriteDestination => (CapabilitySet::empty(), DESTINATION),
    };
    // Root may lack some of them, for example in a container.
    let had = rustix::thread::capabilities(None)?.permitted;
    let have = |effective, permitted: CapabilitySet| {
        let (effective, permitted) = (had & effective, had & (permitted | effective));
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
    };
    let search = CapabilitySet::DAC_READ_SEARCH;
    have(effective, permitted | search)?;
    // The data of a unit with `DynamicUser=` is in a directory that only root can enter.
    if fs::metadata(&real).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let closed = real.ancestors().skip(1).find_map(|directory| fs::symlink_metadata(directory).ok());
        if closed.is_none_or(|directory| directory.uid() != 0) {
            // Users who restrict access to one of their own directories must not thereby gain the right to read
            // everything.
            have(effective, permitted)?;
            return Err(Errno::ACCESS);
        }
        effective |= search;
        permitted |= search;
    }
    have(effective, permitted)
}
