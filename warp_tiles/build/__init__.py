"""Builds what a plan needs: providers in turn, through the cache, side by side."""
