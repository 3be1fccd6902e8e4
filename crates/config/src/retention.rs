//! Retention of finished tasks and the audit log.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use super::timing::{MIN_AUDIT_RETENTION, MIN_RETENTION};
use super::values::duration;

/// How long finished tasks, failed tasks' prompts, and audit log entries are kept.
#[derive(Debug, Clone, Copy, Args)]
pub struct RetentionSettings {
    /// Remove tasks and their images this long after they finish, for example 30d [default: keep them forever]
    #[arg(long, env = "TINTYPE_RETENTION", value_name = "DURATION", value_parser = retention)]
    pub retention: Option<Duration>,
    /// How long deleted studio tasks stay in the bin, where they can be restored; --retention applies there, too
    #[arg(long, env = "TINTYPE_BIN_RETENTION", default_value = "30d", value_name = "DURATION", value_parser = retention)]
    pub bin_retention: Duration,
    /// Delete entries of the audit log after this time
    #[arg(long, env = "TINTYPE_AUDIT_RETENTION", default_value = "365d", value_name = "DURATION", value_parser = audit_retention)]
    pub audit_retention: Duration,
    /// Erase the prompts of failed tasks this long after they were submitted
    #[arg(long, env = "TINTYPE_FAILED_PROMPT_RETENTION", default_value = "7d", value_name = "DURATION", value_parser = retention)]
    pub failed_prompt_retention: Duration,
    /// Most space for the prompts of an account's failed tasks; the oldest are erased once an hour
    #[arg(long, env = "TINTYPE_FAILED_PROMPT_SPACE", default_value = "16MiB", value_name = "SIZE")]
    pub failed_prompt_space: ByteSize,
}

impl fmt::Display for RetentionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retention.map(|retention| retention.as_secs()) {
            None => write!(f, "finished tasks are kept forever"),
            Some(seconds) if seconds % 86_400 == 0 => write!(f, "finished tasks are kept for {}d", seconds / 86_400),
            Some(seconds) if seconds % 3_600 == 0 => write!(f, "finished tasks are kept for {}h", seconds / 3_600),
            Some(seconds) => write!(f, "finished tasks are kept for {seconds}s"),
        }
    }
}

/// Parses a duration of at least [`MIN_RETENTION`].
fn retention(text: &str) -> Result<Duration, String> {
    let retention = duration(text)?;
    if retention < MIN_RETENTION {
        return Err("the shortest retention is 1h; to keep tasks forever, leave out --retention".into());
    }
    Ok(retention)
}

/// Parses a duration of at least [`MIN_AUDIT_RETENTION`].
fn audit_retention(text: &str) -> Result<Duration, String> {
    let retention = duration(text)?;
    if retention < MIN_AUDIT_RETENTION {
        return Err("the audit log is kept for at least 1d".into());
    }
    Ok(retention)
}
