"""Latent attention of prompts in its expanded form (DeepSeek-AI 2024): every head makes keys and values of the latents.

A query and a token cost 192 + 128 elements of arithmetic in DeepSeek's models, where the absorbed form costs 576 + 512. The
products that expand are the vendor's: here entries are gathered from the cache, in spans of bounded size, and attended to.
"""
