//! `tintype model`: fetches, lists, verifies and removes the models of the diffusion engine.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::printing::{JsonArgs, show_verdict};
use super::progress::Transfer;
use super::signals::until_interrupted;
use super::{Failure, Outcome, complain, show, table};
use tintype_config::{DataSettings, HubSettings, ServerSettings};
use tintype_domain::text::counted;
use tintype_engines::diffusion;
use tintype_engines::models::catalogue::{self, CatalogueModel, is_usable};
use tintype_engines::models::hub::{Hub, TimeLimits};
use tintype_engines::models::manifest::{Licence, Manifest};
use tintype_engines::models::pull::{self, Begun, Pull};
use tintype_engines::models::{self, Busy, Installed, NotRemoved, eight_bits};
use tintype_system::clock::Clock;
use tintype_system::output;
use tintype_system::sandbox::Decoder;

/// Longest wait for a server to let go of a model: as long as a task may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(10 * 60);
const RELEASE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(super) enum ModelCommand {
    /// Download a model from Hugging Face, or resume an interrupted download
    Pull(PullArgs),
    /// Use a model in a local folder or file, without copying it
    Add(AddArgs),
    /// List the installed models, and those that can be fetched by name
    List(JsonArgs),
    /// Compare every file of a model with its checksum
    Verify(VerifyArgs),
    /// Remove a model; the files of an added folder stay
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A model appears in the list once all of its files are there and match their checksums. Repeat an interrupted pull to \
continue it. Only safetensors weights, configurations and tokenizers are downloaded, never code. HTTPS_PROXY, \
ALL_PROXY and NO_PROXY are used.")]
pub(super) struct PullArgs {
    /// Name in the catalogue, as `tintype model list` shows it, or OWNER/NAME of a repository
    name: String,
    /// Commit, tag or branch of the repository [default: the commit in the catalogue, or main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Accept the licence of the model; required without a terminal
    #[arg(long, visible_alias = "accept-license")]
    accept_licence: bool,
    #[command(flatten)]
    pub(super) hub: HubSettings,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if the engine cannot use the model, which stays in the list with the reason.")]
pub(super) struct AddArgs {
    /// Folder in the diffusers layout, with its model_index.json, or a .safetensors file that holds a whole model
    #[arg(value_name = "FOLDER|FILE")]
    path: PathBuf,
    /// Name to use [default: the name of the folder or file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Record the checksum of every file for `tintype model verify`
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// Model to verify [default: all]
    name: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// Name of the model
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    pipeline: &'a str,
    folder: String,
    /// The file that holds the whole model, if it is one.
    file: Option<&'a str>,
    repository: Option<&'a str>,
    commit: Option<&'a str>,
    licence: Option<&'a Licence>,
    bytes: u64,
    files: usize,
    usable: bool,
    /// Why not.
    unusable: Option<String>,
}

impl<'a> Shown<'a> {
    fn new(installed: &'a Installed, manifest: &'a Manifest) -> Self {
        let source = manifest.source.as_ref();
        Self {
            name: &installed.name,
            pipeline: &manifest.pipeline,
            folder: installed.folder.display().to_string(),
            file: installed.file.as_deref(),
            repository: source.map(|source| source.repository.as_str()),
            commit: source.map(|source| source.commit.as_str()),
            licence: manifest.licence.as_ref(),
            bytes: manifest.bytes(),
            files: manifest.files.len(),
            usable: installed.usable().is_ok(),
            unusable: installed.usable().err(),
        }
    }
}

pub(super) async fn run(command: ModelCommand, data: &DataSettings) -> Outcome {
    match command {
        ModelCommand::Pull(args) => fetch(args, data).await,
        ModelCommand::Add(args) => add(args, data).await,
        ModelCommand::List(args) => list(args, data),
        ModelCommand::Verify(args) => verify(args, data).await,
        ModelCommand::Remove(args) => remove(args, data).await,
    }
}

async fn fetch(args: PullArgs, data: &DataSettings) -> Outcome {
    let PullArgs { name, revision, accept_licence, hub, json } = args;
    let usual = TimeLimits::default();
    let limits =
        TimeLimits { stall: hub.test_stall.unwrap_or(usual.stall), pause: hub.test_pause.unwrap_or(usual.pause) };
    let hub = Hub::new(&hub.endpoint, hub.token(), hub.authorities(), limits)?;
    let transfer = Arc::new(Transfer::new(!json));
    let work = async {
        let mut pull = match pull::begin(&hub, &data.data, &name, revision.as_deref(), &*transfer).await? {
            Begun::Installed(installed) => return Ok((*installed, None)),
            Begun::Ready(pull) => pull,
        };
        if !json {
            complain(&describe(&pull));
        }
        if pull.licence.accepted_at.is_empty() {
            accept(&pull, accept_licence, json)?;
            pull.accept(&Clock::system())?;
        }
        pull.check_space()?;
        let busy = Busy::with(&data.data, pull.name())?;
        Ok::<_, String>((pull.run(&hub, &*transfer).await?, Some(busy)))
    };
    let installed = until_interrupted(work, "interrupted; run the same command to continue").await;
    // Running servers take it up when it has been checked and prepared.
    let (installed, busy) = installed.inspect_err(|_| transfer.end())?;
    let installed = checked(installed, data).await?;
    let installed = prepare(installed, &transfer).await?;
    drop(busy);
    let manifest = installed.manifest.as_ref().ok_or("the model has no manifest: report this as a bug")?;
    show(json, &Shown::new(&installed, manifest), || {
        let note = unusable_note(&installed);
        let (files, bytes) = (counted(manifest.files.len() as u64, "file", "files"), ByteSize(manifest.bytes()));
        format!("{} is installed: {files}, {bytes}, all verified{note}.", installed.name)
    })
}

/// Has the engine open an installed model, and saves whether it can.
async fn checked(mut installed: Installed, data: &DataSettings) -> Result<Installed, String> {
    let pipeline = installed.manifest.as_ref().map_or("", |manifest| manifest.pipeline.as_str());
    if !is_usable(pipeline) {
        return Ok(installed);
    }
    let flags = ["--engine=diffusion".to_owned(), format!("--model={}", installed.name)];
    let settings = ServerSettings::from_flags(flags.iter().map(String::as_str)).map_err(|error| error.to_string())?;
    let opened = match installed.readable() {
        Ok(()) => diffusion::open_once(&settings.worker.engine, &data.data, &Decoder::default()).await,
        Err(reason) => Err(reason.into()),
    };
    let recorded = match opened {
        Ok(_) => installed.note_check(&data.data, None),
        Err(complaint) if complaint.fault == diffusion::OpenFault::Model => {
            installed.note_check(&data.data, Some(complaint.words))
        }
        // Another machine or user may open it, or this one later.
        Err(complaint) => Err(complaint.words),
    };
    if let Err(reason) = recorded {
        complain(&format!("{} was not checked: {reason}", installed.name));
    }
    Ok(installed)
}

/// Whether this is the class of a decoder, which replaces a model's own.
fn is_decoder(pipeline: &str) -> bool {
    pipeline.starts_with("Autoencoder")
}

fn unusable_note(installed: &Installed) -> String {
    if installed.manifest.as_ref().is_some_and(|manifest| is_decoder(&manifest.pipeline)) {
        return format!(", and replaces the decoder of a model as --engine-vae {}", installed.path().display());
    }
    installed.usable().err().map_or_else(String::new, |reason| format!(", but cannot be used: {reason}"))
}

/// Makes the weights in 8 bits of a usable model, if it computes with them.
async fn prepare(installed: Installed, transfer: &Arc<Transfer>) -> Result<Installed, String> {
    if installed.usable().is_err() {
        transfer.end();
        return Ok(installed);
    }
    let name = &installed.name;
    let made = until_interrupted(eight_bits::make_beside(installed.clone(), transfer.clone()), "interrupted").await;
    transfer.end();
    let later = "`tintype serve` makes them when it starts";
    made.map_err(|reason| format!("{name} is installed, but its 8-bit weights were not made ({reason}); {later}"))?;
    Ok(installed)
}

fn describe(pull: &Pull) -> String {
    let source = pull.source();
    let left = pull.bytes.saturating_sub(pull.done);
    let rest = if pull.done > 0 { format!(", of which {} are missing", ByteSize(left)) } else { String::new() };
    let commercial = match pull.licence.commercial {
        Some(true) => "commercial use is allowed under its terms",
        Some(false) => "NO commercial use",
        None => "check whether it allows your use",
    };
    let Licence { name, url, .. } = &pull.licence;
    format!(
        "{} is {} at commit {}\n  from     {}\n  size     {}{rest}\n  licence  {name}; {commercial}: {url}",
        pull.name(),
        source.repository,
        source.commit,
        source.endpoint,
        ByteSize(pull.bytes)
    )
}

fn accept(pull: &Pull, accepted: bool, json: JsonArgs) -> Result<(), String> {
    if accepted {
        return Ok(());
    }
    let Licence { name, url, .. } = &pull.licence;
    match ask(&format!("Do you accept the licence {name}?"), json) {
        Some(true) => Ok(()),
        Some(false) => Err("the licence was not accepted, so nothing was fetched".into()),
        None => Err(format!("read the licence {name} at {url}, and accept it with --accept-licence")),
    }
}

/// Asks a question on the terminal; `None` if there is none, or for a program, which reads `json`.
fn ask(question: &str, JsonArgs { json }: JsonArgs) -> Option<bool> {
    if json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    output::ask(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).ok()?;
    Some(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

async fn add(args: AddArgs, data: &DataSettings) -> Outcome {
    let AddArgs { path, name, hash, json } = args;
    let name = name.or_else(|| models::name_of(&path));
    let name = name.ok_or("its name is not a valid model name: choose one with --name")?;
    let transfer = Arc::new(Transfer::new(!json));
    // Running servers take it up when it has been checked and prepared.
    let busy = match models::is_name(&name) && !models::is_taken(&data.data, &name) {
        true => Some(Busy::with(&data.data, &name)?),
        // It is refused below, and a server may use the model that has the name.
        false => None,
    };
    let added = models::add(&data.data, &path, &name, hash, &*transfer);
    let installed = checked(added.inspect_err(|_| transfer.end())?, data).await?;
    let installed = prepare(installed, &transfer).await?;
    drop(busy);
    let manifest = installed.manifest.as_ref().ok_or("the model has no manifest: report this as a bug")?;
    let is_of_use = installed.usable().is_ok() || is_decoder(&manifest.pipeline);
    show_verdict(is_of_use, json, &Shown::new(&installed, manifest), || {
        let (path, note) = (installed.path(), unusable_note(&installed));
        format!("{name} is installed from {}{note}.", path.display())
    })
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    state: &'static str,
    reason: Option<&'a str>,
    #[serde(flatten)]
    shown: Option<Shown<'a>>,
}

/// A model of the catalogue, as JSON.
fn catalogue_json(model: &CatalogueModel) -> Value {
    json!({
        "name": model.name,
        "family": model.family,
        "pipeline": model.pipeline,
        "repository": model.repository,
        "commit": model.commit,
        "licence": model.licence.name,
        "licence_url": model.licence.url,
        "commercial": model.licence.commercial,
        "disk_bytes": model.disk_bytes(),
        "memory_bytes": model.memory_bytes(),
        "steps": model.steps,
        "max_references": model.max_references,
        "usable": is_usable(&model.pipeline),
    })
}

fn list(args: JsonArgs, data: &DataSettings) -> Outcome {
    let entries = models::entries(&data.data)?;
    let unfinished = models::unfinished(&data.data)?;
    let mut installed = Vec::new();
    for entry in &entries {
        let name = entry.name.as_str();
        installed.push(match &entry.found {
            Ok(found) => {
                let shown = found.manifest.as_ref().map(|manifest| Shown::new(found, manifest));
                Listed { name, state: "installed", reason: None, shown }
            }
            Err(reason) => Listed { name, state: "damaged", reason: Some(reason), shown: None },
        });
    }
    let begun = unfinished.iter().filter(|name| !entries.iter().any(|entry| entry.name == **name));
    installed.extend(begun.map(|name| Listed { name, state: "unfinished", reason: None, shown: None }));
    let is_there = |model: &&CatalogueModel| entries.iter().any(|entry| entry.name == model.name);
    let available: Vec<_> = catalogue::models().iter().filter(|model| !is_there(model)).collect();
    let available_json: Value = available.iter().copied().map(catalogue_json).collect();
    show(args, &json!({ "installed": installed, "available": available_json }), || text(&installed, &available))
}

fn text(installed: &[Listed<'_>], available: &[&CatalogueModel]) -> String {
    let state = |listed: &Listed<'_>| match &listed.shown {
        Some(Shown { unusable: Some(reason), .. }) => format!("unusable: {reason}"),
        _ => listed.reason.map_or_else(|| listed.state.to_owned(), |reason| format!("damaged: {reason}")),
    };
    let row = |listed: &Listed<'_>| {
        let licence = listed.shown.as_ref().and_then(|shown| shown.licence);
        let size = listed.shown.as_ref().map_or_else(|| "-".into(), |shown| ByteSize(shown.bytes).to_string());
        let licence = licence.map_or_else(|| "-".into(), |licence| licence.name.clone());
        [listed.name.to_owned(), size, licence, state(listed)]
    };
    let offered = |model: &&CatalogueModel| {
        let commercial = if model.licence.commercial { "" } else { " (no commercial use)" };
        let usable = match is_usable(&model.pipeline) {
            true => "",
            false if is_decoder(&model.pipeline) => "; for --engine-vae",
            false => "; not with this release",
        };
        [
            model.name.clone(),
            ByteSize(model.disk_bytes()).to_string(),
            ByteSize(model.memory_bytes()).to_string(),
            format!("{}{commercial}", model.licence.name),
            format!("{}{usable}", model.family),
        ]
    };
    let mut parts = Vec::new();
    if !installed.is_empty() {
        parts.push(table(["INSTALLED", "DISK", "LICENCE", "STATE"], installed.iter().map(row)));
    }
    if !available.is_empty() {
        let headings = ["AVAILABLE", "DISK", "MEMORY", "LICENCE", "MODEL"];
        parts.push(table(headings, available.iter().map(offered)));
    }
    parts.join("\n\n")
}

#[derive(Debug, Serialize)]
struct Verified {
    name: String,
    ok: bool,
    /// Files that were compared by their length alone.
    without_checksum: usize,
    damaged: Vec<String>,
    unusable: Option<String>,
}

async fn verify(args: VerifyArgs, data: &DataSettings) -> Outcome {
    let mut entries = models::entries(&data.data)?;
    if let Some(name) = &args.name {
        entries.retain(|entry| entry.name == *name);
        if entries.is_empty() {
            return Err(not_installed(name));
        }
    }
    let transfer = Transfer::new(!args.json);
    let mut all = Vec::new();
    for entry in entries {
        // The lengths are compared again, with all files of the model named.
        let (without_checksum, damaged, unusable) = match models::manifest_of(&data.data, &entry.name) {
            Err(reason) => (0, vec![reason], None),
            Ok(installed) => {
                let files = installed.manifest.as_ref().map_or(&[][..], |manifest| &manifest.files);
                let without = files.iter().filter(|file| file.sha256.is_none()).count();
                let damaged = pull::verify(&installed, &transfer)?.into_iter();
                let damaged = damaged.map(|(path, reason)| format!("{path}: {reason}"));
                let damaged: Vec<_> = damaged.chain(eight_bits::verify(&installed).err()).collect();
                let checked = if damaged.is_empty() { checked(installed, data).await? } else { installed };
                (without, damaged, checked.usable().err())
            }
        };
        all.push(Verified { name: entry.name, ok: damaged.is_empty(), without_checksum, damaged, unusable });
    }
    transfer.end();
    let ok = all.iter().all(|verified| verified.ok);
    show_verdict(ok, args.json, &all, || {
        let line = |verified: &Verified| {
            let Verified { name, ok, without_checksum, damaged, unusable } = verified;
            let note = unusable.as_ref().map_or_else(String::new, |reason| format!(" It cannot be used: {reason}."));
            match (ok, without_checksum) {
                (false, _) => format!("{name} is damaged; remove it and fetch it again\n  {}", damaged.join("\n  ")),
                (true, 0) => format!("{name} is as it was fetched.{note}"),
                (true, 1) => format!("{name}: all lengths are right; 1 file has no checksum.{note}"),
                (true, files) => format!("{name}: all lengths are right; {files} files have no checksum.{note}"),
            }
        };
        if all.is_empty() {
            "No model is installed.".into()
        } else {
            all.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    })
}

/// Removes a model. One that a running server uses is waited for: the server lets go of it when its tasks have ended.
async fn remove_when_free(data: &Path, name: &str) -> Result<bool, String> {
    let _busy = models::is_taken(data, name).then(|| Busy::with(data, name)).transpose()?;
    let begun = Clock::system().elapsed();
    let mut waits = false;
    loop {
        match models::remove(data, name) {
            Err(NotRemoved::InUse(_)) if Clock::system().elapsed().saturating_sub(begun) < RELEASE_LIMIT => {
                if !waits {
                    waits = true;
                    complain(&format!("waiting until the running server has finished its tasks with {name}"));
                }
                tokio::time::sleep(RELEASE_PAUSE).await;
            }
            outcome => return outcome.map_err(|error| error.to_string()),
        }
    }
}

fn not_installed(name: &str) -> Failure {
    Failure(format!("no model {name:?} is installed: `tintype model list` shows those that are"))
}

async fn remove(args: RemoveArgs, data: &DataSettings) -> Outcome {
    let RemoveArgs { name, yes, json } = args;
    if !models::is_name(&name) {
        return Err(Failure(format!("{name:?} is not a model name")));
    }
    if !models::can_remove(&data.data, &name) {
        return Err(not_installed(&name));
    }
    let confirmed = || ask(&format!("Remove the model {name}?"), json);
    if !yes && !confirmed().ok_or("without a terminal, or with --json, pass --yes")? {
        return Err(Failure("nothing was removed".into()));
    }
    if !until_interrupted(remove_when_free(&data.data, &name), "interrupted: nothing was removed").await? {
        return Err(not_installed(&name));
    }
    show(json, &json!({ "removed": name }), || {
        let fetch =
            catalogue::find(&name).map(|model| format!("; `tintype model pull {}` fetches it again", model.name));
        format!("{name} is removed{}.", fetch.unwrap_or_default())
    })
}
