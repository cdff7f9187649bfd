"""The rule: K gradients, one update on their mean. It imports no TensorFlow."""
