"""Stable Diffusion 1, 2 and XL in one file, with the names of their first programs.

`diffusers` reads each file by `from_single_file` and makes the recorded picture. The tables of words, which the whole
vocabulary makes large, are not kept: they are the noise of a seed, and the test adds them.
"""

import gzip
import json
import tempfile
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from clip_vocabulary import END, clip
from shared import PROMPTS, draw, numbers, randomise, rounded, write_json
from stable_diffusion import TRAINED, autoencoder, pipeline, text_encoder

VOCABULARY = 49_408
RESIDUAL = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
    "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
}
ENDS = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0", "conv_out": "out.2", "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}
OPEN_CLIP = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}


def replaced(name, pairs):
    """The name with its beginning, up to a dot, as the pairs say."""
    for new, old in pairs.items():
        if name.startswith(new + "."):
            return old + name[len(new):]
    return name


def old_unet(unet):
    """The blocks of both ways are numbered through: layers, and on the way down each change of size."""
    step = unet.config.layers_per_block + 1
    attends = ["CrossAttn" in kind for kind in unet.config.up_block_types]

    def old(name):
        way, *rest = name.split(".")
        if way not in ("down_blocks", "mid_block", "up_blocks"):
            return replaced(name, ENDS)
        level = int(rest.pop(0)) if way != "mid_block" else 0
        kind, layer, *rest = rest
        rest, layer, attention = ".".join(rest), int(layer), kind == "attentions"
        inner = rest if attention else replaced(rest, RESIDUAL)
        if way == "mid_block":
            return f"middle_block.{1 if attention else 2 * layer}.{inner}"
        if kind == "downsamplers":
            return f"input_blocks.{(level + 1) * step}.0.op.{rest.removeprefix('conv.')}"
        if kind == "upsamplers":
            return f"output_blocks.{level * step + step - 1}.{2 if attends[level] else 1}.{rest}"
        number = level * step + layer
        block = f"input_blocks.{number + 1}" if way == "down_blocks" else f"output_blocks.{number}"
        return f"{block}.{int(attention)}.{inner}"

    return {f"model.diffusion_model.{old(name)}": tensor for name, tensor in unet.state_dict().items()}


def old_vae(vae):
    levels = len(vae.config.block_out_channels)
    attention = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}

    def old(name, tensor):
        name = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        name = name.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        if "mid_block.attentions.0." in name:
            side, layer = name.split("mid_block.attentions.0.")
            name = f"{side}mid.attn_1.{replaced(layer, attention)}"
            # The linear layers were kernels of one pixel.
            tensor = tensor[..., None, None] if tensor.dim() == 2 else tensor
        for way in ("down", "up"):
            for level in range(levels):
                number = levels - 1 - level if way == "up" else level
                block = f"{way}_blocks.{level}"
                name = name.replace(f"{block}.resnets", f"{way}.{number}.block")
                name = name.replace(f"{block}.{way}samplers.0", f"{way}.{number}.{way}sample")
        return f"first_stage_model.{name}", tensor

    return dict(old(name, tensor) for name, tensor in vae.state_dict().items())


def flat(text):
    """The weights of a text encoder without the level that some versions of the library add."""
    return {name.removeprefix("text_model."): tensor for name, tensor in text.state_dict().items()}


def old_clip(text, prefix):
    return {f"{prefix}text_model.{name}": tensor for name, tensor in flat(text).items()}


