# The tests that need a GPU: kernels side by side, then what must have the GPU for itself. Six minutes.
. "$(dirname "$0")/common.sh"

kept="not compiled and not autotuned" # and not what hangs, which takes the others' time
for kernel in $(dropped); do kept+=" and not [$kernel-"; done
part kernels 200 python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "$kept"
part timer 60 python3 -m pytest -q -m gpu tests/gpu/test_device_timer_gpu.py
part ladder_tests 150 python3 -m pytest -q -m gpu tests/gpu/test_gpu_ladder.py
# By name: other files import what such a machine lacks, and one that cannot be imported ends the whole run.
mapfile -t others < <(grep -rlE 'mark\.gpu\b' tests --include 'test_*.py' | grep -vE 'test_(cuda_kernels_gpu|device_timer_gpu|gpu_ladder)\.py')
part others 120 python3 -m pytest -q -m gpu "${others[@]}"
part tuned 300 python3 -m pytest -q -n 8 -m gpu tests/gpu/test_cuda_kernels_gpu.py -k "compiled or autotuned"
