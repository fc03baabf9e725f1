#!/bin/sh
# Makes a wheel of the kernels that scripts launch, without a GPU, and checks that their starts find all of them in it.
# A maintainer of a package with Warp kernels runs it in CI, once for each version of Warp, with the oldest Python:
#   sh kernel_wheel.sh mujoco-warp-kernels step.py "train.py --size 4"
set -eu
NAME=$1
shift
ARCHS=${ARCHS:-80,86,89,90,100,120}
warp-tiles bundle --wheel "$NAME" --arch "$ARCHS" -o dist "$@"
rm -rf check
python -m pip install --quiet --no-deps --target check dist/*.whl
export PYTHONPATH="$PWD/check${PYTHONPATH:+:$PYTHONPATH}" WARP_TILES_CACHE_DIR="$PWD/check/cache"
for script; do # with an empty cache: "12 present", and nothing that has to be compiled
    # shellcheck disable=SC2086  # a script has its arguments behind it
    found=$(warp-tiles warm --arch "$ARCHS" $script)
    echo "$found"
    case $found in *compiled*) exit 1 ;; esac
done
