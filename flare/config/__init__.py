"""The first frozen stage: what is wished for, composed by Hydra and validated by pydantic. No torch."""
