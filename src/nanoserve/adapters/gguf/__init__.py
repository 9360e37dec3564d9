"""Presents a GGUF file, the format of llama.cpp, as a Hugging Face folder."""
