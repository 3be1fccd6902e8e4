//! The residual block that UNets and autoencoders share.

use crate::Result;
use crate::graph::blocks::Activation::Silu;
use crate::graph::{Builder, Node};

/// The constants of a residual block.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// Groups of channels that are normalised together.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Adds a residual block; `time` is the activated embedding of the time step, for parts that have one.
pub fn residual(
    b: &mut Builder<'_>,
    x: &Node,
    time: Option<&Node>,
    name: &str,
    outputs: usize,
    norm: Norm,
) -> Result<Node> {
    let [_, inputs, ..] = x.map();
    let h = b.group_norm(x, &format!("{name}.norm1"), norm.groups, norm.epsilon)?;
    let h = b.activation(&h, Silu);
    let mut h = b.conv(&h, &format!("{name}.conv1"), outputs, 3, 1)?;
    if let Some(time) = time {
        let shift = b.linear_wide(time, &format!("{name}.time_emb_proj"), outputs, true)?;
        let [rows, _] = shift.matrix();
        let shift = b.reshape(&shift, &[rows, outputs, 1, 1]);
        h = b.add(&h, &shift);
    }
    let h = b.group_norm(&h, &format!("{name}.norm2"), norm.groups, norm.epsilon)?;
    let h = b.activation(&h, Silu);
    let h = b.conv(&h, &format!("{name}.conv2"), outputs, 3, 1)?;
    let shortcut =
        if inputs == outputs { x.clone() } else { b.conv(x, &format!("{name}.conv_shortcut"), outputs, 1, 1)? };
    Ok(b.add(&shortcut, &h))
}
