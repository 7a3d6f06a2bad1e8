#!/bin/sh
# Full scale on sparse files with the true layout of DeepSeek-V3 and Qwen3-235B: headers of 92k tensors in 163 shards, and the cut of seven MoE layers to 1/8.
# Usage: bench/scale.sh BUILD FOLDER [RUNS] > result.json    (needs about 32 GB free in FOLDER, and python3 for the clock)
# Method: inspect, plan and proxy --dry-run are timed as whole processes (median of RUNS after one warm-up); the cut alternates with `cat` of the written
# shards into one file with fsync, on the same disk; peak resident memory is the kernel's, from wait4.
set -eu
build=$1
folder=$2
runs=${3:-5}
mkdir -p "$folder"
"$build/tools/make_sparse_checkpoint" deepseek-v3 "$folder/v3" >&2
"$build/tools/make_sparse_checkpoint" qwen3-235b "$folder/q3" >&2
"$build/tools/make_sparse_checkpoint" deepseek-v3 "$folder/v3-7" --moe-layers 7 >&2
python3 - "$build/understudy" "$folder" "$runs" <<'PY'
import json, os, platform, shutil, statistics, subprocess, sys, time

command, folder, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])


def measure(argv):
    start = time.monotonic()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{argv} ended with {child.returncode}")
    return time.monotonic() - start, usage.ru_maxrss * 1024


def cat(source, target):
    start = time.monotonic()
    with open(target, "wb") as out:
        names = sorted(n for n in os.listdir(source) if n.endswith(".safetensors"))
        subprocess.run(["cat"] + [os.path.join(source, n) for n in names], stdout=out, check=True)
        os.fsync(out.fileno())
    return time.monotonic() - start


result = {"bench": "scale", "runs": runs, "processor": platform.processor() or open("/proc/cpuinfo").read().split("model name\t: ")[1].split("\n")[0], "headers": {}}
for model in ("v3", "q3"):
    path, rows = os.path.join(folder, model), {}
    for name, argv in (("inspect", ["inspect", path]), ("plan", ["plan", path, "--memory", "64"]),
                       ("dry_run", ["proxy", path, os.path.join(folder, "none"), "--experts", "32", "--select", "first", "--dry-run"])):
        measure([command] + argv)
        samples = [measure([command] + argv) for _ in range(runs)]
        rows[name] = {"seconds": statistics.median(s for s, _ in samples), "peak_bytes": max(m for _, m in samples)}
    rows["seconds_in_all"] = sum(r["seconds"] for r in rows.values())
    result["headers"][model] = rows

source, target, copy, rows = (os.path.join(folder, n) for n in ("v3-7", "out", "copy.bin", "none"))
rows = []
for _ in range(runs + 1):
    shutil.rmtree(target, ignore_errors=True)
    seconds, peak = measure([command, "proxy", source, target, "--experts", "32", "--select", "first"])
    written = sum(os.path.getsize(os.path.join(target, n)) for n in os.listdir(target) if n.endswith(".safetensors"))
    rows.append({"proxy_seconds": seconds, "cat_seconds": cat(target, copy), "peak_bytes": peak, "written_bytes": written})
    os.remove(copy)
rows = rows[1:]  # the first warms the machine's memory
result["cut"] = {"samples": rows, "ratio_to_cat": statistics.median(r["proxy_seconds"] / r["cat_seconds"] for r in rows),
                 "peak_bytes": max(r["peak_bytes"] for r in rows), "written_bytes": rows[0]["written_bytes"]}
json.dump(result, sys.stdout, indent=1)
print()
PY
rm -rf "$folder/v3" "$folder/q3" "$folder/v3-7" "$folder/out"
