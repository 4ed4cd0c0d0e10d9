#!/bin/sh
# What a GPU shows, in one go and under 8 minutes: sh benchmarks/gpu.sh [OUT_DIR]
# Needs lightning_jax[cuda12] installed for PYTHON, and, for the comparison, RIVAL_PYTHON with torch (CUDA) and transformers.
#     PYTHON=.venv/bin/python RIVAL_PYTHON=/path/to/torch/bin/python PEAK_FLOPS=989e12 sh benchmarks/gpu.sh out
# PEAK_FLOPS: dense bfloat16 of the device, for the model FLOP utilisation (H100/H200 SXM 989e12, A100 312e12).
# DRY_RUN=1: every part on the CPU with one layer, without limits of time: does the script run at all?
# Ends with the worst exit status of its parts. Record what it prints, with the date, in docs/performance.md.
set -u
cd "$(dirname "$0")/.."
out=${1:-gpu-results}
python=${PYTHON:-python}
mkdir -p "$out"
export XLA_PYTHON_CLIENT_PREALLOCATE=false # so that both sides fit, and the peak is the need
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$out/compiled}
status=0

if [ -n "${DRY_RUN:-}" ]; then
    export JAX_PLATFORMS=cpu
    model=smollm2_135m # the smallest whose sizes are known
    learner="--device cpu --layers 1 --vocabulary 512 --repeats 1"
    decode="--layers 1 --vocabulary 512 --prompt 64 --new 17 --read 1048576"
    limit=""
else
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv"
    model=qwen2_5_1_5b
    learner="--device gpu --repeats 5"
    decode=""
    limit=timeout
fi
"$python" -c 'import jax; print("jax", jax.__version__, jax.devices())' | tee "$out/versions.txt"
ours=$learner
[ -n "${RIVAL_PYTHON:-}" ] && learner="$learner --rival-python $RIVAL_PYTHON"
[ -n "${PEAK_FLOPS:-}" ] && learner="$learner --peak-flops $PEAK_FLOPS"

# part NAME SECONDS MODULE ARGUMENTS...: its last line, or the end of its messages where it failed
part() {
    name=$1 seconds=$2
    shift 2
    ${limit:+$limit $seconds} "$python" -m "$@" >"$out/$name.json" 2>"$out/$name.log"
    code=$?
    [ $code -eq 0 ] || { status=$code; echo "$name ended with $code (124: out of time)"; tail -n 20 "$out/$name.log"; }
    tail -n 1 "$out/$name.json"
}

# the table of docs/performance.md for a model of 1.5B parameters in bfloat16, MFU by formula, peak memory
part learner 280 benchmarks.learner --model $model --dtype bfloat16 --remat dots $learner
# the same with cuDNN's attention: whichever is faster is what algo.attention should say there
part fused 80 benchmarks.learner --model $model --dtype bfloat16 --remat dots --attention fused --cases independent,samples $ours
# decode tokens/s against what reading the weights once per step allows
part decode 110 benchmarks.learner.decode --model $model $decode
exit $status
