"""LoRA files whose layers have two matrices, or a third one for kernels, or lengths of their own, as LyCORIS writes them."""

import torch
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from safetensors.torch import save_file

# In turns: for linear layers, and for convolutions with kernels.
LINEAR = [
    (LohaModule, {"lora_dim": 2}),
    (LokrModule, {"lora_dim": 1}),
    (LokrModule, {"lora_dim": 1, "decompose_both": True}),
    (LokrModule, {"lora_dim": 64}),
]
KERNELS = [
    (LoConModule, {"lora_dim": 2, "use_tucker": True}),
    (LohaModule, {"lora_dim": 2, "use_tucker": True}),
    (LokrModule, {"lora_dim": 1, "use_tucker": True}),
    (LohaModule, {"lora_dim": 2}),
    (LokrModule, {"lora_dim": 1}),
    (LokrModule, {"lora_dim": 64}),
]
# DoRA by rows and by columns.
LENGTHS = [{"weight_decompose": True, "wd_on_out": False}, {"weight_decompose": True, "wd_on_out": True}]


def fill(module, layer, generator):
    """Random numbers that 16 bits can hold, for a change that is about a third of the layer."""
    half = lambda x: x.to(torch.float16).to(torch.float32)
    own = {name: x for name, x in module.named_parameters() if name != "dora_scale"}
    for name, x in sorted(own.items()):
        x.data = torch.randn(x.shape, generator=generator)
    made = module.make_weight() if isinstance(module, LoConModule) else module.get_weight(module.shape)
    share = (0.3 * layer.weight.std() / made.std()) ** (1 / len(own))
    for name, x in own.items():
        x.data = half(x.data * share)
    if getattr(module, "wd", False):
        lengths = module.dora_scale.data
        module.dora_scale.data = half(lengths * (1 + 0.2 * torch.randn(lengths.shape, generator=generator)))


def lycoris(path, parts, weight, seed, lengths=False):
    """Changes the layers of `parts`, as in `lora.kohya`, and writes the file. Gives what can be undone."""
    generator, tensors, modules, count = torch.Generator().manual_seed(seed), {}, [], {}
    for prefix, (found, change) in parts.items():
        for name, layer in sorted(found.items()):
            has_kernel = layer.weight.dim() == 4 and layer.weight.shape[2] > 1
            forms = KERNELS if has_kernel else LINEAR + [(LoConModule, {"lora_dim": 2})] * lengths
            at = count[has_kernel] = count.get(has_kernel, -1) + 1
            kind, options = forms[at % len(forms)]
            options = options | (LENGTHS[at % 2] if lengths else {})
            name = f"{prefix}_{change(name)}".replace(".", "_")
            module = kind(name, layer, multiplier=weight, alpha=1.5, **options)
            fill(module, layer, generator)
            for key, value in module.custom_state_dict().items():
                kept = value.dtype if key == "alpha" else torch.float16
                tensors[f"{name}.{key}"] = value.detach().clone().to(kept).contiguous()
            module.apply_to()
            modules.append(module)
    save_file(tensors, path)
    return modules
