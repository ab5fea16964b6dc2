"""Trains a small draft on what its target writes: prompts, sampling, vocabulary, training, acceptance."""
