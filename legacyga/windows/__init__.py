"""The accumulation rule: K gradients become one update on their mean. Nothing here imports TensorFlow."""
