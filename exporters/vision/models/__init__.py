"""Built-in vision models as torch modules: images ``[N, 3, H, W]`` in, logits or probabilities ``[N, classes]`` out."""
