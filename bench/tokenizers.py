#!/usr/bin/env python3
"""Tokenizers side by side on one core: ours, fastokens, gigatoken, Hugging Face tokenizers.

  ./run bench tokenizer [--json FILE]
  bench/tokenizers.py [--python PYTHON] [--rounds N] [--json FILE]

Tokenizers and texts are those of ../shared/fixtures (tokenizers/, real/); without them nothing is measured. PYTHON is an interpreter that has the peers installed
(PyPI: fastokens 0.3.5, gigatoken 0.10.0, tokenizers); what it has not is left out and said. Every round runs every engine once in each cell, in turn, in a process of its
own on one core: it first encodes another text, then the one that is measured, which it has not seen ("cold"), then the same again ("warm"). Medians of the rounds.
The ids of a cell must be equally many for all. Only the standard library is needed here.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
FIXTURES = os.environ.get("US_FIXTURES", os.path.join(ROOT, "..", "shared", "fixtures"))
TOKENIZERS = ["gpt2", "qwen2-small", "llama3-small"]
PEERS = ["fastokens", "gigatoken", "huggingface"]
CELLS = [("gsm8k", "docs"), ("gsm8k", "flat"), ("shakespeare", "flat")]


def peer(name, tokenizer, warm, text, mode):
    """Runs inside PYTHON: prints what tokenizer_speed prints."""
    import time

    def read(path):
        data = open(path, "rb").read().decode()
        return data.split("\0") if mode == "docs" else [data.replace("\0", "\n")]

    before, docs = read(warm), read(text)
    n = sum(len(d.encode()) for d in docs)
    if name == "fastokens":
        import fastokens
        t = fastokens.Tokenizer.from_file(tokenizer)
        run = lambda x: [t.encode(d, add_special_tokens=False) for d in x]
        count = lambda r: sum(len(getattr(e, "ids", e)) for e in r)
    elif name == "gigatoken":
        import gigatoken
        t = gigatoken.Tokenizer(tokenizer)
        run, count = t.encode_batch, lambda r: sum(len(e) for e in r)
    else:
        import tokenizers
        t = tokenizers.Tokenizer.from_file(tokenizer)
        run = lambda x: t.encode_batch(x, add_special_tokens=False)
        count = lambda r: sum(len(e.ids) for e in r)
    run(before)
    a = time.perf_counter()
    r = run(docs)
    b = time.perf_counter()
    run(docs)
    c = time.perf_counter()
    print(json.dumps({"bytes": n, "ids": count(r), "cold": n / (b - a), "warm": n / (c - b)}))


def run(argv):
    env = dict(os.environ, RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    return json.loads(p.stdout) if p.returncode == 0 else None


def engines(python):
    found = {"understudy": lambda tok, warm, text, mode: run([f"{ROOT}/build/bench/tokenizer_speed", tok, "encode", warm, text, mode])}
    for name in PEERS:
        module = "tokenizers" if name == "huggingface" else name
        if subprocess.run([python, "-c", f"import {module}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            print(f"tokenizers.py: {name} is not installed for {python}: left out", file=sys.stderr)
            continue
        found[name] = lambda tok, warm, text, mode, name=name: run([python, __file__, "--peer", name, tok, warm, text, mode])
    return found


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def main():
    if len(sys.argv) == 7 and sys.argv[1] == "--peer":
        return peer(*sys.argv[2:])
    ap = argparse.ArgumentParser()
    ap.add_argument("--python", default=os.environ.get("US_PEERS_PYTHON", sys.executable))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--json")
    args = ap.parse_args()
    if not os.path.isdir(os.path.join(FIXTURES, "tokenizers")):
        sys.exit("tokenizers.py: the fixtures (tokenizers, texts) are not there: set US_FIXTURES")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    result = {"topic": "tokenizer", "rounds": args.rounds, "cells": [], "load": {}, "hard": {}}
    with tempfile.TemporaryDirectory() as tmp:
        texts = {"gsm8k": os.path.join(tmp, "gsm8k"), "shakespeare": os.path.join(tmp, "shakespeare")}
        with open(os.path.join(FIXTURES, "real", "gsm8k-test.jsonl")) as f, open(texts["gsm8k"], "w") as out:
            out.write("\0".join(d["question"] + d["answer"] for d in map(json.loads, f)))
        with open(os.path.join(FIXTURES, "real", "tinyshakespeare.txt")) as f, open(texts["shakespeare"], "w") as out:
            out.write(f.read())
        found = engines(args.python)
        print("MB/s on one core, text not seen before (seen before); ours / fastest peer")
        for tok in TOKENIZERS:
            path = os.path.join(FIXTURES, "tokenizers", tok, "tokenizer.json")
            for text, mode in CELLS:
                warm = texts["shakespeare" if text == "gsm8k" else "gsm8k"]
                rounds = {name: [] for name in found}
                for _ in range(args.rounds):
                    for name, f in found.items():
                        r = f(path, warm, texts[text], mode)
                        if r:
                            rounds[name].append(r)
                cell = {"tokenizer": tok, "text": text, "mode": mode, "engines": {}}
                for name, r in rounds.items():
                    if r:
                        cell["engines"][name] = {"cold": median(r, "cold"), "warm": median(r, "warm"), "ids": r[0]["ids"], "all_cold": [x["cold"] for x in r]}
                ours = cell["engines"]["understudy"]
                peers = {k: v for k, v in cell["engines"].items() if k != "understudy"}
                cell["same_count"] = all(v["ids"] == ours["ids"] for v in peers.values())
                if peers:
                    cell["ratio"] = ours["cold"] / max(v["cold"] for v in peers.values())
                result["cells"].append(cell)
                line = "  ".join(f"{k} {v['cold'] / 1e6:.1f} ({v['warm'] / 1e6:.1f})" for k, v in cell["engines"].items())
                print(f"{tok:13} {text:12} {mode:5} {line}  {cell.get('ratio', 0):.2f}" + ("" if cell["same_count"] else "  IDS DIFFER"))
            loads = [run([f"{ROOT}/build/bench/tokenizer_speed", path, "load"]) for _ in range(args.rounds)]
            result["load"][tok] = {"seconds": median(loads, "seconds"), "peak_bytes": median(loads, "peak_bytes"), "ids": loads[0]["ids"]}
            result["hard"][tok] = run([f"{ROOT}/build/bench/tokenizer_speed", path, "hard"])
            worst = max(v["ns_a_byte_1m"] for v in result["hard"][tok].values())
            print(f"{tok:13} load {result['load'][tok]['seconds'] * 1e3:.1f} ms, {result['load'][tok]['peak_bytes'] / 1e6:.0f} MB; hardest text {worst:.0f} ns a byte")
        big = os.path.join(tmp, "big.json")
        make_big(big)
        loads = [run([f"{ROOT}/build/bench/tokenizer_speed", big, "load"]) for _ in range(args.rounds)]
        result["load"]["150k"] = {"seconds": median(loads, "seconds"), "peak_bytes": median(loads, "peak_bytes"), "ids": loads[0]["ids"]}
        print(f"150k tokens   load {result['load']['150k']['seconds'] * 1e3:.1f} ms, {result['load']['150k']['peak_bytes'] / 1e6:.0f} MB ({os.path.getsize(big) / 1e6:.1f} MB of JSON)")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


def make_big(path):
    """GPT-2's file grown to 150,000 tokens with rules of its own form: every new token joins two old ones."""
    with open(os.path.join(FIXTURES, "tokenizers", "gpt2", "tokenizer.json")) as f:
        d = json.load(f)
    vocab, merges = d["model"]["vocab"], d["model"]["merges"]
    names, rng = [k for k in vocab if not k.startswith("<|")], random.Random(1)
    free = max(max(vocab.values()), max(a["id"] for a in d["added_tokens"])) + 1
    while len(vocab) < 150000:
        a, b = names[rng.randrange(len(names))], names[rng.randrange(3000)]
        if a + b not in vocab:
            vocab[a + b] = free
            merges.append(f"{a} {b}")
            free += 1
    with open(path, "w") as f:
        json.dump(d, f, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    main()
