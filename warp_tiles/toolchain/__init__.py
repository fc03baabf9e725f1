"""The compiler, the linker and the headers of this machine."""
