"""Reading Hugging Face's `tokenizer.json` with the standard library alone: one module for each part of the file."""
