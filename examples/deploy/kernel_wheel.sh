#!/bin/sh
# Makes a wheel of the kernels that scripts launch, without a GPU, checks that their starts find all of them in it, and
# puts it into dist. A maintainer of a package with Warp kernels runs it in CI, once for each version of Warp, with the
# oldest Python, after `pip install warp-tiles` and the package:
#   sh kernel_wheel.sh mujoco-warp-kernels step.py "train.py --size 4"
set -eu
NAME=$1
shift
ARCHS=${ARCHS:-80,86,89,90,100,120}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
warp-tiles bundle --wheel "$NAME" --arch "$ARCHS" -o "$made" "$@"
python -m pip install --quiet --no-deps --target "$made/site" "$made"/*.whl
export PYTHONPATH="$made/site${PYTHONPATH:+:$PYTHONPATH}" WARP_TILES_CACHE_DIR="$made/cache" WARP_CACHE_PATH="$made/warp"
for script; do # with empty caches: "12 present", and nothing that has to be compiled
    # shellcheck disable=SC2086  # a script has its arguments behind it
    found=$(warp-tiles warm --arch "$ARCHS" $script)
    echo "$found"
    case $found in *" compiled"*) exit 1 ;; esac
done
mkdir -p dist
mv "$made"/*.whl dist
