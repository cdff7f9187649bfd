"""Support for training with Keras's fit: the callback, train_step and micro_batch."""
