"""Random models of each family, written to a folder."""

import dataclasses
import json
import math

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import drawn_schedulers
import drawn_singles
import lora
from shared import save
from stable_diffusion import added, tokenizer

TEXTS = ["blurry", "", "a fox, strange"]


@dataclasses.dataclass
class Drawing:
    """A model in a folder, and how it is used."""

    kind: type
    # The fields that are not usual.
    odd: list
    # Gives the arguments of diffusers, and the settings of Tintype.
    settings: callable
    # Both sides of pictures are multiples of this number.
    multiple: callable = lambda pipe: pipe.vae_scale_factor
    # Gives the latent picture as Tintype has it.
    latent: callable = lambda latent, height, width: latent
    # Configurations, with the classes that know their defaults.
    kinds: dict = dataclasses.field(default_factory=dict)
    # The name of a single file, if the model is one.
    single: str = ""
    loras: dict = dataclasses.field(default_factory=dict)
    loading: dict = dataclasses.field(default_factory=dict)


def odd_fields(rng, choices, odd, part, chance):
    """Seldom one or two of the unusual values of a part."""
    fields = {}
    while rng.random() < chance and len(fields) < 2:
        name = rng.choice(list(choices))
        fields[name] = rng.choice(choices[name])
        odd.append(f"{part} {name}")
    return fields


UNET = {
    "only_cross_attention": [True], "dual_cross_attention": [True], "upcast_attention": [True], "dropout": [0.1],
    "resnet_time_scale_shift": ["scale_shift"], "act_fn": ["gelu", "mish", "relu", "swish"], "downsample_padding": [0],
    "class_embed_type": ["timestep", "identity"], "num_class_embeds": [3], "mid_block_scale_factor": [0.7],
    "center_input_sample": [True], "resnet_skip_time_act": [True], "resnet_out_scale_factor": [0.8],
    "time_embedding_type": ["fourier"], "time_embedding_dim": [32], "time_embedding_act_fn": ["silu", "gelu"],
    "timestep_post_act": ["silu"], "conv_in_kernel": [1, 5], "conv_out_kernel": [1, 5], "attention_type": ["gated"],
    "class_embeddings_concat": [True], "mid_block_only_cross_attention": [True], "cross_attention_norm": ["layer_norm"],
    "addition_embed_type": ["text"], "encoder_hid_dim": [16], "mid_block_type": [None, "UNetMidBlock2D",
    "UNetMidBlock2DSimpleCrossAttn"], "norm_num_groups": [None], "addition_embed_type_num_heads": [2],
    "sample_size": [[8, 12]], "reverse_transformer_layers_per_block": [1],
}


def unet(rng, context, odd, xl=None, channels=4, chance=0.3):
    """A UNet for states of the text of a width; `xl` is the length of the embedding of a whole prompt."""
    levels = rng.randint(1, 4)
    groups, head = rng.choice([1, 2, 4]), rng.choice([1, 2])
    blocks = [rng.choice([size for size in (4, 8, 12, 16) if size % (groups * head) == 0]) for _ in range(levels)]
    heads = [rng.choice([count for count in (1, 2, 4) if size % count == 0]) for size in blocks]
    attends = [rng.random() < 0.6 for _ in range(levels)]
    way = {"down": attends, "up": attends[::-1]}
    if rng.random() < 0.15:
        way["up"] = [rng.random() < 0.6 for _ in range(levels)]
    kinds = {side: [f"CrossAttn{side.title()}Block2D" if one else f"{side.title()}Block2D" for one in each]
             for side, each in way.items()}
    if rng.random() < 0.06:
        at, other = rng.randrange(levels), rng.choice(["Attn", "Resnet", "SimpleCrossAttn", "K"])
        name = {"Resnet": "ResnetDownsampleBlock2D"}.get(other, f"{other}DownBlock2D")
        kinds["down"][at] = name
        kinds["up"][levels - 1 - at] = {"Resnet": "ResnetUpsampleBlock2D"}.get(other, f"{other}UpBlock2D")
        odd.append(f"unet {name}")
    depth = rng.choice([1, 1, 2, [rng.randint(1, 3) for _ in range(levels)]])
    layers = rng.randint(1, 3)
    if rng.random() < 0.06:
        layers = [rng.randint(1, 2) for _ in range(levels)]
        odd.append("unet layers_per_block")
    fields = {
        "sample_size": rng.choice([8, 16, 64]), "in_channels": channels, "out_channels": channels,
        "block_out_channels": blocks, "down_block_types": kinds["down"], "up_block_types": kinds["up"],
        "layers_per_block": layers, "transformer_layers_per_block": depth, "norm_num_groups": groups,
        "attention_head_dim": rng.choice([head, heads]), "cross_attention_dim": context,
        "use_linear_projection": rng.random() < 0.5, "norm_eps": rng.choice([1e-5, 1e-6]),
        "flip_sin_to_cos": rng.random() < 0.9, "freq_shift": rng.choice([0, 0, 0, 1]),
    }
    if rng.random() < 0.12:
        fields["time_cond_proj_dim"] = rng.choice([8, 16])
    if xl:
        waves = rng.choice([4, 8])
        fields |= {"addition_embed_type": "text_time", "addition_time_embed_dim": waves}
        fields["projection_class_embeddings_input_dim"] = xl + 6 * waves
    fields |= odd_fields(rng, UNET, odd, "unet", chance)
    return UNet2DConditionModel(**fields)


