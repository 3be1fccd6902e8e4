"""Pictures per second of Tintype through HTTP, and of diffusers, with the same random weights. See `gpu`."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

DEVICE = os.environ["DEVICE"]
TINY = bool(os.environ.get("TINY"))
FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "parity"
PROMPT = "a lighthouse in a storm, oil painting"
# Tasks that are measured, for each picture of a batch, and pictures of a batch.
TASKS, PICTURES = (2, 4) if TINY else (8, 4)
SIDES = [64] if TINY else [512, 1024]

# The fields in which the configurations of real models differ from those of the tests.
UNET = {"block_out_channels": [320, 640, 1280, 1280], "cross_attention_dim": 768, "attention_head_dim": 8}
VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32}
CLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
QWEN = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_types": ["full_attention"] * 36,
}
KLEIN = {
    "in_channels": 128,
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "axes_dims_rope": [32, 32, 32, 32],
    "joint_attention_dim": 7680,
}
MODELS = {
    "sd15": {
        "dtype": "float16",
        "unet": {**UNET, "layers_per_block": 2, "norm_num_groups": 32},
        "vae": VAE,
        "text_encoder": CLIP,
    },
    "klein": {
        "dtype": "bfloat16",
        "transformer": KLEIN,
        "vae": {**VAE, "latent_channels": 32, "decoder_block_out_channels": None},
        "text_encoder": QWEN,
    },
}


def say(what, engine, value, unit):
    print(f"{what}\t{engine}\t{value:.4f}\t{unit}", flush=True)


def make(folder):
    """Models of true shapes with random weights, in the type that a GPU computes with."""
    for name, changes in MODELS.items():
        to = folder / name
        if (to / "complete").exists():
            continue
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(FIXTURES / name, to)
        if not TINY:
            for part, fields in changes.items():
                if part != "dtype":
                    write_part(to / part, fields, changes["dtype"])
        (to / "complete").touch()


def write_part(path, fields, dtype):
    import diffusers
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text()) | fields
    for old in path.glob("*.safetensors*"):
        old.unlink()
    torch.set_default_dtype(getattr(torch, dtype))
    # Billions of numbers are drawn twice, which a processor takes minutes for.
    with torch.device(DEVICE):
        if "_class_name" in config:
            model = getattr(diffusers, config["_class_name"]).from_config(config)
        else:
            kind = getattr(transformers, config["architectures"][0])
            model = kind(kind.config_class(**config))
    torch.set_default_dtype(torch.float32)
    table = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).to(DEVICE, getattr(torch, dtype))
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                count = tensor.numel()
                numbers = table.repeat(-(-count // table.numel()))[:count] / math.sqrt(tensor[0].numel())
                tensor.copy_(numbers.view(tensor.shape))
    model.save_pretrained(path)


class Memory:
    """The most memory of a process, of the machine and of the GPU, in GiB, looked at four times a second."""

    def __init__(self, pid):
        self.pid, self.host, self.gpu, self.done = pid, 0.0, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.done.wait(0.25):
            status = Path(f"/proc/{self.pid}/status").read_text()
            found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
            self.host = int(found[0]) / (1 << 20) if found else self.host
            if DEVICE == "cuda":
                query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
                for line in subprocess.run(query, capture_output=True, text=True).stdout.splitlines():
                    pid, mebibytes = line.split(", ")
                    if pid == str(self.pid) and mebibytes.isdigit():
                        self.gpu = max(self.gpu, int(mebibytes) / 1024)

    def end(self, what, engine):
        self.done.set()
        self.thread.join()
        say(what, engine, self.host, "GiB of the machine")
        if DEVICE == "cuda":
            say(what, engine, self.gpu, "GiB of the GPU")


class Server:
    """`tintype serve` with one model at one size, and at most so many small pictures in a batch."""

    def __init__(self, program, data, model, side, batch):
        runtime = "onnxruntime:cuda" if DEVICE == "cuda" else "onnxruntime"
        flags = ["--data", data, "--listen", "127.0.0.1:0", "--model", model, "--engine-sizes", f"{side}x{side}"]
        flags += ["--engine-batch", str(batch)]
        limits = ["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "0"]
        command = [program, "serve", "--engine", "diffusion", "--engine-runtime", runtime, *flags, *limits]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        self.url = ""
        for line in self.process.stdout:
            words = line.split()
            self.url = next((word.rstrip("/") for word in words if word.startswith("http://127.0.0.1:")), self.url)
            if line == "Ready.\n":
                break
        self.url = "/".join(self.url.split("/")[:3])
        program, common = str(program), ["--data", str(data), "--json"]
        account = ["account", "create", f"bench {model.name} {side} {time.time()}", "--credits", "1000"]
        made = json.loads(subprocess.run([program, *account, *common], capture_output=True, check=True).stdout)
        key = [program, "key", "create", "--account", made["id"], *common]
        self.key = json.loads(subprocess.run(key, capture_output=True, check=True).stdout)["key"]

    def ask(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers)) as answer:
            return json.load(answer)["data"]

    def render(self, tasks, pictures):
        body = {"prompt": PROMPT, "n": pictures, "aspect_ratio": "1:1"}
        begin = time.monotonic()
        ids = [self.ask("/api/v1/images/generate", body)["task_id"] for _ in range(tasks)]
        for task in ids:
            while (found := self.ask(f"/api/v1/images/task/{task}"))["status"] == "processing":
                time.sleep(0.05)
            if found["status"] != "completed":
                sys.exit(f"a task failed: {found}")
        return tasks * pictures / (time.monotonic() - begin)

    def child(self):
        """The process of the engine."""
        for path in Path("/proc").glob("[0-9]*/status"):
            try:
                status, words = path.read_text(), path.with_name("cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PPid:\t{self.process.pid}\n" in status and b"render-diffusion" in words:
                return int(path.parent.name)
        sys.exit("the engine has no process")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def tintype_times(folder, program):
    for name in MODELS:
        for side in SIDES:
            # The pictures of different tasks, one at a time and in batches.
            for batch, label in [(1, "tintype"), (PICTURES, f"tintype x{PICTURES}")]:
                server = Server(program, folder / "data", folder / name, side, batch)
                try:
                    # A device loads the model once, and finds kernels for one picture and for a batch.
                    server.render(1, 1)
                    server.render(1, PICTURES)
                    memory = Memory(server.child())
                    rate = server.render(TASKS * PICTURES, 1)
                    memory.end(f"{name} {side}", label)
                finally:
                    server.stop()
                say(f"{name} {side}", label, rate, "pictures/s")


def torch_times(folder):
    import diffusers
    import torch

    for name, changes in MODELS.items():
        dtype = torch.float32 if DEVICE == "cpu" else getattr(torch, changes["dtype"])
        pipe = diffusers.DiffusionPipeline.from_pretrained(folder / name, torch_dtype=dtype, safety_checker=None)
        pipe.to(DEVICE).set_progress_bar_config(disable=True)
        # As Tintype's defaults.
        steps = {"num_inference_steps": 4} if name == "klein" else {"num_inference_steps": 25, "guidance_scale": 7.5}
        for side in SIDES:
            work = lambda count: pipe(prompt=PROMPT, height=side, width=side, num_images_per_prompt=count, **steps)
            work(1)
            memory = Memory(os.getpid())
            # One picture at a time, and four.
            for count, label in [(1, "diffusers"), (PICTURES, f"diffusers x{PICTURES}")]:
                begin = time.monotonic()
                for _ in range(TASKS * PICTURES // count):
                    work(count)
                say(f"{name} {side}", label, TASKS * PICTURES / (time.monotonic() - begin), "pictures/s")
            memory.end(f"{name} {side}", "diffusers")
        del pipe


def report(folder):
    """All numbers, and our speed as a ratio of the others'."""
    found = [line.split("\t") for line in (folder / "times").read_text().splitlines()]
    rates = [(what, engine, float(value)) for what, engine, value, unit in found if unit == "pictures/s"]
    ours = {(what, engine.removeprefix("tintype")): rate for what, engine, rate in rates if "tintype" in engine}
    for what, engine, value, unit in found:
        same = ours.get((what, engine.removeprefix("diffusers")))
        others = "tintype" not in engine and unit == "pictures/s" and same
        ratio = f"  ours is {same / float(value):.2f} of it" if others else ""
        print(f"{what:12} {engine:14} {float(value):9.3f} {unit}{ratio}")


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder)
    elif what == "tintype":
        tintype_times(folder, sys.argv[3])
    elif what == "torch":
        torch_times(folder)
    elif what == "report":
        report(folder)


if __name__ == "__main__":
    main()
