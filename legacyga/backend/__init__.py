"""Give TensorFlow and every Keras one interface."""
