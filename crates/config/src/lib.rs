//! All settings, with their flags, environment variables and defaults, in one file per group. No other module reads the
//! environment or the config file.

mod acme;
mod client;
mod collector;
mod commands;
mod connections;
mod database;
mod engine;
mod engines;
mod environment;
mod file;
mod files;
mod hub;
mod in_force;
mod installation;
mod layers;
mod limits;
mod listen;
mod model_aliases;
mod oidc;
mod origins;
mod policy;
mod presets;
mod redis;
mod retention;
mod s3;
mod second_factor;
mod server;
mod sign_up;
mod timing;
mod values;
mod webhooks;
mod worker;

pub use self::acme::AcmeSettings;
pub use self::client::ClientSettings;
pub use self::collector::collector_headers;
pub use self::commands::{Needs, SERVERS};
pub use self::connections::{
    ConnectionLimits, MAX_BOARD_NAME, MAX_BOARDS, MAX_BODY, MAX_CHOSEN, MAX_EDIT_BODY, MAX_HEADER, MAX_HEADER_FIELDS,
    MAX_SHARED_LINKS, MAX_UNSENT, MAX_UPLOAD, MAX_UPLOADS, MIN_UPLOAD_RATE, MIN_WRITE_PROGRESS, RESERVE_PER_SOURCE,
    RESERVED_CONNECTIONS, RESERVED_FILE_DESCRIPTORS, SEND_BUFFER, UPLOAD_GRACE,
};
pub use self::database::{DataSettings, DatabaseUrl};
pub use self::engine::{
    EngineEmbedding, EnginePrecision, EngineProfile, EngineRuntime, EngineSettings, EngineTarget, ServerKind,
};
pub use self::engines::NamedEngine;
pub use self::environment::{
    Graphics, STARTED_AGAIN, architecture, arguments, environment_of_engine, notify_socket, program, secret_in,
    temporary_directory, terminal_graphics, terminal_has_colours, variable_or, was_started_again, watchdog_interval,
};
pub use self::file::CONFIG_FILE;
pub use self::files::{FileBackend, FileLinks, FileUrlSettings, FileUrls, FilesSettings, SignedLinks};
pub use self::hub::{HUGGING_FACE, HubSettings};
pub use self::in_force::{PublishedSettings, SettingsInForce};
pub use self::layers::{AdoptedSettings, CommandLine, SettingsError, ShownSetting, Source, read, reader_of_servers};
pub use self::limits::LimitSettings;
pub use self::listen::{ListenAddress, TrustedProxy};
pub use self::model_aliases::{ModelAlias, ModelAliasSettings, ModelAliases};
pub use self::oidc::OidcSettings;
pub use self::origins::{AllowedOrigins, OriginSettings};
pub use self::policy::PolicySettings;
pub use self::presets::{PresetFile, PresetSettings};
pub use self::redis::{RedisServer, RedisSettings};
pub use self::retention::RetentionSettings;
pub use self::s3::S3Settings;
pub use self::second_factor::{RequiredFor, SecondFactorSettings};
pub use self::server::{ServerSettings, SpaceSettings, StudioUrl};
pub use self::sign_up::SignUpSettings;
pub use self::timing::*;
pub use self::values::{duration, lifetime, overlap, rate, root_url, time_limit};
pub use self::webhooks::{WebhookNetworks, WebhookSettings};
pub use self::worker::WorkerSettings;
