//! Masked editing: the part of a picture that a mask marks is redrawn, and the rest is kept.

use tintype_engine::Picture;

use super::{Latent, Order, Pipeline};
use crate::{Error, Result};

/// From this brightness on, a mask pixel counts as white. `diffusers` rounds at the middle, too.
const WHITE: u32 = 128;

/// A mask, reduced to a latent picture's positions.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentMask {
    /// For each position, in rows, whether it is redrawn.
    pub repaints: Vec<bool>,
    /// The encoded picture without the redrawn part, for models that see it.
    pub rest: Option<Latent>,
}

impl LatentMask {
    /// The mask channel that inpainting models see.
    pub(super) fn channel(&self) -> Vec<f32> {
        self.repaints.iter().map(|repaints| if *repaints { 1.0 } else { 0.0 }).collect()
    }
}

impl Pipeline {
    /// Checks that an order's mask suits the model and the rest of the order.
    pub(super) fn check_mask(&self, order: &Order<'_>) -> Result<()> {
        let references = order.references.len();
        match order.mask {
            None => Ok(()),
            Some(_) if !self.traits().masks => Err(Error::Order("the model takes no masks".into())),
            Some(_) if references != 1 => {
                Err(Error::Order(format!("a mask needs exactly 1 reference picture, not {references}")))
            }
            Some(_) => Ok(()),
        }
    }

    /// Reduces an order's mask to the positions of a latent picture with this shape, and, if the model sees it, encodes
    /// the kept part of the reference. Without a mask such a model redraws the whole picture; others don't need one.
    ///
    /// # Errors
    /// If the mask suits neither the model nor the order, or the runtime fails.
    pub fn look_at_mask(&mut self, order: &Order<'_>, shape: [usize; 3]) -> Result<Option<LatentMask>> {
        self.check_mask(order)?;
        let sees_masks = self.family.sees_masks();
        let (black, white) = (plain(0)?, plain(u8::MAX)?);
        let (mask, reference) = match (order.mask, order.references) {
            (None, _) if !sees_masks => return Ok(None),
            (Some(mask), [reference, ..]) => (mask, reference),
            _ => (&white, &black),
        };
        let [_, rows, columns] = shape;
        let factor = self.traits().side_multiple;
        let pixels = repainted(mask, [rows * factor, columns * factor]);
        // The first pixel of each square decides, as in PyTorch's nearest-neighbour downscaling.
        let of_row = |row: usize| pixels[row * factor * columns * factor..].iter().step_by(factor).take(columns);
        let repaints = (0..rows).flat_map(of_row).copied().collect();
        let rest = match sees_masks {
            true => Some(self.encoded(reference, Some(mask), shape)?),
            false => None,
        };
        Ok(Some(LatentMask { repaints, rest }))
    }
}

fn plain(shade: u8) -> Result<Picture> {
    Picture::from_rgb(1, 1, vec![shade; 3]).ok_or_else(|| Error::Run("no picture of one pixel could be made".into()))
}

/// Whether a mask, fitted to a size in pixels, marks each pixel.
pub(super) fn repainted(mask: &Picture, [height, width]: [usize; 2]) -> Vec<bool> {
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    let mask = mask.clone().fit(side(width), side(height));
    mask.as_rgb().chunks_exact(3).map(|pixel| brightness(pixel) >= WHITE).collect()
}

/// A pixel's brightness as computed by Pillow (ITU-R 601-2).
fn brightness(pixel: &[u8]) -> u32 {
    let weighted = pixel.iter().zip([19_595, 38_470, 7_471]).map(|(colour, weight)| u32::from(*colour) * weight);
    (weighted.sum::<u32>() + 0x8000) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_counts_from_half_of_the_brightness() {
        for (pixel, expected) in
            [([0, 0, 0], 0), ([127; 3], 127), ([128; 3], 128), ([255; 3], 255), ([255, 0, 0], 76), ([0, 255, 0], 150)]
        {
            assert_eq!(brightness(&pixel), expected, "{pixel:?}");
        }
        let mask = Picture::from_rgb(2, 1, vec![127, 127, 127, 128, 128, 128]).expect("a picture");
        assert_eq!(repainted(&mask, [1, 2]), [false, true]);
    }

    #[test]
    fn a_mask_is_fitted_like_a_reference() {
        let half = Picture::from_rgb(2, 1, vec![0, 0, 0, 255, 255, 255]).expect("a picture");
        let pixels = repainted(&half, [4, 8]);
        for row in pixels.chunks_exact(8) {
            assert_eq!(row, [false, false, false, false, true, true, true, true]);
        }
    }
}