VAE = {
    "act_fn": ["gelu", "relu", "swish"], "mid_block_add_attention": [False], "use_quant_conv": [False], "shift_factor": [0.1],
    "use_post_quant_conv": [False], "force_upcast": [False], "latents_mean": [[0.1, -0.2, 0.3, 0.0]],
    "latents_std": [[1.1, 0.9, 1.2, 1.0]], "sample_size": [64],
}
TINY = {
    "act_fn": ["gelu", "silu", "mish"], "latent_magnitude": [2], "latent_shift": [0.3], "upsampling_scaling_factor": [3],
    "shift_factor": [0.2], "upsample_fn": ["bilinear", "nearest-exact"],
}


def vae(rng, channels, odd, usual=False, chance=0.3, **more):
    """A large or a tiny autoencoder."""
    levels = rng.choice([2, 3, 4, 4])
    if not usual and rng.random() < 0.2:
        sizes = [rng.choice([4, 8])] * levels
        fields = {"encoder_block_out_channels": sizes, "decoder_block_out_channels": sizes, "latent_channels": channels}
        fields |= {f"num_{side}_blocks": [rng.randint(1, 2) for _ in range(levels)] for side in ("encoder", "decoder")}
        fields["scaling_factor"] = rng.choice([1.0, 0.5])
        return AutoencoderTiny(**fields, **odd_fields(rng, TINY, odd, "vae", chance))
    groups = rng.choice([1, 2, 4])
    fields = {
        "block_out_channels": [rng.choice([4, 8]) for _ in range(levels)], "layers_per_block": rng.randint(1, 2),
        "down_block_types": ["DownEncoderBlock2D"] * levels, "up_block_types": ["UpDecoderBlock2D"] * levels,
        "latent_channels": channels, "norm_num_groups": groups, "scaling_factor": rng.choice([0.18215, 0.13025, 0.5]),
    }
    if rng.random() < 0.05:
        fields["up_block_types"][rng.randrange(levels)] = "AttnUpDecoderBlock2D"
        odd.append("vae up_block_types")
    return AutoencoderKL(**{**fields, **more, **odd_fields(rng, VAE, odd, "vae", chance)})


CLIP = {
    "hidden_act": ["gelu_new", "gelu_pytorch_tanh", "silu", "relu"], "layer_norm_eps": [1e-3], "attention_dropout": [0.1],
    "use_attention_mask": [True], "eos_token_id": [2, 5], "max_position_embeddings": [40, 128], "initializer_factor": [0.5],
}


def clip(rng, vocabulary, width, odd, kind=CLIPTextModel, least=1, pooled=None, chance=0.2):
    fields = {
        "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": width * rng.choice([2, 4]),
        "num_hidden_layers": rng.randint(least, 3), "num_attention_heads": rng.choice([1, 2, 4]),
        "max_position_embeddings": 77, "hidden_act": rng.choice(["quick_gelu", "gelu"]),
        "projection_dim": pooled or width, "bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1,
    }
    fields |= odd_fields(rng, CLIP, odd, "text_encoder", chance)
    return kind(CLIPTextConfig(**fields, attn_implementation="eager"))


TOKENIZER = {
    "model_max_length": [40, 128, 10**30], "padding_side": ["left"], "do_lower_case": [False], "errors": ["ignore"],
    "add_prefix_space": [True], "truncation_side": ["left"],
}


def words(rng, folder, odd):
    special = added if rng.random() < 0.3 else str
    made = tokenizer(folder, rng.choice(["<|endoftext|>", "!"]), special)
    fields = odd_fields(rng, TOKENIZER, odd, folder.name, 0.08)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(config, indent=2) + "\n")
    return made


def guidance(rng):
    """Arguments of diffusers and settings of Tintype: guidance, and what is not to be seen."""
    strength, negative = rng.choice([0.0, 1.0, 2.0, 3.5]), rng.choice(TEXTS)
    given = {"guidance_scale": strength, "negative_prompt": negative}
    return given, {"guidance": strength, "negative": negative}


def guidance_xl(rng):
    given, found = guidance(rng)
    # An empty text stands for none in Tintype.
    if not given["negative_prompt"]:
        del given["negative_prompt"]
    return given, found


