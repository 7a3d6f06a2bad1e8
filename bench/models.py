#!/usr/bin/env python3
"""Whole models side by side with llama.cpp and ik_llama.cpp: prefill, decoding, 32 sequences at once, memory, first token.

  US_MODELS=DIR [LLAMA_CPP=SOURCE] [IK_LLAMA_CPP=SOURCE] ./run bench models [--json FILE]
  bench/models.py [--models DIR] [--llama SOURCE] [--ik SOURCE] [--repeats N] [--json FILE] [NAME...]

DIR holds folders NAME with config.json and bf16 weights, and beside them NAME-f32.gguf for the peers: the shapes of spec/cpu-peers.md as make_models.py writes
them. SOURCE is a source tree of the peer; it is built into build/peers on first use and makes its own bf16 file of the f32 one. Every round runs
each engine once, in turn; medians of the rounds are printed. Without a peer the figures that were measured elsewhere (PUBLISHED) stand beside ours and are
marked so. Only the standard library is needed.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
THREADS = 2
# tokens/s with bf16 weights and two threads on other machines: spec/cpu-peers.md sections 2, 3 (AMX machine: best of both) and 10 (AVX2 machine, llama.cpp).
PUBLISHED = {
    "dense60": {"amx": {"prefill": 1342, "decode": 263}, "avx2": {"prefill": 775, "decode": 151, "batch": 558}},
    "moe8": {"amx": {"prefill": 2285, "decode": 406, "batch": 400}, "avx2": {"prefill": 635, "decode": 253, "batch": 369}},
    "next8": {"amx": {"prefill": 1561, "decode": 264}, "avx2": {"prefill": 431, "decode": 158, "batch": 277}},
    "moe16": {"amx": {"prefill": 343, "decode": 58}},
}


def run(argv):
    """(standard output, seconds, peak bytes) of a command; its failure ends the benchmark."""
    start = time.monotonic()
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=os.path.join(ROOT, "build"))
    out = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if p.returncode != 0:
        sys.exit(f"models.py: {' '.join(argv)} ended with status {p.returncode}")
    return out.decode(errors="replace"), seconds, usage.ru_maxrss * 1024


def ours(folder, _):
    d = json.loads(run([f"{ROOT}/build/bench/model_speed", folder, str(THREADS), "bf16", "all", "1"])[0])
    ids = os.path.join("/tmp", f"us-bench-{os.getpid()}.json")
    with open(ids, "w") as f:
        f.write("[[1]]")
    command = [f"{ROOT}/build/understudy", "generate", folder, "--ids", ids, "--max-new", "1", "--greedy", "--dtype", "bf16", "--threads", str(THREADS), "--json"]
    d["first_token"] = run(command)[1]
    os.unlink(ids)
    return d


def llama(bin_dir, gguf):
    out, _, peak = run([f"{bin_dir}/llama-bench", "-m", gguf, "-p", "512", "-n", "128", "-t", str(THREADS), "-r", "1", "-o", "json"])
    d = {"peak_bytes": peak}
    for row in json.loads(out):
        d["prefill" if row["n_prompt"] else "decode"] = row["avg_ts"]
    if os.path.exists(f"{bin_dir}/llama-batched-bench"):
        out, _, peak = run([f"{bin_dir}/llama-batched-bench", "-m", gguf, "-c", "8192", "-b", "2048", "-ub", "512", "-npp", "64", "-ntg", "64", "-npl", "32",
                            "-t", str(THREADS), "--output-format", "jsonl"])
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        d["batch"] = rows[-1]["speed_tg"]
        d["peak_bytes"] = max(d["peak_bytes"], peak)
    if os.path.exists(f"{bin_dir}/llama-completion"):
        d["first_token"] = run([f"{bin_dir}/llama-completion", "-m", gguf, "-p", "a", "-n", "1", "--no-warmup", "-t", str(THREADS), "-c", "512", "-no-cnv",
                                "--temp", "0"])[1]
    return d


def build_peer(name, source):
    """The peer's bin folder; built with its own defaults for this machine when it is not there yet."""
    build = os.path.join(ROOT, "build", "peers", name)
    targets = ["llama-bench", "llama-quantize"] + ([] if name == "ik" else ["llama-batched-bench", "llama-completion"])
    if not all(os.path.exists(os.path.join(build, "bin", t)) for t in targets):
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_CCACHE=OFF", "-DLLAMA_BUILD_SERVER=OFF",
                   "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_CURL=OFF"]
        subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja"] + options, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", build, "--target"] + targets, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(build, "bin")


