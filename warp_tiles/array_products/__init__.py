"""``warp_tiles.matmul``: products of whole matrices by ordinary Warp kernels with loops of tiles."""
