"""LoRA adapters: read from PEFT's folders, laid out as the model's own products are, and added to them."""
