//! Which parts of a model stay in the memory of a device, and which are loaded again for each use.

/// Memory that a device needs besides weights and feature maps, in bytes: CUDA's context, its kernels, and what cuDNN and
/// cuBLAS work in. An estimate.
pub const RESERVE: u64 = 1 << 30;

/// What a part needs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its name.
    pub part: &'static str,
    /// Bytes of its weights.
    pub weights: u64,
    /// Bytes of the feature maps that are alive at the same time while it runs.
    pub working: u64,
}

/// For each part, whether it stays loaded. Of all choices in which every part can run, the one that loads the fewest bytes
/// for a picture. `None` if a part does not fit by itself.
pub fn plan(needs: &[Need], memory: u64) -> Option<Vec<bool>> {
    let free = memory.saturating_sub(RESERVE);
    // A model has at most five parts.
    let choices = (0..1_u32 << needs.len().min(16)).map(|choice| stays(choice, needs.len()));
    let fits = |stay: &Vec<bool>| {
        let kept = kept(needs, stay);
        needs.iter().zip(stay).all(|(need, stays)| kept + if *stays { 0 } else { need.weights } + need.working <= free)
    };
    choices.filter(fits).max_by_key(|stay| kept(needs, stay))
}

fn stays(choice: u32, parts: usize) -> Vec<bool> {
    (0..parts).map(|part| choice >> part & 1 == 1).collect()
}

/// Bytes of the weights that stay.
fn kept(needs: &[Need], stay: &[bool]) -> u64 {
    needs.iter().zip(stay).filter(|(_, stays)| **stays).map(|(need, _)| need.weights).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// Weights in 16 bits, and in 32 for the autoencoders, of the published sizes; feature maps of a picture of 1024x1024. A
    /// decoder has about four maps of 256 channels at a time in 32 bits, an encoder as many of 128.
    const KLEIN: [(&str, u64, u64); 4] =
        [("text_encoder", 5_450, 100), ("transformer", 7_750, 500), ("vae", 200, 4_300), ("vae_encoder", 140, 2_200)];
    const SDXL: [(&str, u64, u64); 5] = [
        ("text_encoder", 246, 50),
        ("text_encoder_2", 1_390, 50),
        ("unet", 5_135, 600),
        ("vae", 200, 4_300),
        ("vae_encoder", 140, 2_200),
    ];
    const SD15: [(&str, u64, u64); 4] =
        [("text_encoder", 246, 50), ("unet", 1_720, 700), ("vae", 200, 4_300), ("vae_encoder", 140, 2_200)];
    const Z_IMAGE: [(&str, u64, u64); 3] =
        [("text_encoder", 7_060, 100), ("transformer", 12_310, 600), ("vae", 200, 4_300)];

    /// The parts that are loaded for each use; `None` if the model does not fit.
    fn on_demand(parts: &[(&'static str, u64, u64)], gigabytes: u64) -> Option<Vec<&'static str>> {
        let need = |(part, weights, working): &(&'static str, u64, u64)| Need {
            part,
            weights: weights * MB,
            working: working * MB,
        };
        let needs: Vec<_> = parts.iter().map(need).collect();
        let stay = plan(&needs, gigabytes * 1000 * MB)?;
        Some(needs.iter().zip(stay).filter(|(_, stays)| !stays).map(|(need, _)| need.part).collect())
    }

    #[test]
    fn what_stays_on_devices_of_several_sizes() {
        for (parts, memory, expected) in [
            (KLEIN.as_slice(), 80, Some(vec![])),
            (&KLEIN, 24, Some(vec![])),
            (&KLEIN, 16, Some(vec!["text_encoder"])),
            (&KLEIN, 12, Some(vec!["text_encoder", "transformer"])),
            (&SDXL, 80, Some(vec![])),
            (&SDXL, 24, Some(vec![])),
            (&SDXL, 16, Some(vec![])),
            (&SDXL, 12, Some(vec!["text_encoder_2"])),
            (&SD15, 80, Some(vec![])),
            (&SD15, 24, Some(vec![])),
            (&SD15, 16, Some(vec![])),
            (&SD15, 12, Some(vec![])),
            (&Z_IMAGE, 80, Some(vec![])),
            (&Z_IMAGE, 24, Some(vec!["text_encoder"])),
            (&Z_IMAGE, 16, Some(vec!["text_encoder", "transformer"])),
            (&Z_IMAGE, 12, None),
        ] {
            assert_eq!(on_demand(parts, memory), expected, "{} parts in {memory} GB", parts.len());
        }
    }

    #[test]
    fn nothing_is_planned_beyond_the_memory() {
        for memory in 0..40_u64 {
            let memory = memory * 500 * MB;
            let needs =
                KLEIN.map(|(part, weights, working)| Need { part, weights: weights * MB, working: working * MB });
            let Some(stay) = plan(&needs, memory) else { continue };
            for (need, stays) in needs.iter().zip(&stay) {
                let own = if *stays { 0 } else { need.weights };
                assert!(kept(&needs, &stay) + own + need.working + RESERVE <= memory, "{stay:?} in {memory}");
            }
        }
    }
}