def folder_of(pipe, folder, rng, parts):
    """Writes a model; the weights of its parts have random types, and some are cut into several files."""
    dtypes = {part: rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16]) for part in parts}
    shards = {part: "20KB" for part in parts if rng.random() < 0.15}
    save(pipe, folder, parts, dtypes, shards)


def loras(rng, pipe, folder, prefixes):
    """Up to two LoRA files with the names of kohya or PEFT, for random layers."""
    if rng.random() > 0.25:
        return {}
    found = {}
    for number in range(rng.randint(1, 2)):
        name = f"lora_{number}.safetensors"
        layers = {part: list(lora.layers(getattr(pipe, part), lambda _: True)) for part in prefixes}
        names = [name for part in layers for name in layers[part] if "text" not in part or name != "text_projection"]
        chosen = set(rng.sample(names, max(1, len(names) // 3)))
        # diffusers leaves out the attention of a text encoder in which no layer of this name is changed.
        chosen |= {name for name in names if name.endswith("out_proj")}
        rank, alpha, seed = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.randrange(1000)
        if rng.random() < 0.5:
            # diffusers leaves this layer out where it has such a name.
            chosen = {name for name in chosen if not name.startswith("add_embedding")}
            text = lambda part: lora.text_name if "text" in part else str
            parts = {prefix: (getattr(pipe, part), chosen.__contains__, text(part)) for part, prefix in prefixes.items()}
            lora.kohya(folder / name, parts, rank, float(alpha), seed)
        else:
            parts = {part: (getattr(pipe, part), chosen.__contains__) for part in prefixes}
            lora.peft(folder / name, parts, rank, alpha, seed)
        found[name] = rng.choice([1.0, 0.7, -0.4])
    return found


def sd15(rng, folder):
    if rng.random() < 0.12:
        kind = drawn_singles.single(rng, folder, rng.choice(["one", "two"]))
        return Drawing(kind=kind, odd=["single file"], settings=guidance, single=drawn_singles.FILE)
    odd = []
    tokens, vocabulary = words(rng, folder / "tokenizer", odd)
    width, channels = rng.choice([8, 16, 24]), rng.choice([4, 4, 4, 3, 8])
    scheduler = drawn_schedulers.scheduler(rng, odd)
    given = type(scheduler).from_config(scheduler.config)
    pipe = StableDiffusionPipeline(
        vae=vae(rng, channels, odd, chance=0.2), text_encoder=clip(rng, vocabulary, width, odd), tokenizer=tokens,
        unet=unet(rng, width, odd, channels=channels), scheduler=scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )
    return stable(rng, pipe, given, folder, odd, {"text_encoder": "lora_te", "unet": "lora_unet"}, guidance)


def stable(rng, pipe, given, folder, odd, prefixes, settings):
    folder_of(pipe, folder, rng, [*prefixes, "vae"])
    # The pipeline has changed some fields of its own.
    given.save_pretrained(folder / "scheduler")
    kinds = {f"{part}/config.json": type(getattr(pipe, part)) for part in ("unet", "vae")}
    kinds["scheduler/scheduler_config.json"] = type(given)
    return Drawing(
        kind=type(pipe), odd=odd, settings=settings, kinds=kinds, loras=loras(rng, pipe, folder, prefixes),
        loading={"safety_checker": None} if isinstance(pipe, StableDiffusionPipeline) else {"add_watermarker": False},
    )


def sdxl(rng, folder):
    if rng.random() < 0.12:
        kind = drawn_singles.single(rng, folder, "xl")
        return Drawing(kind=kind, odd=["single file"], settings=guidance_xl, single=drawn_singles.FILE)
    odd = []
    tokens, vocabulary = words(rng, folder / "tokenizer", odd)
    tokens_2, vocabulary_2 = words(rng, folder / "tokenizer_2", odd)
    width, width_2 = rng.choice([8, 16]), rng.choice([8, 12, 24])
    pooled = rng.choice([width_2, 8])
    zeros = rng.random() < 0.7
    scheduler = drawn_schedulers.scheduler(rng, odd)
    given = type(scheduler).from_config(scheduler.config)
    pipe = StableDiffusionXLPipeline(
        vae=vae(rng, 4, odd, chance=0.2), text_encoder=clip(rng, vocabulary, width, odd, least=2),
        text_encoder_2=clip(rng, vocabulary_2, width_2, odd, CLIPTextModelWithProjection, 2, pooled), tokenizer=tokens,
        tokenizer_2=tokens_2, unet=unet(rng, width + width_2, odd, pooled), add_watermarker=False,
        scheduler=scheduler, force_zeros_for_empty_prompt=zeros,
    )

    prefixes = {"text_encoder": "lora_te1", "text_encoder_2": "lora_te2", "unet": "lora_unet"}
    return stable(rng, pipe, given, folder, odd, prefixes, guidance_xl)
