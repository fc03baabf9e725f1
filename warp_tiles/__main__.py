"""``python -m warp_tiles`` is the ``warp-tiles`` command."""

from warp_tiles.cli import main

if __name__ == "__main__":
    main()
