//! Downloads a model from a hub. It gets its name when all files are there and verified; until then they are collected
//! in a folder beside it, so that an interrupted pull can continue.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};

use super::busy::leads_to;
use super::catalogue::{self, CatalogueModel};
use super::download::{self, ProgressSink, fetch, part_of};
use super::hub::{Hub, HubError, is_git_sha1};
use super::manifest::{Licence, MANIFEST, MAX_JSON_BYTES, Manifest, ModelFile, Source, read_json, write};
use super::selection::{RemoteFile, select};
use super::{INDEX, Installed, directory, is_name, staging};
use tintype_config::HUGGING_FACE;
use tintype_diffusion::pipelines::KNOWN;
use tintype_system::clock::Clock;
use tintype_system::data_dir;
use tintype_system::disk::Disk;

/// Files downloaded at a time.
const DOWNLOADS: usize = 4;
/// Bytes of free space to leave.
const MARGIN: u64 = 64 << 20;
/// The file with the plan, in an unfinished pull's folder.
const PLAN: &str = "pull.json";
/// Attempts to get the list of files.
const LIST_TRIES: u32 = 5;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// Its files have a SHA-256 only if the hub knows it.
    manifest: Manifest,
    /// Git's SHA-1, for the other files.
    git_sha1: BTreeMap<String, String>,
}

/// A pull that is ready to begin, locked against others of the same model.
#[derive(Debug)]
pub struct Pull {
    /// Its catalogue entry.
    pub entry: Option<&'static CatalogueModel>,
    /// The licence, and whether it was accepted in an earlier run of this pull.
    pub licence: Licence,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes left by an earlier run.
    pub done: u64,
    plan: Plan,
    source: Source,
    staging: PathBuf,
    target: PathBuf,
    _lock: File,
}

/// The state of a model to be pulled.
#[derive(Debug)]
pub enum Begun {
    /// It is installed already.
    Installed(Box<Installed>),
    /// It must be downloaded.
    Ready(Box<Pull>),
}

impl Plan {
    fn files(&self) -> Vec<RemoteFile> {
        let remote = |ModelFile { path, bytes, sha256 }: &ModelFile| RemoteFile {
            path: path.clone(),
            bytes: *bytes,
            sha256: sha256.clone(),
            git_sha1: self.git_sha1.get(path).cloned(),
        };
        self.manifest.files.iter().map(remote).collect()
    }

    /// Reads an unfinished pull's plan; `None` if there is none that can be continued.
    fn read(staging: &Path, name: &str) -> Option<(Self, Source)> {
        let plan: Self = read_json(staging, PLAN).ok()?;
        plan.manifest.check(name).ok()?;
        let source = plan.manifest.source.clone()?;
        let whole = plan.files().iter().all(|file| file.sha256.is_some() || file.git_sha1.is_some());
        (whole && is_git_sha1(&source.commit)).then_some((plan, source))
    }
}

/// The name to install a repository under.
///
/// # Errors
/// A message for the operator: it is neither in the catalogue nor a repository.
fn name_of(model: &str) -> Result<(String, String, Option<&'static CatalogueModel>), String> {
    if let Some(entry) = catalogue::find(model) {
        return Ok((entry.name.clone(), entry.repository.clone(), Some(entry)));
    }
    let name = repository_name(model).map(str::to_ascii_lowercase).filter(|name| is_name(name));
    let name = name.ok_or_else(|| {
        if fs::symlink_metadata(model).is_ok() {
            return format!("{model} is on this machine already: `tintype model add {model}` installs it");
        }
        let names: Vec<_> = catalogue::models().iter().map(|entry| entry.name.as_str()).collect();
        format!("there is no model {model:?}: choose {}, or give OWNER/NAME of a repository", names.join(", "))
    })?;
    Ok((name, model.to_owned(), None))
}

/// The second part of `OWNER/NAME`; `None` for other formats.
pub(super) fn repository_name(text: &str) -> Option<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let part = |part: &str| !part.is_empty() && part.len() <= 96 && !part.starts_with('.') && part.bytes().all(plain);
    text.split_once('/').filter(|(owner, name)| part(owner) && part(name)).map(|(_, name)| name)
}

/// The path of the page of a repository: what follows one of the `endpoints` in its address.
pub(super) fn page<'a>(address: &'a str, endpoints: &[&str]) -> Option<&'a str> {
    let below = |endpoint: &str| address.strip_prefix(endpoint.trim_end_matches('/'))?.strip_prefix('/');
    let path = endpoints.iter().find_map(|endpoint| below(endpoint))?;
    Some(path.trim_matches('/').trim_end_matches("/tree/main"))
}

