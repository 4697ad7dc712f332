"""What clients receive: bodies and stream chunks in OpenAI's shapes, with Flare's additions."""
