"""FLUX.2 klein and Z-Image in files for ComfyUI: which rows of the tensors in a folder those in such a file hold.

`diffusers` reads a file that is made so, and finds the same tensors. The names and sizes of the published files are
recorded, too.
"""

import gzip
import json
import re
import tempfile
from pathlib import Path

import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2, Flux2Transformer2DModel, ZImageTransformer2DModel
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from shared import empty, write_json
from single_file import old_vae

FLUX2 = {
    r"x_embedder\.": "img_in.", r"context_embedder\.": "txt_in.", r"proj_out\.": "final_layer.linear.",
    r"time_guidance_embed\.timestep_embedder\.linear_1\.": "time_in.in_layer.",
    r"time_guidance_embed\.timestep_embedder\.linear_2\.": "time_in.out_layer.",
    r"(\w+_stream_modulation\w*)\.linear\.": r"\1.lin.", r"norm_out\.linear\.": "final_layer.adaLN_modulation.1.",
    r"transformer_blocks\.(\d+)\.attn\.norm_([qk])\.weight": r"double_blocks.\1.img_attn.norm.\2_norm.scale",
    r"transformer_blocks\.(\d+)\.attn\.norm_added_([qk])\.weight": r"double_blocks.\1.txt_attn.norm.\2_norm.scale",
    r"transformer_blocks\.(\d+)\.attn\.to_[qkv]\.": r"double_blocks.\1.img_attn.qkv.",
    r"transformer_blocks\.(\d+)\.attn\.add_[qkv]_proj\.": r"double_blocks.\1.txt_attn.qkv.",
    r"transformer_blocks\.(\d+)\.attn\.to_out\.0\.": r"double_blocks.\1.img_attn.proj.",
    r"transformer_blocks\.(\d+)\.attn\.to_add_out\.": r"double_blocks.\1.txt_attn.proj.",
    r"transformer_blocks\.(\d+)\.ff\.linear_in\.": r"double_blocks.\1.img_mlp.0.",
    r"transformer_blocks\.(\d+)\.ff\.linear_out\.": r"double_blocks.\1.img_mlp.2.",
    r"transformer_blocks\.(\d+)\.ff_context\.linear_in\.": r"double_blocks.\1.txt_mlp.0.",
    r"transformer_blocks\.(\d+)\.ff_context\.linear_out\.": r"double_blocks.\1.txt_mlp.2.",
    r"single_transformer_blocks\.(\d+)\.attn\.norm_([qk])\.weight": r"single_blocks.\1.norm.\2_norm.scale",
    r"single_transformer_blocks\.(\d+)\.attn\.to_qkv_mlp_proj\.": r"single_blocks.\1.linear1.",
    r"single_transformer_blocks\.(\d+)\.attn\.to_out\.": r"single_blocks.\1.linear2.",
}
Z_IMAGE = {
    r"all_(x_embedder|final_layer)\.2-1\.": r"\1.", r"(.*)\.attention\.to_[qkv]\.": r"\1.attention.qkv.",
    r"(.*)\.attention\.to_out\.0\.": r"\1.attention.out.", r"(.*)\.attention\.norm_([qk])\.": r"\1.attention.\2_norm.",
}