/// Prepares a pull of `model` (a catalogue name, `OWNER/NAME`, or a repository's address) at `revision`, or at the
/// catalogue's. It reports to `sink` when it asks the hub.
pub async fn begin(
    hub: &Hub,
    data_dir: &Path,
    model: &str,
    revision: Option<&str>,
    sink: &dyn ProgressSink,
) -> Result<Begun, String> {
    let (name, repository, entry) = name_of(page(model, &[hub.endpoint(), HUGGING_FACE]).unwrap_or(model))?;
    let target = directory(data_dir).join(&name);
    if fs::symlink_metadata(&target).is_ok() {
        let installed = super::find(data_dir, &name);
        return match installed {
            Ok(installed) if is_at(&installed, &repository, revision) => Ok(Begun::Installed(Box::new(installed))),
            Ok(_) => {
                Err(format!("another model has the name {name}: remove it first with `tintype model remove {name}`"))
            }
            Err(reason) => Err(format!("{reason}; remove the model first with `tintype model remove {name}`")),
        };
    }
    let staging = staging(data_dir, &name);
    let lock = lock(&staging, &name)?;
    let earlier = Plan::read(&staging, &name).filter(|(_, source)| source.repository == repository);
    let (plan, source) = match earlier {
        Some((plan, source)) if revision.is_none_or(|revision| revision == source.commit) => (plan, source),
        earlier => {
            let revision = revision.or(entry.map(|entry| entry.commit.as_str())).unwrap_or("main");
            sink.report(&format!("connecting to {}", hub.endpoint()));
            let drawn = draw(hub, &name, &repository, revision, entry).await?;
            match earlier.filter(|(plan, source)| source.commit == drawn.1.commit && plan.files() == drawn.0.files()) {
                // A branch that still points to the commit at which the pull began.
                Some(earlier) => earlier,
                None => {
                    clear(&staging)?;
                    write(&staging, PLAN, &serde_json::to_string_pretty(&drawn.0).expect("a plan is JSON"))?;
                    drawn
                }
            }
        }
    };
    if entry.is_none() {
        check_pipeline(hub, &plan, &source, &staging).await?;
    }
    let bytes = plan.manifest.bytes();
    let done = plan.manifest.files.iter().fold(0_u64, |sum, file| sum.saturating_add(arrived(&staging, file)));
    let licence = plan.manifest.licence.clone().ok_or("the plan of the pull names no licence")?;
    let pull = Pull { entry, licence, bytes, done, plan, source, staging, target, _lock: lock };
    Ok(Begun::Ready(Box::new(pull)))
}

/// Whether an installed model is the requested one.
fn is_at(installed: &Installed, repository: &str, revision: Option<&str>) -> bool {
    let source = installed.manifest.as_ref().and_then(|manifest| manifest.source.as_ref());
    source.is_some_and(|source| {
        source.repository == repository
            && revision.is_none_or(|revision| revision == source.commit || revision == "main")
    })
}

async fn draw(
    hub: &Hub,
    name: &str,
    repository: &str,
    revision: &str,
    entry: Option<&CatalogueModel>,
) -> Result<(Plan, Source), String> {
    let (mut tries, mut pause) = (0, hub.limits.pause);
    let listed = loop {
        match hub.list(repository, revision).await {
            Ok(listed) => break listed,
            Err(HubError::Final(reason)) => return Err(reason),
            Err(HubError::Passing(reason, after)) => {
                tries += 1;
                if tries >= LIST_TRIES {
                    return Err(format!(
                        "{reason} ({LIST_TRIES} times): check the network, set HTTPS_PROXY if this machine needs a \
                         proxy, name a mirror with --endpoint, or add a folder that you copied here with `tintype model \
                         add FOLDER`"
                    ));
                }
                tokio::time::sleep(after.unwrap_or(pause)).await;
                pause *= 2;
            }
            Err(HubError::Misfit(reason)) => return Err(reason),
        }
    };
    let (parts, every) = entry.map_or_else(|| (catalogue::all_parts(), false), |entry| (entry.parts.clone(), true));
    let files = select(&listed.files, &parts, every).map_err(|reason| format!("{repository}: {reason}"))?;
    let page = hub.page(repository);
    let licence = match entry.map(|entry| &entry.licence) {
        Some(licence) => Licence {
            name: licence.name.clone(),
            url: licence.url.clone(),
            commercial: Some(licence.commercial),
            accepted_at: String::new(),
        },
        None => {
            let name = listed.licence.unwrap_or_else(|| "unknown".into());
            Licence { name, url: page, commercial: None, accepted_at: String::new() }
        }
    };
    let git_sha1 = files.iter().filter_map(|file| Some((file.path.clone(), file.git_sha1.clone()?))).collect();
    let files = files.into_iter().map(|RemoteFile { path, bytes, sha256, .. }| ModelFile { path, bytes, sha256 });
    // The class is read once the index is there.
    let mut manifest = Manifest::new(name, entry.map_or("", |entry| &entry.pipeline), files.collect());
    let source =
        Source { endpoint: hub.endpoint().to_owned(), repository: repository.to_owned(), commit: listed.commit };
    manifest.source = Some(source.clone());
    manifest.licence = Some(licence);
    manifest.check(name).map_err(|reason| format!("the list of files of {repository} {reason}"))?;
    Ok((Plan { manifest, git_sha1 }, source))
}

