"""What stands around Keras's fit."""