def sources(tensors, patterns):
    """For each tensor of a file the names of those in a folder, and their rows."""
    found = {}
    for name in tensors:
        matches = [(pattern, old) for pattern, old in patterns.items() if re.match(pattern, name)]
        old = re.sub(*matches[0], name, count=1) if matches else name
        old = old.replace("q_norm.scale", "query_norm.scale").replace("k_norm.scale", "key_norm.scale")
        rows = tensors[name].shape[0]
        found.setdefault(old, []).append([name, 0, rows])
        if "adaLN_modulation" in old and patterns is FLUX2:
            # The shift before the scale.
            found[old] = [[name, rows // 2, rows], [name, 0, rows // 2]]
    order = lambda part: "qkv".index(re.search(r"_([qkv])(_proj)?\.", part[0])[1])
    return {old: sorted(parts, key=order) if len(parts) == 3 else parts for old, parts in found.items()}


def joined(tensors, found):
    return {
        old: torch.cat([tensors[name][begin:end] for name, begin, end in parts]).contiguous()
        for old, parts in found.items()
    }


def transformer(folder, kind, patterns):
    model = kind.from_pretrained(folder / "transformer")
    tensors = model.state_dict()
    found = sources(tensors, patterns)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.safetensors"
        save_file(joined(tensors, found), path)
        read = kind.from_single_file(path, config=str(folder), subfolder="transformer", local_files_only=True)
    read = read.state_dict()
    assert read.keys() == tensors.keys() and all(torch.equal(read[name], tensors[name]) for name in tensors)
    return {old: {"shape": list(tensor.shape), "rows": found[old]} for old, tensor in joined(tensors, found).items()}


def original_vae(vae):
    """As the first program of FLUX.2 has them, the outer convolutions are parts of the encoder and the decoder."""
    old = {name.removeprefix("first_stage_model."): tensor for name, tensor in old_vae(vae).items()}
    if not isinstance(vae, AutoencoderKLFlux2):
        return old
    inner = lambda name: re.sub(r"^post_", "decoder.post_", re.sub(r"^quant_", "encoder.quant_", name))
    return {inner(name): tensor for name, tensor in old.items()}


def autoencoder(folder, kind):
    vae = kind.from_pretrained(folder / "vae")
    tensors, old = vae.state_dict(), original_vae(vae)
    outer = {re.sub(r"^(encoder|decoder)\.(?=(post_)?quant_conv)", "", name): tensor for name, tensor in old.items()}
    read = convert_ldm_vae_checkpoint(outer, vae.config)
    assert all(torch.equal(read[name], tensors[name].reshape(read[name].shape)) for name in read)
    assert len(read) == len([name for name in tensors if not name.startswith("bn.")])
    # They lie in the same order.
    pairs = zip(tensors, old.items())
    return {
        name: {"shape": list(tensor.shape), "rows": [[new, 0, tensor.shape[0] if tensor.dim() else 1]]}
        for new, (name, tensor) in pairs
    }


def published():
    """The names and sizes in the published files, as the architectures have them."""
    shapes = lambda tensors: {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}
    old = lambda model, patterns: joined(model.state_dict(), sources(model.state_dict(), patterns))
    with torch.device("meta"):
        sizes = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
        text = lambda width, inner: Qwen3ForCausalLM(Qwen3Config(
            hidden_size=width, intermediate_size=inner, num_hidden_layers=36, tie_word_embeddings=True, **sizes,
        ))
        words = lambda model: {name: x for name, x in model.state_dict().items() if not name.startswith("lm_head")}
        klein = lambda doubles, singles, heads, context: old(Flux2Transformer2DModel(
            num_layers=doubles, num_single_layers=singles, num_attention_heads=heads, joint_attention_dim=context,
            guidance_embeds=False,
        ), FLUX2)
        small, large = words(text(2560, 9728)), words(text(4096, 12288))
        vae = original_vae(AutoencoderKLFlux2())
        z_image = old(ZImageTransformer2DModel(), Z_IMAGE) | {"norm_final.weight": torch.zeros(3840)}
        ae = original_vae(AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=16, use_quant_conv=False,
            use_post_quant_conv=False,
        ))
        models = {
            "flux-2-klein-4b": [klein(5, 20, 24, 7680), small, vae],
            "flux-2-klein-base-9b": [klein(8, 24, 32, 12288), large, vae],
            "z_image_turbo_bf16": [z_image, small, ae],
            "z_image_bf16": [z_image, small, ae],
        }
    return {name: [shapes(part) for part in parts] for name, parts in models.items()}


def comfyui(out):
    folder = empty(out / "comfyui")
    folder.mkdir()
    klein, z_image = out / "klein", out / "z_image"
    write_json(folder / "rows.json", {
        "klein": {
            "transformer": transformer(klein, Flux2Transformer2DModel, FLUX2),
            "vae": autoencoder(klein, AutoencoderKLFlux2),
        },
        "z_image": {
            "transformer": transformer(z_image, ZImageTransformer2DModel, Z_IMAGE),
            "vae": autoencoder(z_image, AutoencoderKL),
        },
    })
    text = json.dumps(published(), separators=(",", ":"))
    (folder / "published.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
