"""``python -m warp_tiles.aot``: what ``CMakeLists.txt`` needs beside ``warp-tiles compile``."""
