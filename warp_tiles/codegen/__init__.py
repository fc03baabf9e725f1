"""From what Warp generates to what is compiled."""
