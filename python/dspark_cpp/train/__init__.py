"""Training a draft for a user's own target: prompts, responses, features, and the draft itself."""
