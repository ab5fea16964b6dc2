"""Vision models for microcontrollers: one int8 graph, split into patches, written out in every format."""
