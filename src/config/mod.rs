//! Every setting, with its flag, its environment variable and its default, in one file per group. No other module
//! reads the environment.

mod acme;
mod connections;
mod database;
mod engine;
mod environment;
mod files;
mod limits;
mod policy;
mod redis;
mod retention;
mod s3;
mod server;
mod timing;
mod values;
mod worker;

pub use self::acme::AcmeSettings;
pub use self::connections::{
    ConnectionLimits, MAX_BODY, MAX_HEADER, MAX_HEADER_FIELDS, MIN_WRITE_PROGRESS, RESERVED_FILE_DESCRIPTORS,
};
pub use self::database::{DataSettings, DatabaseUrl};
pub use self::engine::EngineSettings;
pub use self::environment::{ignore_empty_variables, secret_from_file};
pub use self::files::{FileBackend, FileLinks, FileUrlSettings, FileUrls, FilesSettings, SignedLinks, files_from_env};
pub use self::limits::LimitSettings;
pub use self::policy::PolicySettings;
pub use self::redis::{RedisServer, RedisSettings};
pub use self::retention::RetentionSettings;
pub use self::s3::S3Settings;
pub use self::server::ServerSettings;
pub use self::timing::*;
pub use self::values::{base_url, duration, rate};
pub use self::worker::WorkerSettings;
