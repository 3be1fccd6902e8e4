//! How the service meets its machine: time, disk space, the owner of files, its output, and the processes it confines.

pub mod clock;
pub mod data_dir;
pub mod disk;
pub mod fault;
pub mod locked;
pub mod output;
pub mod owner;
pub mod sandbox;
pub mod watched_files;