def old_open_clip(text, prefix, more):
    """The layers of OpenCLIP; `more` is its last one, which Stable Diffusion 2 does not use."""
    tensors, old = flat(text), {}
    for name, tensor in tensors.items():
        if "self_attn" in name and "out_proj" not in name:
            continue
        if name == "text_projection.weight":
            name, tensor = "text_projection", tensor.T
        name = name.replace("embeddings.token_embedding", "token_embedding")
        name = name.replace("embeddings.position_embedding.weight", "positional_embedding")
        name = name.replace("final_layer_norm", "ln_final").replace("encoder.layers", "transformer.resblocks")
        name = name.replace("self_attn", "attn")
        for new, before in OPEN_CLIP.items():
            name = name.replace(new, before)
        old[name] = tensor
    for layer in range(text.config.num_hidden_layers):
        for kind in ["weight", "bias"]:
            parts = [tensors[f"encoder.layers.{layer}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            old[f"transformer.resblocks.{layer}.attn.in_proj_{kind}"] = torch.cat(parts)
    first, last = "transformer.resblocks.0.", f"transformer.resblocks.{text.config.num_hidden_layers}."
    if more:
        old |= {last + name.removeprefix(first): tensor + 1 for name, tensor in old.items() if name.startswith(first)}
    old["logit_scale"] = torch.tensor(4.6)
    return {prefix + name: tensor for name, tensor in old.items()}


def words(text, seed):
    """Gives a text encoder the noise of a seed as its table of words."""
    table = text.get_input_embeddings()
    table.weight.data = torch.randn(table.weight.shape, generator=torch.Generator().manual_seed(seed))
    return text


def encoder(width, activation, seed, kind=CLIPTextModel, layers=2, projection=None):
    text = text_encoder(VOCABULARY, width, activation, seed, kind, layers)
    config = text.config
    # The library lets 2 stand for the token of the highest number, as the published configurations do.
    config.num_attention_heads, config.eos_token_id = 1, 2
    config.projection_dim = projection or width
    return words(rounded(randomise(kind(config), seed), torch.float16), seed)


def unet(seed, channels, heads, **more):
    return rounded(randomise(UNet2DConditionModel(
        block_out_channels=channels, layers_per_block=2, attention_head_dim=heads, norm_num_groups=4, **more,
    ), seed), torch.float16)


def small_vae(seed, **more):
    return rounded(autoencoder((4, 4, 4, 8), 1, seed, norm_num_groups=4, **more), torch.float16)


def record(out, name, pipe, tensors, tables, steps, guidance, extras):
    """Writes the file, lets `from_single_file` read it, and records its picture. `tables` are the seeds of tables."""
    kind, prompt, size = type(pipe), PROMPTS[1], (56, 72)
    tensors = {name: tensor.contiguous() for name, tensor in (tensors | extras).items()}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "model.safetensors"
        save_file(tensors, whole)
        # The configurations and the tokenizers, without weights.
        pipe.save_pretrained(Path(folder) / "folder")
        for weights in (Path(folder) / "folder").glob("*/*.safetensors"):
            weights.unlink()
        read = kind.from_single_file(whole, config=str(Path(folder) / "folder"), local_files_only=True)
    read.set_progress_bar_config(disable=True)
    for mine, theirs in zip(pipe.components.values(), read.components.values()):
        if isinstance(mine, torch.nn.Module):
            assert all(torch.equal(a, b) for a, b in zip(mine.state_dict().values(), theirs.state_dict().values()))
    expected = {"prompt": prompt, "negative": "blurry", "seed": 11, "steps": steps, "guidance": guidance}
    expected |= {"width": size[1], "height": size[0], "tables": tables}
    arguments = {"prompt": prompt, "negative_prompt": "blurry", "guidance_scale": guidance}
    drawn = draw(
        read, height=size[0], width=size[1], num_inference_steps=steps,
        generator=torch.Generator().manual_seed(11), **arguments,
    )
    expected["values"] = {name: numbers(value) for name, value in drawn.items()}
    folder = out / "single"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", expected)
    narrow = lambda tensor: tensor.to(torch.float16) if tensor.is_floating_point() else tensor
    kept = {name: narrow(tensor) for name, tensor in tensors.items() if name not in tables}
    save_file(kept, folder / f"{name}.safetensors")


def single_sd1(out):
    text = encoder(16, "quick_gelu", 71)
    model = unet(72, (4, 8, 8, 8), (4, 8, 8, 8), sample_size=64, cross_attention_dim=16)
    vae = small_vae(73)
    scheduler = PNDMScheduler(**TRAINED, skip_prk_steps=True, set_alpha_to_one=False)
    pipe = pipeline(StableDiffusionPipeline, clip(END), text, model, vae, scheduler)
    prefix = "cond_stage_model.transformer."
    tensors = old_clip(text, prefix) | old_unet(model) | old_vae(vae)
    extras = {f"{prefix}text_model.embeddings.position_ids": torch.arange(77)[None], "alphas_cumprod": torch.zeros(3)}
    extras |= {"model_ema.decay": torch.zeros(1), "first_stage_model.loss.logvar": torch.zeros(1)}
    tables = {f"{prefix}text_model.embeddings.token_embedding.weight": 71}
    record(out, "sd1", pipe, tensors, tables, 3, 2.5, extras)


def single_sd2(out):
    text = encoder(24, "gelu", 74)
    model = unet(75, (4, 8, 8, 8), 1, sample_size=96, cross_attention_dim=24, use_linear_projection=True)
    vae = small_vae(76)
    scheduler = DDIMScheduler(**TRAINED, clip_sample=False, set_alpha_to_one=False, prediction_type="v_prediction")
    pipe = pipeline(StableDiffusionPipeline, clip("!"), text, model, vae, scheduler)
    prefix = "cond_stage_model.model."
    tensors = old_open_clip(text, prefix, True) | old_unet(model) | old_vae(vae)
    record(out, "sd2", pipe, tensors, {f"{prefix}token_embedding.weight": 74}, 3, 2.5, {"global_step": torch.zeros(1)})


def sdxl():
    """The pipeline, the tensors of its file, and the seeds of its tables."""
    text = encoder(8, "quick_gelu", 77, layers=3)
    text_2 = encoder(12, "gelu", 78, CLIPTextModelWithProjection, 3, 10)
    model = unet(
        79, (4, 8, 8), 1, sample_size=128, cross_attention_dim=20, use_linear_projection=True,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 3),
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=58,
    )
    vae = small_vae(80, scaling_factor=0.13025)
    pipe = StableDiffusionXLPipeline(
        vae=vae, text_encoder=text, text_encoder_2=text_2, tokenizer=clip(END), tokenizer_2=clip("!"), unet=model,
        scheduler=EulerDiscreteScheduler(**TRAINED, timestep_spacing="leading"), add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    first, second = "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."
    tensors = old_clip(text, first) | old_open_clip(text_2, second, False) | old_unet(model) | old_vae(vae)
    tables = {f"{first}text_model.embeddings.token_embedding.weight": 77, f"{second}token_embedding.weight": 78}
    return pipe, tensors, tables


def single_sdxl(out):
    record(out, "sdxl", *sdxl(), 3, 2.5, {})


def published(out):
    """Records the names and sizes of the tensors in the published files, as the architectures have them."""
    clip = {"vocab_size": VOCABULARY, "max_position_embeddings": 77}
    large = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, **clip}
    huge = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16, **clip}
    giant = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20, **clip}
    with torch.device("meta"):
        vae = old_vae(AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=4,
        ))
        first = CLIPTextModel(CLIPTextConfig(**large))
        sd1 = vae | old_clip(first, "cond_stage_model.transformer.")
        sd1 |= old_unet(UNet2DConditionModel(cross_attention_dim=768))
        ids = "cond_stage_model.transformer.text_model.embeddings.position_ids"
        sd1 |= {ids: torch.zeros(1, 77), "betas": torch.zeros(1000), "model_ema.num_updates": torch.zeros(1)}
        sd2 = vae | old_open_clip(CLIPTextModel(CLIPTextConfig(**huge)), "cond_stage_model.model.", True)
        sd2 |= old_unet(UNet2DConditionModel(
            cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20), use_linear_projection=True,
        ))
        # The matrix that the published file has and the model does not use.
        sd2["cond_stage_model.model.text_projection"] = torch.zeros(1024, 1024)
        sdxl = vae | old_clip(first, "conditioner.embedders.0.transformer.")
        second = CLIPTextModelWithProjection(CLIPTextConfig(**giant, projection_dim=1280))
        sdxl |= old_open_clip(second, "conditioner.embedders.1.model.", False) | old_unet(UNet2DConditionModel(
            cross_attention_dim=2048, attention_head_dim=(5, 10, 20), use_linear_projection=True,
            block_out_channels=(320, 640, 1280), transformer_layers_per_block=(1, 2, 10),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), addition_embed_type="text_time",
            addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
        ))
    shapes = lambda tensors: {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}
    text = json.dumps({"sd1": shapes(sd1), "sd2": shapes(sd2), "sdxl": shapes(sdxl)}, separators=(",", ":"))
    (out / "single").mkdir(exist_ok=True)
    (out / "single" / "published.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
