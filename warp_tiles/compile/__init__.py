"""The compiler, the linker and the headers of this machine, and the processes that run them."""
