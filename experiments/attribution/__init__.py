"""How faithful token scores are: SST-2 with a fine-tuned encoder, and a language model."""
