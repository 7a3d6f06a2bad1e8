#!/bin/sh
# The whole flow on the small model in data/demo: look, build a nested ladder of proxies, prove it, plan. `./run demo` builds and calls this.
# US_COMMAND names another command than build/understudy.
set -eu
cd "$(dirname "$0")/.."
understudy=${US_COMMAND:-build/understudy}
out=$(mktemp -d "${TMPDIR:-/tmp}/understudy-demo.XXXXXX")
trap 'rm -rf "$out"' EXIT INT TERM

# step TEXT COMMAND...: print the text and the command, then run it
step() {
    printf '\n== %s\n$ understudy' "$1"
    shift
    for word in "$@"; do printf ' %s' "$word" | sed "s|$out|OUT|"; done
    printf '\n'
    "$understudy" "$@"
}

step "What is this checkpoint?" inspect data/demo
step "A nested ladder of proxies: 16 of 32 experts, and 8 of those 16" proxy data/demo "$out/ladder" --experts 16,8
step "Proof: every kept byte is the original's" verify data/demo "$out/ladder/e16"
step "... and of the smaller one" verify data/demo "$out/ladder/e8"
step "What did we get?" inspect "$out/ladder/e8"
step "What would it need to train it with RL?" plan data/demo --memory 64
for model in Qwen3-30B-A3B DeepSeek-V3; do
    step "$model, from its published config.json alone" inspect "data/configs/$model.json"
    step "$model: accelerators for RL training and rollout, and the legal proxy sizes" plan "data/configs/$model.json" --memory 64
done
printf '\nThe proxies were in a temporary folder and are gone. Make one of your own model: understudy proxy SRC DST --experts N\n'
