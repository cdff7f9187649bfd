"""Train on a batch in slices within one training step."""
