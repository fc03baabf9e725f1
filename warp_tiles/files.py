from warp_tiles.cache._files import write_atomic as write_atomic
