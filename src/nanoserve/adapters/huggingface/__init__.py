"""Models as Hugging Face publishes them: finding the folder, reading its files, tokenizing, and the reference model."""
