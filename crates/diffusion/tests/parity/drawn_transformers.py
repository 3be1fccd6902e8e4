"""Random models of FLUX.2 klein and of Z-Image, written to a folder."""

import json

import torch
from diffusers import (
    AutoencoderKLFlux2,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

import drawn_schedulers
import lora
from drawn_parts import TEXTS, Drawing, folder_of, odd_fields, vae
from flux2_klein import rows_as_map
from qwen import qwen_tokenizer

QWEN = {
    "hidden_act": ["gelu", "relu"], "attention_bias": [True], "rms_norm_eps": [1e-3], "attention_dropout": [0.1],
    "tie_word_embeddings": [False], "layer_types": ["sliding"], "rope_parameters": [
        {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}, {"rope_type": "default", "rope_theta": 10_000.0},
        {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0},
    ],
}


def text_encoder(rng, vocabulary, width, layers, odd):
    shared = rng.choice([1, 2])
    fields = {
        "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": width * rng.choice([1, 2, 3]),
        "num_hidden_layers": layers, "num_attention_heads": shared * rng.choice([1, 2]), "num_key_value_heads": shared,
        "head_dim": rng.choice([4, 8]), "max_position_embeddings": 1024, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    fields |= odd_fields(rng, QWEN, odd, "text_encoder", 0.15)
    if fields.get("layer_types") == "sliding":
        fields |= {"layer_types": ["sliding_attention"] * layers, "sliding_window": 8, "use_sliding_window": True}
    return Qwen3ForCausalLM(Qwen3Config(**fields, attn_implementation="eager"))


TOKENIZER = {"padding_side": ["left"], "add_prefix_space": [True], "model_max_length": [40], "add_bos_token": [True]}


def words(rng, folder, odd):
    made = qwen_tokenizer(folder, whole=rng.random() < 0.5)
    fields = odd_fields(rng, TOKENIZER, odd, "tokenizer", 0.08)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2) + "\n")
    return made


def halved(rng, odd_and_even):
    """Even numbers, at least 2, for the axes of positions."""
    return [2 * rng.randint(1, 3) for _ in range(odd_and_even)]


def loras(rng, pipe, folder):
    if rng.random() > 0.25:
        return {}
    names = list(lora.layers(pipe.transformer, lambda _: True))
    chosen = set(rng.sample(names, max(1, len(names) // 3)))
    rank, alpha = rng.choice([1, 2, 4]), rng.choice([1, 2, 4])
    lora.peft(folder / "lora_0.safetensors", {"transformer": (pipe.transformer, chosen.__contains__)}, rank, alpha, 5)
    return {"lora_0.safetensors": rng.choice([1.0, 0.7, -0.4])}


FLUX2 = {
    "mlp_ratio": [2.0, 2.5], "rope_theta": [500, 10_000], "eps": [1e-4], "guidance_embeds": [True], "patch_size": [2],
    "timestep_guidance_channels": [64], "out_channels": [16],
}
FLUX2_VAE = {
    "act_fn": ["gelu"], "mid_block_add_attention": [False], "use_quant_conv": [False], "use_post_quant_conv": [False],
    "batch_norm_eps": [1e-2], "patch_size": [[1, 1]], "force_upcast": [False], "scaling_factor": [0.5], "shift_factor": [0.1],
}


def flux2_klein(rng, folder):
    odd = []
    tokens, vocabulary = words(rng, folder / "tokenizer", odd)
    width, axes, channels = rng.choice([8, 12]), halved(rng, 4), rng.choice([4, 4, 2, 6])
    fields = {
        "in_channels": 4 * channels, "num_layers": rng.randint(1, 3), "num_single_layers": rng.randint(1, 3),
        "attention_head_dim": sum(axes), "num_attention_heads": rng.randint(1, 3), "joint_attention_dim": 3 * width,
        "timestep_guidance_channels": 32, "axes_dims_rope": axes, "guidance_embeds": False,
    }
    transformer = Flux2Transformer2DModel(**fields | odd_fields(rng, FLUX2, odd, "transformer", 0.25))
    blocks = [rng.choice([4, 8]) for _ in range(4)]
    fields = {
        "block_out_channels": blocks, "layers_per_block": rng.randint(1, 2), "latent_channels": channels,
        "norm_num_groups": rng.choice([1, 2, 4]), "sample_size": 64,
    }
    if rng.random() < 0.5:
        fields["decoder_block_out_channels"] = [rng.choice([4, 8, 12]) for _ in range(4)]
    distilled = rng.random() < 0.6
    pipe = Flux2KleinPipeline(
        scheduler=drawn_schedulers.flow(rng, odd), tokenizer=tokens, transformer=transformer, is_distilled=distilled,
        text_encoder=text_encoder(rng, vocabulary, width, rng.choice([27, 28, 29]), odd),
        vae=AutoencoderKLFlux2(**fields | odd_fields(rng, FLUX2_VAE, odd, "vae", 0.2)),
    )

    def settings(rng):
        strength = rng.choice([1.0, 2.0, 3.5])
        return {"guidance_scale": strength}, {"guidance": strength, "negative": ""}

    return drawing(rng, pipe, folder, odd, settings, rows_as_map)


def drawing(rng, pipe, folder, odd, settings, latent):
    folder_of(pipe, folder, rng, ["text_encoder", "transformer", "vae"])
    kinds = {f"{part}/config.json": type(getattr(pipe, part)) for part in ("transformer", "vae")}
    kinds["scheduler/scheduler_config.json"] = type(pipe.scheduler)
    return Drawing(
        kind=type(pipe), odd=odd, settings=settings, multiple=lambda pipe: 2 * pipe.vae_scale_factor, latent=latent,
        kinds=kinds, loras=loras(rng, pipe, folder),
    )


Z_IMAGE = {
    "norm_eps": [1e-3], "qk_norm": [False], "rope_theta": [100.0, 10_000.0], "t_scale": [500.0], "n_kv_heads": [1],
    "all_patch_size": [[1]], "all_f_patch_size": [[2]], "axes_lens": [[128, 32, 32]], "siglip_feat_dim": [12],
}


def z_image(rng, folder):
    odd = []
    tokens, vocabulary = words(rng, folder / "tokenizer", odd)
    width, axes, channels, heads = rng.choice([8, 12]), halved(rng, 3), rng.choice([4, 4, 8]), rng.randint(1, 3)
    fields = {
        "in_channels": channels, "dim": sum(axes) * heads, "n_layers": rng.randint(1, 3), "n_heads": heads,
        "n_refiner_layers": rng.randint(1, 2), "n_kv_heads": heads, "cap_feat_dim": width, "axes_dims": axes,
        "axes_lens": [512, 64, 64],
    }
    transformer = ZImageTransformer2DModel(**fields | odd_fields(rng, Z_IMAGE, odd, "transformer", 0.25))
    more = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": rng.choice([0.1159, 0.0])}
    model = text_encoder(rng, vocabulary, width, rng.randint(2, 4), odd)
    pipe = ZImagePipeline(
        scheduler=drawn_schedulers.flow(rng, odd), tokenizer=tokens, transformer=transformer,
        text_encoder=model.model if rng.random() < 0.7 else model,
        vae=vae(rng, channels, odd, usual=True, chance=0.2, **more),
    )

    def settings(rng):
        # The pipeline counts guidance from 0, Tintype from 1.
        strength, negative = rng.choice([0.0, 1.0, 2.5]), rng.choice(TEXTS)
        return {"guidance_scale": strength, "negative_prompt": negative}, {"guidance": strength + 1, "negative": negative}

    return drawing(rng, pipe, folder, odd, settings, lambda latent, height, width: latent)
