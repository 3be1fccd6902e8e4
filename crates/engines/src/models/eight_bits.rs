//! A model's 8-bit weights, made once beside it.

use std::sync::Arc;

use tintype_diffusion::quantise;

use super::Installed;
use super::catalogue::is_in_8_bits;
use super::download::ProgressSink;

/// Makes missing 8-bit weights for a model that computes with them. Takes minutes for a large model, and blocks.
///
/// # Errors
/// A message for the operator: the model cannot be used, or the files cannot be written. A server also makes them on
/// its first start.
pub fn make(installed: &Installed, sink: &dyn ProgressSink) -> Result<(), String> {
    let pipeline = installed.manifest.as_ref().map(|manifest| manifest.pipeline.as_str()).unwrap_or_default();
    let Some(cache) = installed.cache.as_ref().filter(|_| is_in_8_bits(pipeline)) else { return Ok(()) };
    let mut last = (String::new(), 0_u64);
    let made = quantise::quantise(&installed.path(), cache, &mut |progress| {
        let (part, before) = &mut last;
        if *part != progress.part {
            sink.report(&format!("making the 8-bit weights of {}, once", progress.part));
            sink.begin(progress.total, 0);
            (*part, *before) = (progress.part.clone(), 0);
        }
        sink.advance(i64::try_from(progress.done.saturating_sub(*before)).unwrap_or(0));
        *before = progress.done;
    });
    made.map_err(|error| error.to_string())
}

/// Compares a model's 8-bit weights with their checksums.
///
/// # Errors
/// A message for the operator: a file is damaged. It is made again once it is deleted.
pub fn verify(installed: &Installed) -> Result<(), String> {
    let Some(cache) = &installed.cache else { return Ok(()) };
    quantise::verify(cache).map(drop).map_err(|error| error.to_string())
}

/// [`make`] on a separate thread.
pub async fn make_beside(installed: Installed, sink: Arc<dyn ProgressSink + Send + Sync>) -> Result<(), String> {
    let making = tokio::task::spawn_blocking(move || make(&installed, &*sink));
    making.await.map_err(|error| format!("making the 8-bit weights ended unexpectedly: {error}"))?
}
