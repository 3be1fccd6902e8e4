//! The options of each scheduler. Configurations often contain others, left over from when another class was entered.
//! `diffusers` ignores them, and so does this program.

use crate::config::Config;

const OF_ALL: &[&str] = &[
    "_class_name",
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "prediction_type",
];
const TIMES: &[&str] = &["timestep_spacing", "steps_offset"];
/// `diffusers` reads the last two wherever it chooses noise levels, even for classes that don't have them.
const LEVELS: &[&str] = &["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "sigma_min", "sigma_max"];
const FLOWS: &[&str] = &["use_flow_sigmas", "flow_shift", "use_dynamic_shifting", "time_shift_type"];
const CLIPS: &[&str] = &["clip_sample", "clip_sample_range"];
const THRESHOLDS: &[&str] = &["thresholding", "dynamic_thresholding_ratio", "sample_max_value"];
const ORDERS: &[&str] = &["solver_order", "solver_type", "lower_order_final"];

/// A class's options; `None` if the class is unknown.
fn of(class: &str) -> Option<Vec<&'static str>> {
    let groups: &[&[&str]] = match class {
        "DDIMScheduler" => &[TIMES, CLIPS, THRESHOLDS, &["set_alpha_to_one", "rescale_betas_zero_snr"]],
        "LCMScheduler" | "TCDScheduler" => &[
            TIMES,
            CLIPS,
            THRESHOLDS,
            &["set_alpha_to_one", "rescale_betas_zero_snr", "original_inference_steps", "timestep_scaling"],
        ],
        "PNDMScheduler" => &[TIMES, &["set_alpha_to_one", "skip_prk_steps"]],
        "EulerAncestralDiscreteScheduler" => &[TIMES, &["rescale_betas_zero_snr"]],
        "EulerDiscreteScheduler" => {
            &[TIMES, LEVELS, &["interpolation_type", "timestep_type", "final_sigmas_type", "rescale_betas_zero_snr"]]
        }
        "HeunDiscreteScheduler" => &[TIMES, LEVELS, CLIPS],
        "KDPM2DiscreteScheduler" | "KDPM2AncestralDiscreteScheduler" => &[TIMES, LEVELS],
        "DEISMultistepScheduler" => &[TIMES, LEVELS, FLOWS, THRESHOLDS, ORDERS, &["algorithm_type"]],
        "DPMSolverMultistepScheduler" => &[
            TIMES,
            LEVELS,
            FLOWS,
            THRESHOLDS,
            ORDERS,
            &["algorithm_type", "euler_at_final", "use_lu_lambdas", "final_sigmas_type", "lambda_min_clipped"],
            &["variance_type", "rescale_betas_zero_snr"],
        ],
        "DPMSolverSinglestepScheduler" => &[
            LEVELS,
            FLOWS,
            THRESHOLDS,
            ORDERS,
            &["algorithm_type", "final_sigmas_type", "lambda_min_clipped", "variance_type"],
        ],
        "UniPCMultistepScheduler" => &[
            TIMES,
            LEVELS,
            FLOWS,
            THRESHOLDS,
            ORDERS,
            &["predict_x0", "disable_corrector", "solver_p", "final_sigmas_type", "rescale_betas_zero_snr"],
        ],
        _ => return None,
    };
    Some([&[OF_ALL], groups].concat().concat())
}

/// The configuration without options that its class doesn't have.
pub(super) fn own(config: &Config, class: &str) -> Config {
    of(class).map_or_else(|| config.clone(), |options| config.only_with(&options))
}
