"""Text to tokens, tokens to shards, shards to batches."""
