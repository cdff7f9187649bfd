"""A batch in slices, within one training step."""
