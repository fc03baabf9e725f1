"""One example for each command, which its help shows at the end."""

from __future__ import annotations

import click

EXAMPLES = {
    "": "warp-tiles run train.py",
    "run": "warp-tiles run --report report.html train.py --epochs 3",
    "plan": "warp-tiles plan --arch 90 --block-dim 128 train.py",
    "compile": "warp-tiles compile --arch 90 -o build train.py",
    "warm": "warp-tiles warm --arch 80,90 start.json",
    "settings": "WARP_TILES_POLICY=fast warp-tiles settings",
    "doctor": "warp-tiles doctor --json",
    "cache": "warp-tiles cache info",
    "cache stats": "warp-tiles cache stats",
    "cache info": "warp-tiles cache info --json",
    "cache list": "warp-tiles cache list",
    "cache verify": "warp-tiles cache verify",
    "cache explain": "warp-tiles cache explain 5d1c0a9f",
    "cache gc": "warp-tiles cache gc --max-size 500MB",
    "cache clear": "warp-tiles cache clear",
    "cache export": "warp-tiles cache export functions.bundle --key 5d1c0a9f --key 93b7e2d4",
    "cache import": "warp-tiles cache import functions.bundle",
    "cache push": "WARP_TILES_REMOTE=s3://bucket/warp WARP_TILES_SIGNING_KEY=$PWD/key.pem warp-tiles cache push",
    "cache pull": "WARP_TILES_REMOTE=s3://bucket/warp warp-tiles cache pull",
    "cache status": "warp-tiles cache status --json",
    "keys": "warp-tiles keys show",
    "keys new": "warp-tiles keys new -o key.pem",
    "keys show": "warp-tiles keys show key.pem",
    "keys trust": "warp-tiles keys trust ed25519:X6H3ivFnx302kV4sKV+16rr6IKHGtyBOWykUUyLqdPg= our CI",
    "bundle": "WARP_TILES_SIGNING_KEY=$PWD/key.pem warp-tiles bundle --arch 80,90 -o app.bundle train.py",
    "tune": "warp-tiles tune --budget 600 --devices cuda:0,cuda:1 train.py",
    "tune list": "warp-tiles tune list",
    "tune show": "warp-tiles tune show 5d1c0a9f",
    "tune export": "warp-tiles tune export records.bundle 5d1c0a9f",
    "tune import": "warp-tiles tune import records.bundle --into app/records",
    "tune clear": "warp-tiles tune clear 5d1c0a9f",
}


def add_examples(command: click.Command, path: str = "") -> None:
    """Add its example to the help of a command, and to those of its commands.

    Raises:
        KeyError: A command has no example.
    """
    command.epilog = f"\b\nExample:\n  {EXAMPLES[path]}"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_examples(inner, f"{path} {name}".strip())
