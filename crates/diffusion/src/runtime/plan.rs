//! Decides which parts of a model stay in a device's memory, and which are loaded again for each use.

/// Device memory needed besides weights and feature maps, in bytes: CUDA's context and kernels, and workspaces of cuDNN
/// and cuBLAS. An estimate.
pub const RESERVE: u64 = 1 << 30;

/// What a part needs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its name.
    pub part: &'static str,
    /// Its weights' bytes.
    pub weights: u64,
    /// Bytes of the feature maps that are alive at the same time while it runs.
    pub working: u64,
}

/// Decides for each part whether it stays loaded: the choice that loads the fewest bytes per picture, with enough
/// memory to run every part. `None` if a part doesn't even fit alone.
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

/// Bytes of the weights that stay loaded.
fn kept(needs: &[Need], stay: &[bool]) -> u64 {
    needs.iter().zip(stay).filter(|(_, stays)| **stays).map(|(need, _)| need.weights).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// The published models' weights, 16-bit except for 32-bit autoencoders, and feature maps for a 1024x1024 picture.
    /// A decoder has about four 32-bit maps with 256 channels at a time, an encoder four with 128.
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

    /// The parts loaded for each use; `None` if the model doesn't fit.
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
