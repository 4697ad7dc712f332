"""SmolLM2 and every other dense Llama-type model."""