/// Reports nothing.
pub(super) struct NoProgress;

impl ProgressSink for NoProgress {
    fn begin(&self, _: u64, _: u64) {}
    fn advance(&self, _: i64) {}
    fn report(&self, _: &str) {}
}

/// Downloads the index of a model outside the catalogue before its gigabytes, because this release may not support its
/// pipeline.
async fn check_pipeline(hub: &Hub, plan: &Plan, source: &Source, staging: &Path) -> Result<(), String> {
    let files = plan.files();
    let Some(index) = files.iter().find(|file| file.path == INDEX) else { return Ok(()) };
    let repository = &source.repository;
    let known = |class: String| match catalogue::is_usable(&class) {
        true => Ok(()),
        false => Err(format!(
            "{INDEX} names {class}, and this release renders with {} only, so nothing is fetched",
            KNOWN.join(", ")
        )),
    };
    // The operator hasn't agreed to a download yet.
    let found = if index.bytes > MAX_JSON_BYTES {
        Err(format!("{INDEX} is larger than 1 MiB"))
    } else {
        fetch(hub, &hub.url_of(source, INDEX), &hub.page(repository), index, staging, &NoProgress).await?;
        read_json::<Index>(staging, INDEX).and_then(Index::pipeline_class).and_then(known)
    };
    if let Err(reason) = found {
        clear(staging)?;
        fs::remove_dir(staging).map_err(|error| format!("cannot remove {}: {error}", staging.display()))?;
        return Err(format!("{repository}: {reason}"));
    }
    Ok(())
}

/// Creates and locks an unfinished pull's folder.
pub(super) fn lock(staging: &Path, name: &str) -> Result<File, String> {
    if fs::symlink_metadata(staging).is_ok_and(|found| !found.is_dir()) {
        return Err(format!("{} is a symbolic link or a file: remove it", staging.display()));
    }
    data_dir::create(staging)?;
    let unusable = |error: io::Error| format!("cannot use {}: {error}", staging.display());
    let busy = || format!("another command is fetching {name}: wait for its end");
    let folder = File::open(staging).map_err(unusable)?;
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy()),
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    // A pull that ended in between has given the folder its final name.
    if leads_to(staging, &folder) { Ok(folder) } else { Err(busy()) }
}

/// Empties the folder of an unfinished pull that cannot be continued.
fn clear(staging: &Path) -> Result<(), String> {
    let unusable = |error: io::Error| format!("cannot empty {}: {error}", staging.display());
    for entry in fs::read_dir(staging).map_err(unusable)? {
        let entry = entry.map_err(unusable)?;
        let is_folder = entry.file_type().map_err(unusable)?.is_dir();
        let removed = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.map_err(unusable)?;
    }
    Ok(())
}

/// How many of a file's bytes are already on the disk.
fn arrived(staging: &Path, file: &ModelFile) -> u64 {
    let target = staging.join(&file.path);
    let length = |path: &Path| fs::symlink_metadata(path).map_or(0, |metadata| metadata.len());
    length(&target).max(length(&part_of(&target))).min(file.bytes)
}

