"""Records all floating-point numbers of 8 bits, widened by PyTorch."""

import torch

from shared import write_json


def float8(out):
    codes = torch.arange(256, dtype=torch.uint8)
    recorded = {}
    for name, dtype in {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}.items():
        wide = codes.view(dtype).to(torch.float32)
        # What is not a number has many patterns.
        recorded[name] = [None if x != x else bits for x, bits in zip(wide.tolist(), wide.view(torch.int32).tolist())]
    write_json(out / "float8.json", recorded)
