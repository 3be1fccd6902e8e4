"""The tiny models with another VAE than their own, in each of the forms in which one comes."""

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import save_file

import single_file
from shared import draw, empty, numbers, picture, randomise, rounded, write_json
from stable_diffusion import autoencoder


def record(pipe, model, path, size, steps, guidance):
    """The encoded reference and the picture with the VAE of the pipeline."""
    height, width = size
    pixels = torch.tensor(list(picture(width, height).getdata()), dtype=torch.float32).reshape(height, width, 3)
    encoded = pipe.vae.encode((pixels / 127.5 - 1).permute(2, 0, 1)[None])
    means = encoded.latents if isinstance(pipe.vae, AutoencoderTiny) else encoded.latent_dist.mean
    values = {"means": means * pipe.vae.config.scaling_factor}
    drawn = draw(
        pipe, prompt="a fox", height=height, width=width, num_inference_steps=steps, guidance_scale=guidance,
        generator=torch.Generator().manual_seed(31),
    )
    values |= {"latent": drawn[f"step.{len(drawn) - 2}"], "picture": drawn["picture"]}
    case = {"model": model, "vae": path, "prompt": "a fox", "negative": "", "seed": 31, "steps": steps}
    case |= {"guidance": guidance, "width": width, "height": height}
    return case | {"values": {name: numbers(value) for name, value in values.items()}}


def without_prefix(vae):
    return {name.removeprefix("first_stage_model."): tensor for name, tensor in single_file.old_vae(vae).items()}


def usual(out, folder):
    pipe = StableDiffusionPipeline.from_pretrained(out / "sd15", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    vae = rounded(autoencoder((4, 8, 8, 8), 2, 81, norm_num_groups=4), torch.float16)
    vae.to(torch.float16).save_pretrained(folder / "large")
    # As in published files, with what its training needed.
    old = without_prefix(vae) | {"loss.logvar": torch.zeros(1), "model_ema.decay": torch.zeros(1)}
    save_file(old, folder / "original.safetensors")
    tiny = randomise(AutoencoderTiny(
        encoder_block_out_channels=(4, 4, 4, 4), decoder_block_out_channels=(4, 4, 4, 4),
        num_encoder_blocks=(1, 2, 1, 2), num_decoder_blocks=(2, 1, 2, 1), latent_channels=4,
    ), 82)
    tiny.save_pretrained(folder / "tiny")
    # A file that lies alone says less than its folder.
    alone = {path: f"{path}/diffusion_pytorch_model.safetensors" for path in ["large", "tiny"]}
    single = lambda path: AutoencoderKL.from_single_file(path, config=str(folder / "large"), torch_dtype=torch.float32)
    small = lambda path: AutoencoderTiny.from_pretrained(folder / "tiny", torch_dtype=torch.float32)
    readers = {
        "large": lambda path: AutoencoderKL.from_pretrained(path, torch_dtype=torch.float32),
        "original.safetensors": single, alone["large"]: single, "tiny": small, alone["tiny"]: small,
    }
    cases = []
    for path, read in readers.items():
        pipe.vae = read(folder / path)
        cases.append(record(pipe, "sd15", path, (56, 72), 2, 2.5))
    return cases


def xl(out, folder):
    pipe = StableDiffusionXLPipeline.from_pretrained(out / "sdxl", torch_dtype=torch.float32, add_watermarker=False)
    pipe.set_progress_bar_config(disable=True)
    vae = rounded(autoencoder((4, 4, 4, 8), 1, 83, norm_num_groups=4, scaling_factor=0.13025), torch.float16)
    vae.to(torch.float16).save_pretrained(folder / "large_xl")
    prefixed = {f"first_stage_model.{name}": tensor for name, tensor in without_prefix(vae).items()}
    save_file(prefixed, folder / "original_xl.safetensors")
    cases = []
    for path in ["large_xl", "original_xl.safetensors"]:
        pipe.vae = AutoencoderKL.from_pretrained(folder / "large_xl", torch_dtype=torch.float32)
        cases.append(record(pipe, "sdxl", path, (56, 72), 2, 0.0))
    return cases


def other_vae(out):
    folder = empty(out / "other_vae")
    folder.mkdir()
    write_json(folder / "expected.json", usual(out, folder) + xl(out, folder))
