//! The weights in 8 bits of a model, made once beside it.

use std::sync::Arc;

use tintype_diffusion::quantise;

use super::Installed;
use super::catalogue::is_in_8_bits;
use super::download::Watch;

/// Makes the weights in 8 bits of a model that computes with them, unless they are there. Takes minutes for a large model,
/// and blocks.
///
/// # Errors
/// A message for the operator: the model cannot be used, or the files cannot be written. A server makes them at its first
/// start as well.
pub fn make(installed: &Installed, watch: &dyn Watch) -> Result<(), String> {
    let pipeline = installed.manifest.as_ref().map(|manifest| manifest.pipeline.as_str()).unwrap_or_default();
    let Some(cache) = installed.cache.as_ref().filter(|_| is_in_8_bits(pipeline)) else { return Ok(()) };
    let mut last = (String::new(), 0_u64);
    let made = quantise::quantise(&installed.path(), cache, &mut |progress| {
        let (part, before) = &mut last;
        if *part != progress.part {
            watch.tell(&format!("making the 8-bit weights of {}, once", progress.part));
            watch.begin(progress.total, 0);
            (*part, *before) = (progress.part.clone(), 0);
        }
        watch.advance(i64::try_from(progress.done.saturating_sub(*before)).unwrap_or(0));
        *before = progress.done;
    });
    made.map_err(|error| error.to_string())
}

/// Compares the weights in 8 bits of a model with their checksums.
///
/// # Errors
/// A message for the operator: one of them is damaged, and is made again once it is deleted.
pub fn verify(installed: &Installed) -> Result<(), String> {
    let Some(cache) = &installed.cache else { return Ok(()) };
    quantise::verify(cache).map(drop).map_err(|error| error.to_string())
}

/// [`make`] on a thread of its own.
///
/// # Errors
/// As [`make`].
pub async fn make_beside(installed: Installed, watch: Arc<dyn Watch + Send + Sync>) -> Result<(), String> {
    let making = tokio::task::spawn_blocking(move || make(&installed, &*watch));
    making.await.map_err(|error| format!("making the 8-bit weights ended unexpectedly: {error}"))?
}
