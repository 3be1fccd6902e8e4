"""Makes tiny models with random weights, and records their pictures by diffusers in 32 bits.

    python -m venv V && V/bin/pip install -r requirements.txt && V/bin/python make.py [FOLDER [MODEL...]]

Nothing is downloaded. The Rust tests in ../parity.rs and ../parity/ compare with `expected.json` of each model,
`schedulers.json` and `noise.json`, beside this file or in FOLDER.
"""

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import clip_tokenizers
import clip_vocabulary
import comfyui
import flux2_klein
import float8
import generated
import lora
import masks
import other_vae
import schedulers
import single_file
import stable_diffusion
import textual_inversion
import weighted
import z_image

MAKERS = [
    float8.float8,
    schedulers.noise,
    schedulers.schedulers,
    clip_tokenizers.clip_tokenizers,
    clip_vocabulary.clip_vocabulary,
    stable_diffusion.sd15,
    stable_diffusion.lcm,
    stable_diffusion.turbo,
    stable_diffusion.sdxs,
    stable_diffusion.sdxl,
    masks.masks,
    single_file.single_sd1,
    single_file.single_sd2,
    single_file.single_sdxl,
    single_file.published,
    flux2_klein.klein,
    z_image.z_image,
    comfyui.comfyui,
    lora.lora,
    textual_inversion.textual_inversion,
    other_vae.other_vae,
    weighted.weighted_prompts,
    generated.generated,
]

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    out.mkdir(parents=True, exist_ok=True)
    for make in MAKERS:
        if len(sys.argv) < 3 or make.__name__ in sys.argv[2:]:
            make(out)
