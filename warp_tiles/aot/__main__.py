"""``python -m warp_tiles.aot``, which ``CMakeLists.txt`` calls."""

from warp_tiles.aot.command import main

if __name__ == "__main__":
    main()
