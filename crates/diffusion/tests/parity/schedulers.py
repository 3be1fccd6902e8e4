"""Records noise, and the steps of schedulers with a formula in place of a model."""

import inspect
import json

import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)

from shared import numbers, write_json


def answer(sample, time):
    """Stands for a model; the tests know the same formula."""
    return torch.tanh(sample) * 0.7 + 0.1 * torch.sin(time / 100 + torch.arange(len(sample.flatten())).reshape(sample.shape))


def schedulers(out):
    trained = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    silent = {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
    cases = [
        (DDIMScheduler, {**trained, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}, [1, 4, 7]),
        (DDIMScheduler, {}, [3]),
        (DDIMScheduler, {"timestep_spacing": "linspace", "clip_sample_range": 0.5}, [1, 6]),
        (DDIMScheduler, {**trained, "timestep_spacing": "trailing", "prediction_type": "v_prediction", "clip_sample": False}, [1, 4]),
        (DDIMScheduler, {"prediction_type": "sample"}, [3]),
        (EulerDiscreteScheduler, {**trained, "timestep_spacing": "leading", "steps_offset": 1}, [1, 7]),
        (EulerDiscreteScheduler, {**trained}, [1, 5]),
        (EulerDiscreteScheduler, {**trained, "timestep_spacing": "trailing"}, [1, 4]),
        (EulerDiscreteScheduler, {"prediction_type": "v_prediction", "timestep_spacing": "leading"}, [4]),
        (EulerDiscreteScheduler, {"final_sigmas_type": "sigma_min"}, [4]),
        (EulerAncestralDiscreteScheduler, {**trained, "timestep_spacing": "trailing", "steps_offset": 1}, [1, 2, 4]),
        (EulerAncestralDiscreteScheduler, {**trained, "timestep_spacing": "leading", "steps_offset": 1}, [5]),
        (EulerAncestralDiscreteScheduler, {"prediction_type": "v_prediction"}, [1, 4]),
        (EulerDiscreteScheduler, {**trained, "use_karras_sigmas": True}, [1, 5]),
        (EulerDiscreteScheduler, {**trained, "use_exponential_sigmas": True, "timestep_spacing": "leading"}, [5]),
        (EulerDiscreteScheduler, {**trained, "use_beta_sigmas": True, "sigma_min": 0.05, "sigma_max": 12.0}, [6]),
        (HeunDiscreteScheduler, {**trained}, [1, 2, 5]),
        (HeunDiscreteScheduler, {"timestep_spacing": "leading", "prediction_type": "v_prediction"}, [4]),
        (HeunDiscreteScheduler, {**trained, "use_karras_sigmas": True, "timestep_spacing": "trailing"}, [4]),
        (HeunDiscreteScheduler, {**trained, "use_beta_sigmas": True}, [3]),
        (DPMSolverMultistepScheduler, {**trained}, [1, 2, 5, 16]),
        (DPMSolverMultistepScheduler, {**trained, "use_karras_sigmas": True}, [1, 6, 20]),
        (DPMSolverMultistepScheduler, {**trained, "use_karras_sigmas": True, "algorithm_type": "sde-dpmsolver++"}, [6, 16]),
        (DPMSolverMultistepScheduler, {**trained, "use_exponential_sigmas": True, "solver_type": "heun"}, [6]),
        (DPMSolverMultistepScheduler, {**trained, "use_beta_sigmas": True, "timestep_spacing": "leading", "steps_offset": 1}, [6]),
        (DPMSolverMultistepScheduler, {**trained, "use_lu_lambdas": True, "euler_at_final": True}, [17]),
        (DPMSolverMultistepScheduler, {**trained, "solver_order": 3, "timestep_spacing": "trailing"}, [4, 18]),
        (DPMSolverMultistepScheduler, {**trained, "solver_order": 3, "algorithm_type": "sde-dpmsolver++", "solver_type": "heun"}, [18]),
        (DPMSolverMultistepScheduler, {"solver_order": 1, "final_sigmas_type": "sigma_min"}, [4]),
        (DPMSolverMultistepScheduler, {"lower_order_final": False, "final_sigmas_type": "sigma_min", "timestep_spacing": "leading"}, [5]),
        (DPMSolverMultistepScheduler, {**trained, "lambda_min_clipped": -2.5, "prediction_type": "v_prediction"}, [5]),
        (DPMSolverMultistepScheduler, {**trained, "solver_type": "bh2", "prediction_type": "sample"}, [5]),
        (DPMSolverSinglestepScheduler, {**trained}, [1, 2, 5, 6]),
        (DPMSolverSinglestepScheduler, {**trained, "solver_order": 3}, [3, 4, 5, 6]),
        (DPMSolverSinglestepScheduler, {"final_sigmas_type": "sigma_min", "solver_order": 3, "solver_type": "heun"}, [6, 7]),
        (DPMSolverSinglestepScheduler, {**trained, "use_karras_sigmas": True, "algorithm_type": "sde-dpmsolver++"}, [4, 5]),
        (DPMSolverSinglestepScheduler, {**trained, "final_sigmas_type": "sigma_min", "prediction_type": "v_prediction"}, [4]),
        (DDIMScheduler, {**trained, **silent, "timestep_spacing": "trailing", "clip_sample": False}, [1, 5]),
        (EulerDiscreteScheduler, {**trained, **silent, "timestep_spacing": "trailing"}, [1, 5]),
        (EulerAncestralDiscreteScheduler, {**trained, **silent, "timestep_spacing": "trailing"}, [4]),
        (DPMSolverMultistepScheduler, {**trained, **silent, "use_karras_sigmas": True}, [6]),
        (UniPCMultistepScheduler, {**trained, **silent, "timestep_spacing": "trailing"}, [5]),
        (DEISMultistepScheduler, {**trained}, [1, 2, 5, 16]),
        (DEISMultistepScheduler, {**trained, "solver_order": 3, "timestep_spacing": "trailing"}, [5, 17]),
        (DEISMultistepScheduler, {"solver_order": 3, "lower_order_final": False, "prediction_type": "v_prediction"}, [5]),
        (DEISMultistepScheduler, {**trained, "use_karras_sigmas": True, "prediction_type": "sample"}, [5]),
        (KDPM2DiscreteScheduler, {**trained}, [1, 2, 5]),
        (KDPM2DiscreteScheduler, {"timestep_spacing": "leading", "prediction_type": "v_prediction"}, [4]),
        (KDPM2DiscreteScheduler, {**trained, "use_karras_sigmas": True, "timestep_spacing": "trailing"}, [4]),
        (KDPM2DiscreteScheduler, {**trained, "use_exponential_sigmas": True}, [3]),
        (UniPCMultistepScheduler, {**trained}, [1, 2, 5]),
        (UniPCMultistepScheduler, {**trained, "solver_order": 3, "use_karras_sigmas": True}, [3, 7]),
        (UniPCMultistepScheduler, {**trained, "solver_type": "bh1", "timestep_spacing": "leading", "final_sigmas_type": "sigma_min"}, [5]),
        (UniPCMultistepScheduler, {"solver_order": 3, "disable_corrector": [0, 2], "prediction_type": "v_prediction"}, [6]),
        (UniPCMultistepScheduler, {**trained, "lower_order_final": False, "final_sigmas_type": "sigma_min"}, [5]),
        (UniPCMultistepScheduler, {**trained, "use_beta_sigmas": True, "prediction_type": "sample"}, [4]),
        (LCMScheduler, {"clip_sample": False}, [1, 2, 4, 8]),
        (LCMScheduler, {"original_inference_steps": 30, "prediction_type": "v_prediction"}, [4]),
        (TCDScheduler, {}, [1, 2, 4, 8]),
        (TCDScheduler, {"original_inference_steps": 30, "prediction_type": "v_prediction", "clip_sample": True}, [4]),
        (TCDScheduler, {"prediction_type": "sample", "rescale_betas_zero_snr": True}, [5]),
        (DDIMScheduler, {"beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "trailing", "clip_sample": False}, [4]),
        (DPMSolverMultistepScheduler, {"beta_schedule": "squaredcos_cap_v2"}, [5]),
        (EulerDiscreteScheduler, {"beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "leading"}, [4]),
        (KDPM2AncestralDiscreteScheduler, {**trained}, [1, 2, 5]),
        (KDPM2AncestralDiscreteScheduler, {"timestep_spacing": "leading", "prediction_type": "v_prediction"}, [4]),
        (KDPM2AncestralDiscreteScheduler, {**trained, "timestep_spacing": "trailing"}, [4]),
        (PNDMScheduler, {**trained, "skip_prk_steps": True, "steps_offset": 1}, [1, 2, 3, 6]),
        (PNDMScheduler, {"skip_prk_steps": True, "set_alpha_to_one": True, "timestep_spacing": "trailing"}, [5]),
        (PNDMScheduler, {"skip_prk_steps": True, "prediction_type": "v_prediction", "timestep_spacing": "linspace"}, [5]),
    ]
    recorded = []
    for kind, options, counts in cases:
        for steps in counts:
            scheduler = kind(**options)
            config = json.loads(scheduler.to_json_string(), parse_constant=str)
            scheduler.set_timesteps(steps)
            generator = torch.Generator().manual_seed(5)
            sample = torch.randn((1, 4, 2, 3), generator=generator) * scheduler.init_noise_sigma
            after, pictures = [], []
            for time in scheduler.timesteps:
                shown = scheduler.scale_model_input(sample, time)
                extra = {"generator": generator} if "generator" in inspect.signature(kind.step).parameters else {}
                step = scheduler.step(answer(shown, time), time, sample, **extra)
                sample = step.prev_sample
                after.append([float(f"{x:.8g}") for x in sample.flatten().tolist()])
                # The picture that the answer stands for, from those that tell it.
                picture = getattr(step, "pred_original_sample", None)
                if picture is not None:
                    pictures.append([float(f"{x:.8g}") for x in picture.flatten().tolist()])
            times = [float(time) for time in scheduler.timesteps]
            record = {"config": config, "steps": steps, "times": times, "after": after, "pictures": pictures}
            recorded.append(record)
    write_json(out / "schedulers.json", recorded)


def noise(out):
    recorded = []
    for seed, count in [(0, 16), (1, 20), (2**32 - 1, 37), (123456789, 256), (42, 700)]:
        values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        recorded.append({"seed": seed, **numbers(values)})
    write_json(out / "noise.json", recorded)
