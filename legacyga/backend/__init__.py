"""TensorFlow and the Kerases under one name."""
