"""edgepipe: export models on a workstation, run and measure them on an edge device."""

__version__ = "0.1.0"