def bf16_file(models, name, bin_dir):
    path = os.path.join(models, f"{name}-bf16.gguf")
    if not os.path.exists(path):
        run([f"{bin_dir}/llama-quantize", os.path.join(models, f"{name}-f32.gguf"), path, "BF16", str(THREADS)])
    return path


def machine():
    text = open("/proc/cpuinfo").read()
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.M).group(1).split()
    return {"cpu": re.search(r"^model name\s*:\s*(.*)$", text, re.M).group(1), "processors": os.cpu_count(),
            "isa": "amx" if "amx_bf16" in flags else "avx512" if "avx512f" in flags else "avx2"}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("names", nargs="*")
    ap.add_argument("--models", default=os.environ.get("US_MODELS"))
    ap.add_argument("--llama", default=os.environ.get("LLAMA_CPP"))
    ap.add_argument("--ik", default=os.environ.get("IK_LLAMA_CPP"))
    ap.add_argument("--repeats", type=int, default=5)
    ap.add_argument("--json")
    a = ap.parse_args()
    if not a.models:
        sys.exit("models.py: set US_MODELS to a folder of models (see the head of bench/models.py)")
    names = a.names or [n for n in PUBLISHED if os.path.exists(os.path.join(a.models, n, "config.json"))]
    engines = {"ours": ours}
    files = {}
    for label, short, source in (("llama.cpp", "llama", a.llama), ("ik_llama.cpp", "ik", a.ik)):
        if source:
            bin_dir = build_peer(short, source)
            files = files or {n: bf16_file(a.models, n, bin_dir) for n in names}
            engines[label] = lambda _, gguf, bin_dir=bin_dir: llama(bin_dir, gguf)
    result = {"command": " ".join(sys.argv), "machine": machine(), "threads": THREADS, "models": {}}
    for name in names:
        samples = {e: [] for e in engines}
        for _ in range(a.repeats):
            for e, fn in engines.items():
                samples[e].append(fn(os.path.join(a.models, name), files.get(name)))
        rows = {e: {k: statistics.median(s[k] for s in list_) for k in list_[0]} for e, list_ in samples.items()}
        result["models"][name] = {"medians": rows, "samples": samples}
        print(f"{name}: medians of {a.repeats} rounds, bf16, {THREADS} threads")
        for e, r in rows.items():
            print(f"  {e:14s} prefill {r.get('prefill', 0):8.1f}  decode {r.get('decode', 0):7.1f}  32 sequences {r.get('batch', 0):7.1f} tokens/s   "
                  f"peak {r['peak_bytes'] / 2**20:6.0f} MiB   first token {r.get('first_token', 0):.3f} s")
        peers = [r for e, r in rows.items() if e != "ours"]
        if peers:
            ratios = {k: rows["ours"][k] / max(p[k] for p in peers if k in p) for k in ("prefill", "decode", "batch") if any(k in p for p in peers)}
            result["models"][name]["ratio_to_best_peer"] = ratios
            print("  against the better peer: " + "  ".join(f"{k} {v:.2f}x" for k, v in ratios.items()))
        else:
            print(f"  no peer was run; measured on other machines: {json.dumps(PUBLISHED.get(name, {}))}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


main()
