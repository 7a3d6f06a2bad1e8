#!/usr/bin/env python3
"""A proxy loads in transformers and gives the logits of the original with the dropped experts masked.

Usage: tools/check_logits.py UNDERSTUDY MODELS_FOLDER > result.json    (needs torch and transformers; the product and its tests do not)

For every MoE checkpoint in the folder: a proxy of half the experts (random kept list, seed 1), both loaded by transformers in float32 (some routers cast to it, and would escape the mask in float64). In the original the
router's outputs of dropped experts are minus infinity, and so are their correction biases; a token table of experts is replaced by the proxy's. Compared: logits of 2 x 12 tokens, as the largest difference
relative to the largest logit; without_the_mask shows that the mask matters.
"""
import json, os, subprocess, sys, tempfile, traceback

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
plain_linear, plain_matmul = torch.nn.functional.linear, torch.Tensor.matmul
masks = {}  # data_ptr of a router's weight -> dropped experts


def masked_linear(x, weight, bias=None):
    y = plain_linear(x, weight, bias)
    dropped = masks.get(weight.data_ptr())
    if dropped is not None:
        y = y.clone()
        y[..., dropped] = float("-inf")
    return y


torch.nn.functional.linear = masked_linear


def load(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    return model.eval()


def mask(model, experts, layers):
    found = 0
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        parts = name.split(".")
        layer = next((q for q in parts if q.isdigit()), None)
        if layer not in layers:
            continue
        dropped = [e for e in range(experts) if e not in set(layers[layer])]
        router = any(w in name for w in ("gate", "router")) and not any(w in name for w in (".experts.", "shared", "gate_up", "gate_proj"))
        if router and p.dim() == 2 and p.shape[0] == experts:
            p.data = p.data.clone()
            masks[p.data_ptr()] = dropped
            found += 1
        elif p.numel() == experts and "correction" in name:
            p.data.view(-1)[dropped] = float("-inf")
    return found


def follow_tables(original, proxy, layers):
    """Layers routed by a token table: the original takes the proxy's choices, in its own numbers, since a dropped expert cannot be masked there."""
    tensors = dict(list(original.named_parameters()) + list(original.named_buffers()))
    for name, table in list(proxy.named_parameters()) + list(proxy.named_buffers()):
        layer = next((q for q in name.split(".") if q.isdigit()), None)
        if "tid2eid" in name and layer in layers:
            tensors[name].data.copy_(torch.tensor(layers[layer], dtype=tensors[name].dtype)[table.long()])


def check(command, src):
    with tempfile.TemporaryDirectory() as folder:
        dst = os.path.join(folder, "proxy")
        made = subprocess.run([command, "proxy", src, dst, "--keep-ratio", "0.5", "--select", "random", "--seed", "1"], capture_output=True, text=True)
        if made.returncode:
            return {"proxy": made.stderr.strip()}
        manifest = json.load(open(os.path.join(dst, "understudy.json")))
        layers = {str(k): v for k, v in manifest["layers"].items()}
        experts = manifest["experts"]["source"] if isinstance(manifest["experts"], dict) and "source" in manifest["experts"] else None
        original, proxy = load(src), load(dst)
        config = original.config.get_text_config()
        if experts is None:
            experts = next(getattr(config, k) for k in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts") if getattr(config, k, None))
        torch.manual_seed(1)
        ids = torch.randint(0, config.vocab_size, (2, 12))
        masks.clear()
        with torch.no_grad():
            whole = original(ids, use_cache=False).logits
        routers = mask(original, experts, layers)
        follow_tables(original, proxy, layers)
        with torch.no_grad():
            a = original(ids, use_cache=False).logits
            masks.clear()
            b = proxy(ids, use_cache=False).logits
        if routers != len(layers):
            return {"masked_routers": routers, "moe_layers": len(layers), "why": "the routers of this model were not found by name"}
        kept = len(next(iter(layers.values())))
        return {"experts": experts, "kept": kept, "relative_difference": float((a - b).abs().max() / a.abs().max()),
                "without_the_mask": float((whole - b).abs().max() / a.abs().max())}


command, folder = sys.argv[1], sys.argv[2]
result = {"command": "tools/check_logits.py build/understudy ../shared/fixtures/models", "transformers": transformers.__version__, "torch": torch.__version__, "models": {}}
for name in sorted(os.listdir(folder)):
    src = os.path.join(folder, name)
    if not os.path.isfile(os.path.join(src, "config.json")):
        continue
    if "[dense]" in subprocess.run([command, "proxy", src, "/nonexistent/x", "--keep-ratio", "0.5", "--dry-run"], capture_output=True, text=True).stderr:
        continue
    try:
        result["models"][name] = check(command, src)
    except Exception as e:
        result["models"][name] = {"failed": (type(e).__name__ + ": " + str(e).split("\n")[0])[:200]}
    print(name, result["models"][name], file=sys.stderr, flush=True)
json.dump(result, sys.stdout, indent=1)
print()
