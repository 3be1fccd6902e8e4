"""Random schedulers, with random options of each."""

import inspect

import diffusers

CLASSES = [
    "DDIMScheduler", "PNDMScheduler", "LMSDiscreteScheduler", "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "DPMSolverSDEScheduler", "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "UniPCMultistepScheduler", "DEISMultistepScheduler",
    "LCMScheduler", "TCDScheduler", "DDPMScheduler",
]
# Those that published models have.
COMMON = ["DDIMScheduler", "PNDMScheduler", "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler",
          "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "LCMScheduler"]
SIGMAS = ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"]
# Options that change something, with their values. A scheduler takes those that its class knows.
OPTIONS = {
    "prediction_type": ["epsilon", "epsilon", "v_prediction", "v_prediction", "sample"],
    "timestep_spacing": ["leading", "trailing", "linspace"],
    "steps_offset": [0, 1, 1, 1],
    "set_alpha_to_one": [True, False],
    "clip_sample": [False, False, True],
    "skip_prk_steps": [True, True, True, False],
    "solver_order": [1, 2, 2, 3],
    "algorithm_type": ["dpmsolver++", "dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"],
    "lower_order_final": [True, True, False],
    "euler_at_final": [False, True],
    "final_sigmas_type": ["zero", "zero", "sigma_min"],
    "original_inference_steps": [50, 50, 20],
    "rescale_betas_zero_snr": [False, False, True],
}
# The same, but seldom.
RARE = {
    "thresholding": [True], "num_train_timesteps": [500, 100], "clip_sample_range": [2.0], "solver_type": ["heun", "bh1"],
    "interpolation_type": ["log_linear"], "timestep_type": ["continuous"], "use_flow_sigmas": [True], "predict_x0": [False],
    "disable_corrector": [[0]], "lambda_min_clipped": [-5.1], "trained_betas": [[0.01] * 1000],
    "timestep_scaling": [5.0], "variance_type": ["fixed_large"], "sigma_min": [0.05], "sigma_max": [10.0],
}


def scheduler(rng, odd):
    """A scheduler of any class."""
    name = rng.choice(CLASSES + COMMON)
    kind = getattr(diffusers, name)
    known = inspect.signature(kind.__init__).parameters
    schedule = rng.choice(["scaled_linear", "scaled_linear", "linear", "squaredcos_cap_v2"])
    options = {"beta_schedule": schedule}
    if rng.random() < 0.8:
        options |= {"beta_start": 0.00085, "beta_end": 0.012}
    options |= {name: rng.choice(values) for name, values in OPTIONS.items() if name in known and rng.random() < 0.7}
    if name == "DEISMultistepScheduler":
        options["algorithm_type"] = "deis"
    if name == "PNDMScheduler":
        options.setdefault("skip_prk_steps", True)
    sigmas = [name for name in SIGMAS if name in known]
    if sigmas and rng.random() < 0.45:
        options[rng.choice(sigmas)] = True
    rare = [name for name in RARE if name in known]
    if rng.random() < 0.25:
        field = rng.choice(rare)
        options[field] = rng.choice(RARE[field])
        odd.append(f"scheduler {field}")
    return kind(**options)


def flow(rng, odd):
    """A scheduler of rectified flow."""
    options = {"shift": rng.choice([1.0, 3.0, 2.5]), "use_dynamic_shifting": rng.random() < 0.5}
    options |= {"base_shift": rng.choice([0.5, 0.3]), "max_shift": rng.choice([1.15, 1.6])}
    options |= {"base_image_seq_len": rng.choice([256, 16]), "max_image_seq_len": rng.choice([4096, 1024])}
    options["time_shift_type"] = rng.choice(["exponential", "exponential", "linear"])
    rare = {"invert_sigmas": True, "shift_terminal": 0.02, "use_karras_sigmas": True, "use_exponential_sigmas": True,
            "use_beta_sigmas": True, "stochastic_sampling": True, "num_train_timesteps": 500}
    if rng.random() < 0.25:
        field = rng.choice(list(rare))
        options[field] = rare[field]
        odd.append(f"scheduler {field}")
    if rng.random() < 0.06:
        odd.append("another scheduler")
        return diffusers.FlowMatchHeunDiscreteScheduler(shift=options["shift"])
    return diffusers.FlowMatchEulerDiscreteScheduler(**options)
