#!/bin/sh
# What a GPU shows, in one go and under 8 minutes: sh benchmarks/gpu.sh [OUT_DIR]
# Needs lightning_jax[cuda12] installed for PYTHON, and, for the comparison, RIVAL_PYTHON with torch (CUDA) and transformers.
#     PYTHON=.venv/bin/python RIVAL_PYTHON=/path/to/torch/bin/python PEAK_FLOPS=989e12 sh benchmarks/gpu.sh out
# PEAK_FLOPS: dense bfloat16 of the device, for the model FLOP utilisation (H100/H200 SXM 989e12, A100 312e12).
# Written without a GPU at hand: record what it prints, with the date, in docs/performance.md.
set -u
cd "$(dirname "$0")/.."
out=${1:-gpu-results}
python=${PYTHON:-python}
mkdir -p "$out"
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # so that both sides fit, and the peak is the need
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$out/compiled}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv"
"$python" -c 'import jax; print("jax", jax.__version__, jax.devices())' | tee "$out/versions.txt"

rival=""
[ -n "${RIVAL_PYTHON:-}" ] && rival="--rival-python $RIVAL_PYTHON"
peak=""
[ -n "${PEAK_FLOPS:-}" ] && peak="--peak-flops $PEAK_FLOPS"

# 5 minutes at most: the table of docs/performance.md for a model of 1.5B parameters in bfloat16, MFU by formula, peak memory
timeout 300 "$python" -m benchmarks.learner --device gpu --model qwen2_5_1_5b --dtype bfloat16 --remat dots \
    --repeats 5 $rival $peak >"$out/learner.json" 2>"$out/learner.log" || tail -n 20 "$out/learner.log"
tail -n 1 "$out/learner.json"

# 2 minutes at most: decode tokens/s against what reading the weights once per step allows
timeout 120 "$python" -m benchmarks.learner.decode --model qwen2_5_1_5b >"$out/decode.json" 2>"$out/decode.log" ||
    tail -n 20 "$out/decode.log"
tail -n 1 "$out/decode.json"
