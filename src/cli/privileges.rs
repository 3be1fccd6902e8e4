//! The user that a command runs as: root becomes the owner of the data that the command works on.

use std::path::PathBuf;

use super::engine::EngineCommand;
use super::{Command, Failure, files, model, person};
use tintype_config::{DataSettings, DatabaseUrl, FileBackend};
use tintype_engines::models;
use tintype_system::data_dir::directory_of;
use tintype_system::owner::{self, RootRight};

impl Command {
    /// Whether the command works on data, and the right of root that it needs beside those of the owner of the data.
    pub(super) fn root_right(&self) -> Option<RootRight> {
        match self {
            Self::Serve(_) | Self::Api(_) | Self::Worker(_) => Some(RootRight::LowPorts),
            Self::Backup(_) => Some(RootRight::WriteDestination),
            Self::Restore(_) => Some(RootRight::ReadSource),
            Self::Account(_)
            | Self::Key(_)
            | Self::Person(_)
            | Self::Credits(_)
            | Self::Usage(_)
            | Self::Webhook(_)
            | Self::Task(_)
            | Self::Queue(_)
            | Self::Files(_)
            | Self::Migrate(_)
            | Self::Model(_)
            | Self::Engine(EngineCommand::Library(_))
            | Self::Doctor(_) => Some(RootRight::Nothing),
            Self::Policy(_)
            | Self::Engine(_)
            | Self::Preset(_)
            | Self::Generate(_)
            | Self::Get(_)
            | Self::Mcp(_)
            | Self::Config(_)
            | Self::Health(_)
            | Self::Version(_)
            | Self::Openapi { .. }
            | Self::Completions(_)
            | Self::Man(_)
            | Self::DecodePicture { .. } => None,
        }
    }

    /// The value of `--files`.
    fn files(&self) -> Option<&str> {
        match self {
            Self::Serve(args) | Self::Api(args) | Self::Worker(args) => args.server.files.files.as_deref(),
            Self::Backup(args) => args.files.files.as_deref(),
            Self::Restore(args) => args.files.files.as_deref(),
            Self::Doctor(args) => args.files.files.as_deref(),
            Self::Files(files::FilesCommand::Adopt(args)) => args.files.files.as_deref(),
            _ => None,
        }
    }

    /// The files and directories that say whose data the command works on.
    fn paths(&self, data: &DataSettings) -> Result<Vec<PathBuf>, Failure> {
        if matches!(self, Self::Model(_) | Self::Engine(_)) {
            return Ok(vec![data.data.clone(), models::directory(&data.data)]);
        }
        let database = match self {
            Self::Migrate(args) => args.from.clone(),
            _ => data.database()?,
        };
        let mut paths = match database {
            // A database that is not there yet belongs to whom its directory belongs to.
            DatabaseUrl::Sqlite(path) if !path.exists() => vec![directory_of(&path).to_owned()],
            DatabaseUrl::Sqlite(path) => vec![path],
            DatabaseUrl::Postgres(_) => Vec::new(),
        };
        // The command itself reports an error in the settings.
        if let Ok(FileBackend::Directory(files)) = data.file_backend(self.files()) {
            paths.push(files);
        }
        paths.push(data.data.clone());
        Ok(paths)
    }
}

/// Makes root the owner of the data before the command touches it. Must run while this process has a single thread.
pub(super) fn become_owner(command: &mut Command, data: &mut DataSettings) -> Result<(), Failure> {
    let Some(root_right) = command.root_right() else { return Ok(()) };
    // The owner of the data may be unable to read them.
    data.read_secrets()?;
    if let Command::Model(model::ModelCommand::Pull(args)) = command {
        args.hub.read_secrets()?;
    }
    if let Command::Person(person::PersonCommand::Add(args)) = command {
        args.read_secrets()?;
    }
    let paths = command.paths(data)?;
    let paths: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
    if let Some(message) = owner::become_owner(&paths, root_right)? {
        tracing::info!("{message}");
    }
    Ok(())
}
