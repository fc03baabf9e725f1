"""``python -m warp_tiles.aot`` is what ``CMakeLists.txt`` calls."""

from warp_tiles.aot.command import main

main()
