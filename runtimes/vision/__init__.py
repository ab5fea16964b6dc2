"""Vision models on the device: patch after patch, over the inference engines of `engines`."""
