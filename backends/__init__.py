"""Model backends: messages in, a completion out."""
