"""dspark-cpp bench: the same prompts decoded in every way that a user could choose, in turns within one run."""
