# The headline: four models from launch-bound to product-bound. Nine minutes; a cut leaves finished rows, and the same command
# goes on.
. "$(dirname "$0")/common.sh"

rows headline 540 experiment=gpu_record