impl Pull {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.plan.manifest.name
    }

    /// The repository and its commit.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Records that the operator accepted the licence.
    pub fn accept(&mut self, clock: &Clock) -> Result<(), String> {
        self.licence.accepted_at = clock.now().to_string();
        self.plan.manifest.licence = Some(self.licence.clone());
        write(&self.staging, PLAN, &serde_json::to_string_pretty(&self.plan).expect("a plan is JSON"))
    }

    /// Checks that the disk has room for the missing bytes.
    ///
    /// # Errors
    /// A message for the operator: it doesn't.
    pub fn check_space(&self) -> Result<(), String> {
        let free = Disk::new(vec![self.staging.clone()], None, Clock::system()).free();
        // 8-bit weights made from 16-bit ones.
        let made = if catalogue::is_in_8_bits(&self.plan.manifest.pipeline) { self.bytes / 2 } else { 0 };
        let needed = self.bytes.saturating_sub(self.done).saturating_add(made).saturating_add(MARGIN);
        match free.filter(|free| *free < needed) {
            None => Ok(()),
            Some(free) => Err(format!(
                "the model needs {} of free disk at {}, and {} are free: make room, or move the data directory",
                ByteSize(needed),
                self.staging.display(),
                ByteSize(free)
            )),
        }
    }

    /// Downloads the missing files, and installs the model.
    ///
    /// # Errors
    /// A message for the operator. Another pull continues.
    pub async fn run(self, hub: &Hub, sink: &dyn ProgressSink) -> Result<Installed, String> {
        sink.begin(self.bytes, self.done);
        let files = self.plan.files();
        let page = hub.page(&self.source.repository);
        let fetches = files.iter().map(async |file| {
            let url = hub.url_of(&self.source, &file.path);
            fetch(hub, &url, &page, file, &self.staging, sink).await
        });
        let fetched: Vec<ModelFile> = futures::stream::iter(fetches).buffered(DOWNLOADS).try_collect().await?;
        let mut manifest = self.plan.manifest.clone();
        manifest.files = fetched;
        if manifest.files.iter().any(|file| file.path == INDEX) {
            let class = read_json::<Index>(&self.staging, INDEX)?.pipeline_class()?;
            if !manifest.pipeline.is_empty() && manifest.pipeline != class {
                let expected = &manifest.pipeline;
                return Err(format!("{INDEX} is of a {class} instead of a {expected}: this is another model"));
            }
            manifest.pipeline = class;
        }
        write(&self.staging, MANIFEST, &manifest.text())?;
        self.install(manifest)
    }

    fn install(self, manifest: Manifest) -> Result<Installed, String> {
        let failed = |error: io::Error| format!("cannot install {}: {error}", self.target.display());
        sync(&self.staging).map_err(failed)?;
        // A folder can only replace an empty folder. Not all file systems support NOREPLACE.
        fs::rename(&self.staging, &self.target).map_err(failed)?;
        File::open(data_dir::directory_of(&self.target)).and_then(|models| models.sync_all()).map_err(failed)?;
        // Not earlier: without its plan, a pull interrupted here would start again.
        fs::remove_file(self.target.join(PLAN)).map_err(failed)?;
        Ok(Installed {
            name: manifest.name.clone(),
            folder: self.target.clone(),
            file: None,
            cache: Some(self.target.join(super::CACHE)),
            manifest: Some(manifest),
            unusable: None,
        })
    }
}

/// The file that identifies a folder as a model.
#[derive(Deserialize)]
pub(super) struct Index {
    _class_name: serde_json::Value,
}

impl Index {
    pub(super) fn pipeline_class(self) -> Result<String, String> {
        let class = match self._class_name {
            serde_json::Value::String(class) => class,
            // A file's name and the name of a class in it.
            serde_json::Value::Array(_) => {
                return Err(format!(
                    "{INDEX} names a file with code of its own as the pipeline, which is never run: use a model for a \
                     pipeline of diffusers"
                ));
            }
            _ => return Err(format!("{INDEX} names no class of a pipeline")),
        };
        let plain = class.len() <= 64 && class.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if plain { Ok(class) } else { Err(format!("{INDEX} names no class of a pipeline")) }
    }
}

pub(super) fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync directories and report InvalidInput.
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}

/// Hashes a model's files. Returns the paths of damaged files, each with the reason.
///
/// # Errors
/// A message for the operator: there is nothing to compare with.
pub fn verify(installed: &Installed, sink: &dyn ProgressSink) -> Result<Vec<(String, String)>, String> {
    let manifest = installed.manifest.as_ref().ok_or("a folder that is not installed has no manifest")?;
    sink.begin(manifest.bytes(), 0);
    let mut damaged = Vec::new();
    for file in &manifest.files {
        if let Err(reason) = check(&installed.folder, file, sink) {
            damaged.push((file.path.clone(), reason));
        }
    }
    Ok(damaged)
}

fn check(folder: &Path, file: &ModelFile, sink: &dyn ProgressSink) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let mut open = File::open(folder.join(&file.path)).map_err(text)?;
    let length = open.metadata().map_err(text)?.len();
    if length != file.bytes {
        return Err(format!("it has {length} bytes instead of {}", file.bytes));
    }
    let Some(sha256) = &file.sha256 else { return Ok(()) };
    match download::sha256(&mut open, sink).map_err(text)? == *sha256 {
        true => Ok(()),
        false => Err("its content differs".into()),
    }
}
