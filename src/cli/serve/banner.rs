//! The lines that a server prints when it is ready, and the first key of a new installation.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;

use crate::cli::person::link_of_account;
use crate::cli::printing::quoted;
use crate::cli::{Failure, find_account, say};
use crate::service::people::LINK_LIFE;
use tintype_config::{EngineSettings, EngineTarget, program};
use tintype_domain::key::KeySecret;
use tintype_engines::models;
use tintype_engines::models::catalogue::{self, is_usable};
use tintype_store::{NewKey, Store};
use tintype_system::data_dir::write_private;

const FIRST_ACCOUNT: &str = "default";
/// Credits of that account: enough for 500 images.
const FIRST_CREDITS: i64 = 1_000;
const FIRST_KEY: &str = "first-key";
const FIRST_LINK: &str = "first-sign-in-link";
const PROMPT: &str = "A red fox in the snow at dawn";

/// How the operator gets a secret of a new installation.
enum Handover {
    /// On the terminal.
    Shown(String),
    /// In a file that only its owner can read.
    Saved(PathBuf),
    /// Not at all: the file could not be written.
    Lost(PathBuf, io::Error),
}

impl Handover {
    /// Shows a secret on a terminal. Without one, standard output may be a journal that others read, so the secret goes
    /// into a file, which replaces an earlier installation's.
    fn of(secret: &str, data: &Path, file: &str, shown: bool) -> io::Result<Self> {
        if shown {
            return Ok(Self::Shown(secret.to_owned()));
        }
        let path = std::path::absolute(data)?.join(file);
        Ok(match write_private(&path, format!("{secret}\n").as_bytes()) {
            Ok(()) => Self::Saved(path),
            Err(error) => Self::Lost(path, error),
        })
    }

    /// Logs the outcome, with the command for another `secret`.
    fn log(&self, secret: &str, again: &str) {
        match self {
            Self::Shown(_) => {}
            Self::Saved(path) => tracing::info!(file = %path.display(), "saved the first {secret}"),
            Self::Lost(path, error) => {
                tracing::error!(file = %path.display(), %error, again, "could not save the first {secret}")
            }
        }
    }
}

pub(super) struct FirstKey(Handover);

impl FirstKey {
    /// Creates an account with some credits and a key if the database has no account.
    pub(super) async fn create(store: &Store, data: &Path, shown: bool) -> Result<Option<Self>, Failure> {
        let secret = KeySecret::random();
        let key = NewKey { name: "first key".into(), ..NewKey::new(&secret) };
        if store.create_first_account(FIRST_ACCOUNT, FIRST_CREDITS, key).await?.is_none() {
            return Ok(None);
        }
        Ok(Some(Self(Handover::of(secret.reveal(), data, FIRST_KEY, shown)?)))
    }

    pub(super) fn log(&self) {
        self.0.log("API key", &format!("tintype key create --account {FIRST_ACCOUNT}"));
    }

    /// The key, and commands to paste, for an API at `url`.
    pub(super) fn announce(&self, url: &str) {
        let account = format!("the account \"{FIRST_ACCOUNT}\" with {FIRST_CREDITS} credits");
        let program = quoted(program());
        let key = match &self.0 {
            Handover::Shown(key) => {
                say(&format!("\nThis is your first API key, for {account}. It will not be shown again:\n\n  {key}"));
                key.clone()
            }
            Handover::Saved(path) => {
                say(&format!(
                    "\nYour first API key, for {account}, is in a file that only its owner can read:\n\n  {}\n\n\
                     Keep the key in a safe place, and delete the file.",
                    path.display()
                ));
                format!("$(cat {})", quoted(path))
            }
            Handover::Lost(path, error) => {
                say(&format!(
                    "\nYour first API key, for {account}, could not be saved in {}: {error}.\nCreate another one: \
                     {program} key create --account {FIRST_ACCOUNT} --data {}",
                    path.display(),
                    from_anywhere(path.parent().unwrap_or(path))
                ));
                return;
            }
        };
        say(&format!(
            "\nTry it in another terminal:\n\n  TINTYPE_KEY={key} {program} generate --url {url} \"{PROMPT}\"\n\n\
             or over HTTP. This submits a task:\n\n  \
             key={key}\n  \
             answer=$(curl -s {url}/api/v1/images/generate \\\n    -H \"Authorization: Bearer $key\" \\\n    \
             -H 'Content-Type: application/json' \\\n    -d '{{\"prompt\": \"{PROMPT}\"}}'); echo \"$answer\"\n\n\
             and this polls it; repeat it until the task is completed:\n\n  \
             task_id=$(echo \"$answer\" | grep -o 'imgmodel-[A-Za-z0-9_-]*')\n  \
             curl -s {url}/api/v1/images/task/$task_id -H \"Authorization: Bearer $key\""
        ));
    }
}

