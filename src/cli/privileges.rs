//! The user that a command runs as: root becomes the owner of the data that the command works on.

use std::path::PathBuf;

use super::{Command, Failure, files, model, person};
use tintype_config::{CONFIG_FILE, DataSettings, DatabaseUrl, FileBackend, Needs};
use tintype_engines::models;
use tintype_system::data_dir::directory_of;
use tintype_system::owner;

impl Command {
    /// Whether the command needs nothing of the data but the config file.
    fn works_on_settings(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Health(_) | Self::Preset(_))
    }

    fn files(&self) -> Option<&str> {
        match self {
            Self::Serve(server) | Self::Api(server) | Self::Worker(server) => server.files.files.as_deref(),
            Self::Backup(args) => args.files.files.as_deref(),
            Self::Restore(args) => args.files.files.as_deref(),
            Self::Doctor(args) => args.files.files.as_deref(),
            Self::Files(files::FilesCommand::Adopt(args)) => args.files.files.as_deref(),
            _ => None,
        }
    }

    /// The files and directories that determine whose data the command works on.
    fn paths(&self, data: &DataSettings) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = Vec::new();
        if matches!(self, Self::Model(_) | Self::Engine(_)) {
            paths.push(models::directory(&data.data));
        } else if !self.works_on_settings() {
            let database = match self {
                Self::Migrate(args) => args.from.clone(),
                _ => data.database()?,
            };
            match database {
                // A database that is not there yet belongs to whom its directory belongs to.
                DatabaseUrl::Sqlite(path) if !path.exists() => paths.push(directory_of(&path).to_owned()),
                DatabaseUrl::Sqlite(path) => paths.push(path),
                DatabaseUrl::Postgres(_) => {}
            }
            // The command itself reports an error in the settings.
            if let Ok(FileBackend::Directory(files)) = data.file_backend(self.files()) {
                paths.push(files);
            }
        }
        paths.push(data.data.clone());
        Ok(paths)
    }
}

/// Makes root the owner of the data before the command touches it. Must run while this process has a single thread.
pub(super) fn become_owner(needs: Needs, command: &mut Command, data: &mut DataSettings) -> Result<(), Failure> {
    let Some(root_right) = needs.as_owner else { return Ok(()) };
    // The owner of the data may be unable to read them.
    if !command.works_on_settings() {
        data.read_secrets()?;
    }
    if let Command::Model(model::ModelCommand::Pull(args)) = command {
        args.hub.read_secrets()?;
    }
    if let Command::Person(person::PersonCommand::Add(args)) = command {
        args.read_secrets()?;
    }
    let (mut paths, settings) = (command.paths(data)?, data.data.join(CONFIG_FILE));
    if command.works_on_settings() {
        paths.push(settings.clone());
    }
    let paths: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
    if let Some(message) = owner::become_owner(&paths, &settings, root_right)? {
        tracing::info!("{message}");
    }
    Ok(())
}
