"""C sources for microcontrollers: the int8 kernels that generated firmware calls."""