/// Three lines on how to get real images, for a server whose engines all draw sketches, while no model is installed.
pub(super) fn real_images_hint(settings: &EngineSettings, data: &Path) -> Option<String> {
    let engines = tintype_engines::configured(settings, data).ok()?;
    let sketches = engines.iter().all(|engine| engine.settings.engine == Some(EngineTarget::Sketch));
    let has_models = !models::entries(data).ok()?.is_empty();
    let model = catalogue::models().iter().find(|model| is_usable(&model.pipeline) && model.licence.commercial)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seconds = model.cpu_seconds.map(|seconds| (seconds / cores as f64).ceil());
    let seconds = seconds.map_or_else(String::new, |seconds| format!(", about {seconds} s per image"));
    let follows = settings.engine.is_none() && settings.engine_table.is_empty();
    let then = if follows { "This server then uses it." } else { "Then start the server without an engine." };
    let (program, name) = (quoted(program()), &model.name);
    let (disk, memory) = (ByteSize(model.disk_bytes()), ByteSize(model.memory_bytes()));
    let lines = format!(
        "          These are sketches. For real images: {program} model pull {name} --data {}\n          \
        It takes {disk} of disk and {memory} of memory{seconds}. {then}\n          \
        With a GPU or another server: docs/operate/real-pictures.md",
        from_anywhere(data)
    );
    (sketches && !has_models).then_some(lines)
}

/// A new installation's sign-in link for its operator.
pub(super) struct FirstLink {
    link: Handover,
    /// The command for another one.
    command: String,
}

impl FirstLink {
    /// Makes the link for a studio at `url`.
    pub(super) async fn create(store: &Arc<Store>, data: &Path, url: &str, shown: bool) -> Result<Self, Failure> {
        let account = find_account(store, FIRST_ACCOUNT).await?;
        let (link, _) = link_of_account(store, &account, url).await?;
        let (program, directory) = (quoted(program()), from_anywhere(data));
        let command = format!("{program} account link {FIRST_ACCOUNT} --data {directory} --public-url {url}");
        Ok(Self { link: Handover::of(&link, data, FIRST_LINK, shown)?, command })
    }

    pub(super) fn announce(&self) {
        let (command, minutes) = (&self.command, LINK_LIFE.as_secs() / 60);
        match &self.link {
            Handover::Shown(link) => say(&format!(
                "\nTo make images in the browser, open this link within {minutes} minutes; it works once:\n\n  {link}\n\n\
                 Another one: {command}"
            )),
            Handover::Saved(path) => say(&format!(
                "\nTo make images in the browser, open the link in this file within {minutes} minutes; it works once:\n\n  \
                 {}\n\nAnother one: {command}",
                path.display()
            )),
            Handover::Lost(path, error) => say(&format!(
                "\nThe link to the studio could not be saved in {}: {error}.\nGet one: {command}",
                path.display()
            )),
        }
    }

    pub(super) fn log(&self) {
        self.link.log("sign-in link", &self.command);
    }
}

/// Two lines on how to get into an installation whose key and link were shown at an earlier start.
pub(super) fn sign_in_hint(data: &Path) -> String {
    let (program, data) = (quoted(program()), from_anywhere(data));
    format!(
        "\nSign in: {program} account link NAME --data {data}\nNew key: {program} key create --account NAME --data {data}"
    )
}

/// A path as a word of a shell in any directory.
fn from_anywhere(path: &Path) -> String {
    quoted(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}
