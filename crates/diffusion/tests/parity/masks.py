"""Masked editing: parts of pictures are made anew, with the models of stable_diffusion.py under other schedulers."""

import json
import tempfile
from pathlib import Path

import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    StableDiffusionInpaintPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
    UniPCMultistepScheduler,
)
from PIL import Image

from shared import PROMPTS, draw, mask, numbers, picture, write_json
from stable_diffusion import TRAINED, lcm_pipe, sd15_pipe, sdxl_pipe

WITHOUT_OFFSET = {key: value for key, value in TRAINED.items() if key != "steps_offset"}
KARRAS = {**TRAINED, "use_karras_sigmas": True}
# The model, whether its UNet sees masks, the scheduler, how many steps, and the strength.
RUNS = [
    ("sd15", False, EulerDiscreteScheduler(**TRAINED, timestep_spacing="leading"), 4, 0.8),
    ("sd15", False, EulerDiscreteScheduler(**TRAINED), 2, 1.0),
    ("sd15", False, EulerAncestralDiscreteScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, DDIMScheduler(**TRAINED, clip_sample=False, set_alpha_to_one=False), 3, 1.0),
    ("sd15", False, PNDMScheduler(**TRAINED, skip_prk_steps=True, set_alpha_to_one=False), 4, 0.8),
    ("sd15", False, PNDMScheduler(**TRAINED, skip_prk_steps=True, set_alpha_to_one=False), 2, 1.0),
    ("sd15", False, DPMSolverMultistepScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, DPMSolverMultistepScheduler(**KARRAS, algorithm_type="sde-dpmsolver++"), 3, 1.0),
    ("sd15", False, DPMSolverSinglestepScheduler(**WITHOUT_OFFSET), 4, 0.8),
    ("sd15", False, DEISMultistepScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, UniPCMultistepScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, HeunDiscreteScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, KDPM2DiscreteScheduler(**TRAINED), 4, 0.8),
    ("sd15", False, LCMScheduler(clip_sample=False), 3, 1.0),
    ("lcm", False, LCMScheduler(clip_sample=False), 3, 1.0),
    ("sd15", True, DDIMScheduler(**TRAINED, clip_sample=False, set_alpha_to_one=False), 3, 1.0),
    ("sd15", True, EulerAncestralDiscreteScheduler(**TRAINED), 4, 0.8),
    ("sdxl", False, EulerAncestralDiscreteScheduler(**TRAINED, timestep_spacing="trailing"), 4, 0.8),
    ("sdxl", False, EulerDiscreteScheduler(**TRAINED, timestep_spacing="leading"), 3, 1.0),
    ("sdxl", True, EulerDiscreteScheduler(**TRAINED, timestep_spacing="leading"), 3, 1.0),
]
HEIGHT, WIDTH = 56, 72


def seeing(pipe):
    """Lets the UNet see a mask and a picture: its first layer gets the noise of a seed, which the tests know."""
    unet = pipe.unet
    weight = torch.randn((unet.conv_in.out_channels, 9, 3, 3), generator=torch.Generator().manual_seed(9)) * 0.125
    unet.conv_in.weight.data = weight.to(torch.float16).to(torch.float32)
    unet.conv_in.in_channels = 9
    unet.register_to_config(in_channels=9)


def made(model, sees_masks):
    """The parts of a model."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = {"sd15": sd15_pipe, "lcm": lcm_pipe, "sdxl": sdxl_pipe}[model](Path(folder) / "model")
    if sees_masks:
        seeing(pipe)
    return pipe


def record(kind, pipe, scheduler, **arguments):
    """A picture by a pipeline of another kind that has the same parts."""
    xl = isinstance(pipe, StableDiffusionXLPipeline)
    more = {"add_watermarker": False} if xl else {"requires_safety_checker": False}
    parts = {name: part for name, part in pipe.components.items() if part is not None} | {"scheduler": scheduler}
    if not xl:
        parts |= {"safety_checker": None, "feature_extractor": None}
    same = kind(**parts, **more)
    same.set_progress_bar_config(disable=True)
    run = {"prompt": PROMPTS[1], "negative": "blurry", "seed": 17, "guidance": 2.5, "width": WIDTH, "height": HEIGHT}
    run["scheduler"] = json.loads(scheduler.to_json_string(), parse_constant=str)
    run |= {"steps": arguments["num_inference_steps"], "strength": arguments["strength"]}
    drawn = draw(
        same, prompt=run["prompt"], negative_prompt=run["negative"], guidance_scale=run["guidance"],
        image=picture(WIDTH, HEIGHT), generator=torch.Generator().manual_seed(run["seed"]), **arguments,
    )
    return run | {"values": {name: numbers(value) for name, value in drawn.items()}}


def masks(out):
    runs = []
    for model, sees_masks, scheduler, steps, strength in RUNS:
        pipe = made(model, sees_masks)
        kind = StableDiffusionXLInpaintPipeline if model == "sdxl" else StableDiffusionInpaintPipeline
        arguments = {"num_inference_steps": steps, "strength": strength, "height": HEIGHT, "width": WIDTH}
        about = {"model": model, "sees_masks": sees_masks, "order": "masked"}
        runs.append(about | record(kind, pipe, scheduler, mask_image=mask(WIDTH, HEIGHT), **arguments))
        if sees_masks and strength == 1.0:
            # What the tests make without a mask and without a reference.
            white = Image.new("L", (WIDTH, HEIGHT), 255)
            run = record(kind, pipe, scheduler, mask_image=white, **(arguments | {"num_inference_steps": 2}))
            runs.append(about | {"order": "words"} | run)
    # Stable Diffusion XL with a reference alone.
    for scheduler, steps in [
        (EulerAncestralDiscreteScheduler(**TRAINED, timestep_spacing="trailing"), 4),
        (HeunDiscreteScheduler(**TRAINED, timestep_spacing="leading"), 3),
    ]:
        about = {"model": "sdxl", "sees_masks": False, "order": "reference"}
        arguments = {"num_inference_steps": steps, "strength": 0.8}
        runs.append(about | record(StableDiffusionXLImg2ImgPipeline, made("sdxl", False), scheduler, **arguments))
    write_json(out / "masks.json", runs)
